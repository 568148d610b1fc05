# Memory that C++ reads and Python holds, or the other way round: each must outlive its readers.
# SPDX-License-Identifier: Apache-2.0
import gc

import pytest
import torch
import torch.distributed as dist

import models
import pride


def test_views_of_state_outlive_the_optimizer_and_its_growth():
    p, q = torch.nn.Parameter(torch.zeros(500_000)), torch.nn.Parameter(torch.zeros(3))
    optimizer = pride.DistributedLion([p])
    p.grad = torch.ones_like(p)
    optimizer.step()
    (key,) = [k for k in optimizer.state[p] if k != "step"]
    whole, view = optimizer.state[p][key], optimizer.state[p][key].view(-1)
    array = view.numpy()
    before = view.clone()
    optimizer.add_param_group({"params": [q]})
    assert torch.equal(view, before) and torch.equal(whole, before)
    later = optimizer.state[p][key].detach()
    optimizer.close()
    del optimizer
    gc.collect()
    churn = [torch.full((500_000,), 7.0) for _ in range(4)]  # takes memory that was freed
    assert len(churn) == 4
    assert torch.equal(view, before) and torch.equal(later, before)
    assert (array == before.numpy()).all()


class TwoParts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.large, self.late = torch.nn.Linear(300, 300), torch.nn.Linear(300, 1)

    def forward(self, x, late):
        x = self.large(x)
        return self.late(x) if late else x


def replaced(how, late_at_first):
    """With overlap and one bucket, which is complete in step() only: its last part is unused."""
    model = TwoParts()
    optimizer = pride.DistributedLion(model.parameters(), 1e-2, overlap=True, timeout=20)
    for step in range(3):
        optimizer.zero_grad(set_to_none=True)
        if step < 2 and not late_at_first:
            (model.late.weight * (1 + dist.get_rank())).sum().backward()
        else:
            x = torch.randn(4, 300, generator=torch.Generator().manual_seed(
                8 * step + dist.get_rank()))
            model(x, False).pow(2).mean().backward()
        if step == 2:
            for p in model.large.parameters():
                how(p)
        optimizer.step()
    optimizer.close()


def new_data(p):
    p.grad.data = p.grad.data * 0.5


def zeroed(p):
    p.grad.zero_()


@pytest.mark.parametrize("late_at_first", [True, False])
@pytest.mark.parametrize("how", [new_data, zeroed])
def test_a_gradient_that_is_replaced_after_its_exchange_began_is_refused(world, how, late_at_first):
    for error in world(2).errors(replaced, how, late_at_first):
        assert error is not None
        assert issubclass(error[0], pride.Error) and "changed after" in error[1]


def nodes(numbers):
    models.make(node_of_rank=numbers)


@pytest.mark.parametrize("numbers", [[0], [0, 0, 1, 1]])
def test_nodes_of_another_number_of_ranks_are_refused(world, numbers):
    for kind, text in world(2).errors(nodes, numbers):
        assert issubclass(kind, pride.InvalidArgument)
        assert f"node_of_rank has {len(numbers)} entries" in text


def test_a_negative_view_as_gradient_counts_with_its_sign():
    p = torch.nn.Parameter(torch.zeros(4))
    optimizer = pride.DistributedLion([p], lr=0.5)
    p.grad = torch._neg_view(torch.ones(4))
    optimizer.step()
    assert torch.equal(p.detach(), torch.full((4,), 0.5))


def test_memory_by_kind():
    for dtype, masters in ((torch.float32, 0), (torch.bfloat16, 2), (torch.float16, 4)):
        model = torch.nn.Linear(640, 100, bias=False).to(dtype)
        optimizer = pride.Optimizer(model.parameters(), method="adamw")
        use = optimizer.memory()
        assert use["state"] == 2 * 4 * 64000
        assert use["masters"] == masters * 64000
        assert use["scratch"] == use["copies"] == 0
        model.weight.grad = torch.ones_like(model.weight)
        optimizer.step()
        assert 0 < optimizer.memory()["frames"] <= 2 * 4 * 64000 + 4096
    rows = torch.nn.Parameter(torch.zeros(64, 32).t())
    assert pride.Optimizer([rows], method="lion").memory()["copies"] == 4 * 64 * 32
