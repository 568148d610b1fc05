# Groups of parameters, their rates and schedulers; groups that are added.
# SPDX-License-Identifier: Apache-2.0
#
# Oracles: optimizers over parts of the parameters; Algorithm 1 written in torch.
import pytest
import torch
import torch.distributed as dist
from torch.optim import lr_scheduler

import models
import pride
from models import moved, numbers, parameter, set_gradients
from test_steps import algorithm_1

VALUES = [dict(lr=1e-2, weight_decay=0.1), dict(lr=3e-3, weight_decay=0.0, betas=(0.5, 0.75)),
          dict(lr=1e-4)]


def by_groups(apart):
    """Three groups in one optimizer, or three optimizers."""
    params = [parameter(i, 50 + i) for i in range(3)]
    groups = [{"params": [p], **v} for p, v in zip(params, VALUES)]
    lists = [[g] for g in groups] if apart else [groups]
    rank = dist.get_rank()
    optimizers = [pride.DistributedLion(each, weight_decay=0.01) for each in lists]
    for step in range(5):
        set_gradients(params, step, rank)
        for optimizer in optimizers:
            optimizer.step()
    for optimizer in optimizers:
        optimizer.close()
    return [models.bits([p]) for p in params]


@pytest.mark.parametrize("n", [1, 3])
def test_groups_step_as_optimizers_of_their_own(world, n):
    together, apart = world(n).run(by_groups, False), world(n).run(by_groups, True)
    assert together == apart
    assert all(each == together[0] for each in together)


SCHEDULERS = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2, 0.5),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 8),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1.0 / (step + 1)),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.5, 8),
    "warm-up, then cosine": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, 1.0, 3), lr_scheduler.CosineAnnealingLR(o, 5)], [3]),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_acts_on_the_next_step(name):
    p, other = torch.nn.Parameter(torch.zeros(40)), torch.nn.Parameter(torch.zeros(1))
    optimizer = pride.DistributedLion([p], lr=0.25)
    oracle = torch.optim.AdamW([other], lr=0.25, betas=(0.9, 0.99))
    scheduler, expected = SCHEDULERS[name](optimizer), SCHEDULERS[name](oracle)
    rates, x, momentum = set(), torch.zeros(40), torch.zeros(40)
    for step in range(8):
        group = oracle.param_groups[0]
        rates.add(round(group["lr"], 6))
        distance = moved(p, optimizer, step)
        assert torch.allclose(distance, torch.tensor(float(group["lr"])), atol=1e-6, rtol=1e-5)
        x, (momentum,), _ = algorithm_1(x, [numbers(1000 * step, 40)], [momentum], group["lr"],
                                        *group["betas"], 0.0)
        assert torch.allclose(p.detach(), x, atol=1e-5), f"step {step}, betas {group['betas']}"
        assert torch.allclose(optimizer.state[p]["m.rank0"], momentum, atol=1e-6)
        oracle.step()
        scheduler.step()
        expected.step()
        assert scheduler.get_last_lr() == expected.get_last_lr()
    assert len(rates) > 2


@pytest.mark.parametrize("method", ["graddrop", "signsgd-ef"])
def test_a_method_without_betas_refuses_a_cycled_momentum_as_torch_does(method):
    optimizer = pride.Optimizer([parameter(0, 3)], 0.1, method=method)
    with pytest.raises(ValueError, match="must support momentum"):
        lr_scheduler.OneCycleLR(optimizer, 0.5, 8)
    lr_scheduler.OneCycleLR(optimizer, 0.5, 8, cycle_momentum=False)


def test_a_tensor_as_rate():
    p, rate = torch.nn.Parameter(torch.zeros(9)), torch.tensor(0.5)
    optimizer = pride.DistributedLion([p], lr=rate)
    assert set(moved(p, optimizer, 0).tolist()) == {0.5}
    rate.fill_(0.25)
    assert set(moved(p, optimizer, 1).tolist()) == {0.25}
    optimizer.param_groups[0]["lr"] = torch.tensor([0.125], dtype=torch.float64)
    assert set(moved(p, optimizer, 2).tolist()) == {0.125}


@pytest.mark.parametrize("bad", [dict(lr=float("nan")), dict(lr=-1.0), dict(lr=float("inf")),
                                 dict(betas=(0.9,)), dict(betas=(0.9, 0.99, 0.999)),
                                 dict(betas=(0.9, float("nan"))), dict(betas=(1.5, 0.9)),
                                 dict(weight_decay=float("nan")), dict(weight_decay=-0.1)],
                         ids=str)
def test_unusable_values_are_refused_by_name_and_never_replaced_by_defaults(bad):
    key = next(iter(bad))
    word = {"lr": "lr|learning rate", "betas": "beta", "weight_decay": "weight.decay"}[key]
    with pytest.raises(ValueError, match=word):
        pride.DistributedLion([parameter(0, 3)], **bad)
    with pytest.raises(ValueError, match=word):
        pride.DistributedLion([{"params": [parameter(0, 3)], **bad}])
    p = parameter(0, 3)
    optimizer = pride.DistributedLion([p], lr=0.5)
    good = optimizer.param_groups[0][key]
    optimizer.param_groups[0].update(bad)  # as a scheduler would
    before = p.detach().clone()
    set_gradients([p], 0)
    with pytest.raises(ValueError, match=word):
        optimizer.step()
    assert torch.equal(p, before)
    with pytest.raises(ValueError, match=word):
        optimizer.add_param_group({"params": [parameter(1, 3)], **bad})
    assert len(optimizer.param_groups) == 1
    optimizer.param_groups[0][key] = good
    assert set(moved(p, optimizer, 0).tolist()) <= {0.5, 0.49999994, 0.50000006}


# --- add_param_group. -----------------------------------------------------------------------------


def grown(at_once, zero, method="dlion-vote", dtype=torch.float32):
    """Five steps, with the second group from the third on: added then, or unused before."""
    rank = dist.get_rank()
    old = [parameter(0, 70), parameter(1, 3, 5, dtype=dtype)]
    new = [parameter(2, 64), parameter(3), parameter(4, 0), parameter(5, 9, dtype=dtype)]
    # decay of parameters that no rank uses goes on: none, for as long as the group is not there
    groups = [{"params": old}, {"params": new, "lr": 1e-3, "weight_decay": 0.0}]
    optimizer = pride.Optimizer(groups if at_once else groups[:1], 1e-2, method=method,
                                weight_decay=0.1, bucket_size=64)
    for step in range(5):
        if step == 2 and not at_once:
            kept = {k: v.clone() for k, v in optimizer.state[old[0]].items()}
            assert any(v.any() for k, v in kept.items() if k != "step")
            optimizer.add_param_group(groups[1])
            for key, value in kept.items():
                assert torch.equal(optimizer.state[old[0]][key], value), key
            assert len(optimizer.param_groups) == 2 and optimizer.param_groups[1]["lr"] == 1e-3
        if step == 2:
            optimizer.param_groups[1]["weight_decay"] = 0.1
        live = old + (new if step >= 2 else [])
        if zero:
            optimizer.zero_grad(set_to_none=False)
            for i, p in enumerate(live):
                g = numbers(1000 * step + 100 * rank + i, *p.shape).to(p.dtype)
                p.grad = g if p.grad is None else p.grad.add_(g)
        else:
            set_gradients(live, step, rank)
        optimizer.step()
        saved = optimizer.state_dict()["state"]
        for i, p in enumerate(live):
            if p.dtype != torch.float32:
                assert torch.equal(saved[i]["master"].to(p.dtype), p)
    optimizer.check_replicas()
    state = {k: v.numpy().tobytes() for k, v in optimizer.state[new[0]].items() if k != "step"}
    optimizer.close()
    return models.bits(old + new), state


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("zero", [False, True])
def test_an_added_group_steps_as_one_that_was_there_and_unused(world, n, zero):
    expected = world(n).run(grown, True, zero)
    assert world(n).run(grown, False, zero) == expected
    assert len({bits for bits, _ in expected}) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_masters_are_kept_when_a_group_is_added(world, dtype):
    expected = world(2).run(grown, True, False, "dlion-avg", dtype)
    assert world(2).run(grown, False, False, "dlion-avg", dtype) == expected


def bad_group(kind):
    """Rank 1 adds another group than rank 0: an error everywhere, and training goes on."""
    rank = dist.get_rank()
    p = parameter(0, 20)
    optimizer = pride.DistributedLion([p], lr=0.5, timeout=20)
    set_gradients([p], 0, rank)
    optimizer.step()
    group = {"params": [parameter(1, 6)]}
    if rank == 1:
        group = {"shape": {"params": [parameter(1, 2, 3)]},
                 "values": {"params": [parameter(2, 6)]},
                 "rate": {"params": [parameter(1, 6)], "lr": 0.25},
                 "twice": {"params": [p]},
                 "complex": {"params": [torch.zeros(6, dtype=torch.complex64)]},
                 "type": {"params": ["weights"]},
                 "set": {"params": {parameter(1, 6)}},
                 "no parameters": {"lr": 1.0}}[kind]
    problem = None
    try:
        optimizer.add_param_group(group)
    except Exception as error:  # pylint: disable=broad-except
        problem = str(error)
    assert problem is not None
    assert len(optimizer.param_groups) == 1
    set_gradients([p], 1, rank)
    before = p.detach().clone()
    optimizer.step()
    assert not torch.equal(p, before)
    optimizer.check_replicas()
    optimizer.add_param_group({"params": [parameter(1, 6)]})
    set_gradients([p], 2, rank)
    optimizer.step()
    optimizer.close()
    return problem


@pytest.mark.parametrize("kind", ["shape", "values", "rate", "twice", "complex", "type", "set",
                                  "no parameters"])
def test_a_group_that_one_rank_alone_has_is_refused_on_all_and_training_goes_on(world, kind):
    for text in world(2).run(bad_group, kind):
        assert text


def test_a_gradient_from_before_a_group_was_added_counts_in_the_next_step():
    for dtype in (torch.float32, torch.bfloat16):
        p = parameter(0, 6, dtype=dtype)
        optimizer = pride.DistributedLion([p], 0.25)
        set_gradients([p], 0)
        g, before = p.grad.clone(), p.detach().clone()
        optimizer.add_param_group({"params": [parameter(1, 90)]})
        assert torch.equal(p.grad, g) and torch.equal(p, before)
        optimizer.step()
        assert torch.equal(p, (before.float() - 0.25 * g.float().sign()).to(p.dtype))
