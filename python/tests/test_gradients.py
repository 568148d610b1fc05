# Gradients: None, zeros, views, sparse ones and negated ones.
# SPDX-License-Identifier: Apache-2.0
#
# Oracles: steps of signs written in torch (one rank: x - lr * sign); the same run with gradients
# that are reset by hand.
import inspect

import pytest
import torch
import torch.distributed as dist

import models
import pride
from models import ended, make, numbers, parameter, set_gradients


def accumulated(method, overlap=False):
    """Bits after steps of two backwards each; `method` says how gradients are reset."""
    model, optimizer = make(weight_decay=0.1, overlap=overlap)
    for step in range(5):
        if method == "none":
            optimizer.zero_grad(set_to_none=True)
        elif method == "zero":
            optimizer.zero_grad(set_to_none=False)
        elif method == "module":
            model.zero_grad()
        else:
            for p in model.parameters():
                p.grad = None
        with optimizer.no_sync():
            models.backward(model, 2 * step)
        models.backward(model, 2 * step + 1)
        optimizer.step()
    return ended(model, optimizer)


@pytest.mark.parametrize("n", [1, 3])
def test_bits_do_not_depend_on_how_gradients_are_reset(world, n):
    expected = world(n).run(accumulated, "by hand")
    assert len(set(expected)) == 1
    for method in ("none", "zero", "module"):
        assert world(n).run(accumulated, method) == expected, method
    assert world(n).run(accumulated, "zero", True) == expected, "with overlap"


def test_zero_grad_is_torchs_and_gradients_keep_their_memory():
    model, optimizer = make()
    for step in range(3):
        models.backward(model, step)
        held = [(p.grad, p.grad.data_ptr(), p.grad.clone()) for p in model.parameters()]
        optimizer.step()
        for p, (grad, address, values) in zip(model.parameters(), held):
            assert p.grad is grad and grad.data_ptr() == address and torch.equal(grad, values)
        optimizer.zero_grad(set_to_none=False)
        for p, (grad, address, _) in zip(model.parameters(), held):
            assert p.grad is grad and grad.data_ptr() == address and not grad.any()
    optimizer.zero_grad(set_to_none=True)
    assert all(p.grad is None for p in model.parameters())
    assert (inspect.signature(optimizer.zero_grad).parameters["set_to_none"].default ==
            inspect.signature(torch.optim.SGD.zero_grad).parameters["set_to_none"].default)


def test_a_zero_gradient_steps_and_no_gradient_does_not():
    used, unused = torch.nn.Parameter(torch.ones(4)), torch.nn.Parameter(torch.ones(4))
    optimizer = pride.DistributedLion([used, unused], 0.5)
    set_gradients([used, unused], 0)
    optimizer.step()
    before = used.detach().clone(), unused.detach().clone()
    momentum = optimizer.state[unused]["m.rank0"].clone()
    used.grad, unused.grad = torch.zeros(4), None
    optimizer.step()
    assert not torch.equal(used, before[0])
    assert torch.equal(unused, before[1])
    assert torch.equal(optimizer.state[unused]["m.rank0"], momentum)


GRADIENTS = {
    "transposed": lambda g: g.t().contiguous().t(),
    "every other": lambda g: torch.stack([g, g], -1)[..., 0],
    "expanded": lambda g: g[:1, :1].expand(3, 4),
    "negated": lambda g: torch._neg_view(-g),
    "at an offset": lambda g: torch.cat([torch.zeros(1, dtype=g.dtype), g.reshape(-1)])[1:].view(3, 4),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", GRADIENTS)
def test_gradients_in_any_order_of_memory(kind, dtype):
    p = torch.nn.Parameter(torch.zeros(3, 4, dtype=dtype))
    optimizer = pride.DistributedLion([p], 1.0)
    p.grad = GRADIENTS[kind](numbers(3, 3, 4).to(dtype))
    held = p.grad.clone()
    optimizer.step()
    assert torch.equal(p.detach(), -held.sign())
    assert torch.equal(p.grad, held)


def test_maximize_is_the_step_of_negated_gradients():
    for zero in (False, True):
        up, down = parameter(0, 30), parameter(0, 30)
        climber = pride.DistributedLion([up], 1e-2, weight_decay=0.1, maximize=True)
        faller = pride.DistributedLion([down], 1e-2, weight_decay=0.1)
        for step in range(4):
            climber.zero_grad(set_to_none=not zero)
            g = numbers(step, 30)
            up.grad = g.clone() if up.grad is None else up.grad.add_(g)
            down.grad = -g
            climber.step()
            faller.step()
            assert torch.equal(up.grad, g), "the step leaves the gradient as it is"
        assert torch.equal(up, down)
        assert not torch.equal(up, parameter(0, 30))


def test_maximize_may_be_changed_but_not_for_one_group_alone():
    a, b = torch.nn.Parameter(torch.zeros(6)), torch.nn.Parameter(torch.zeros(6))
    optimizer = pride.DistributedLion([{"params": [a]}, {"params": [b]}], 1.0)
    for p in (a, b):
        p.grad = torch.ones(6)
    optimizer.zero_grad(set_to_none=False)
    for group in optimizer.param_groups:
        group["maximize"] = True
    for p in (a, b):
        p.grad.add_(1.0)
    optimizer.step()
    assert torch.equal(a, torch.ones(6)) and torch.equal(b, torch.ones(6))
    assert torch.equal(a.grad, torch.ones(6)), "the step leaves the gradient as it is"
    optimizer.param_groups[1]["maximize"] = False
    with pytest.raises(ValueError, match="maximize"):
        optimizer.step()
    with pytest.raises(ValueError, match="maximize"):
        pride.DistributedLion([{"params": [a]}, {"params": [b], "maximize": True}])


def other_maximize():
    p = parameter(0, 6)
    optimizer = pride.DistributedLion([p], 1.0, maximize=dist.get_rank() == 1, timeout=20)
    set_gradients([p], 0, dist.get_rank())
    optimizer.step()


def test_ranks_that_climb_while_others_descend_are_an_error(world):
    for kind, text in world(2).errors(other_maximize):
        assert issubclass(kind, ValueError) and "maximize" in text


def sparse_gradient():
    """One rank's gradient cannot be used: an error on all, parameters unchanged, and on it goes."""
    rank = dist.get_rank()
    params = [("emb.weight", parameter(0, 5, 4)), ("fc.weight", parameter(1, 6))]
    optimizer = pride.DistributedLion(params, 0.5, timeout=20)
    plain = [p for _, p in params]
    texts = []
    for step in range(4):  # the first ones, in which a refusal changes nothing
        set_gradients(plain, step, rank)
        before = models.bits(plain)
        if rank == dist.get_world_size() - 1 and step in (0, 2):
            plain[0].grad = torch.eye(5, 4).to_sparse()
        try:
            optimizer.step()
            assert step in (1, 3)
            assert models.bits(plain) != before
        except pride.InvalidArgument as error:
            texts.append(str(error))
            assert models.bits(plain) == before
    optimizer.check_replicas()
    optimizer.close()
    return texts


@pytest.mark.parametrize("n", [1, 2])
def test_a_sparse_gradient_on_one_rank_is_refused_on_all(world, n):
    for texts in world(n).run(sparse_gradient):
        assert len(texts) == 2
        for text in texts:
            assert "emb.weight" in text and "sparse" in text
