# Gradient scalers whose found-inf is known from frames: nothing is read before a step.
# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

import models
import pride
from models import whole
from scalers import AttributeScaler, cpu_kernels


def step_with(optimizer, scale, found_inf):
    """As torch 2.x's GradScaler steps."""
    optimizer.grad_scale, optimizer.found_inf = scale, found_inf
    optimizer.step()
    del optimizer.grad_scale, optimizer.found_inf


class NothingIsRead(TorchDispatchMode):
    """Of tensors, by the host, which on a GPU would wait for it."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = str(function)
        self.seen.add(name)
        for reading in ("_local_scalar_dense", "item", "equal", "is_nonzero", "nonzero"):
            assert not name.startswith(f"aten.{reading}."), f"{name} reads a tensor"
        return function(*args, **(kwargs or {}))


def without_reading(method, dtype):
    model, optimizer = models.make(method, models.mlp(dtype=dtype))
    optimizer.scaler = AttributeScaler()
    with cpu_kernels():
        optimizer.scaler.scale(torch.zeros(1))
    for step in range(5):
        optimizer.zero_grad()
        (3 * models.loss_of(model, *models.batch(step))).backward()
        flag = torch.tensor(float(step == 3 and models.own_rank() == 0))
        scale = torch.tensor(3.0) if step < 4 else None
        if step < 2:  # the first steps compare gradients
            step_with(optimizer, scale, flag)
            continue
        with NothingIsRead() as mode:
            step_with(optimizer, scale, flag)
        assert any("masked_fill" in name for name in mode.seen), "it sees nothing"
        assert optimizer.traffic()["last_step"]["skipped"] == (step == 3)
    return models.ended(model, optimizer)


@pytest.mark.parametrize("n", [1, 2])
def test_nothing_waits_for_the_scale_and_the_flag(world, n):
    for method, dtype in (("dlion-vote", torch.float32), ("adamw", torch.bfloat16)):
        assert len(set(world(n).run(without_reading, method, dtype))) == 1


def of_another_check(where):
    """The last rank's flag alone says that step 1 is no good."""
    model, optimizer = models.make("adamw")
    last = dist.get_rank() == dist.get_world_size() - 1
    for step in range(4):
        optimizer.zero_grad(set_to_none=True)
        models.backward(model, step)
        flagged = step == 1 and last
        if where == "no gradient" and flagged:
            optimizer.zero_grad(set_to_none=True)
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        before = whole(model, optimizer), models.bits(grads)
        step_with(optimizer, None, torch.full((1,), float(flagged)))
        assert optimizer.traffic()["last_step"]["skipped"] == (step == 1)
        assert (whole(model, optimizer) == before[0]) == (step == 1)
        assert flagged or models.bits(grads) == before[1], "gradients have changed"
    counts = optimizer.traffic()["steps"], optimizer.traffic()["skipped"]
    return counts, models.ended(model, optimizer)


@pytest.mark.parametrize("where", ["gradients", "no gradient"])
@pytest.mark.parametrize("n", [1, 3])
def test_a_flag_without_a_bad_gradient_skips_the_step_too(world, n, where):
    results = world(n).run(of_another_check, where)
    assert {counts for counts, _ in results} == {(3, 1)}
    assert len({weights for _, weights in results}) == 1


@pytest.mark.parametrize("scale", [float("inf"), 0.0])
def test_an_impossible_scale_changes_nothing(scale):
    p = torch.nn.Parameter(torch.ones(3))
    optimizer = pride.DistributedLion([p], 0.25)
    p.grad = torch.ones(3)
    step_with(optimizer, torch.tensor(scale), torch.tensor(0.0))
    assert optimizer.traffic()["skipped"] == 1 and torch.equal(p, torch.ones(3))


def on_one_rank_alone():
    """Rank 1 trains in bfloat16 without a scaler, and its gradient is not finite once."""
    model, optimizer = models.make("lion", weight_decay=0.1)
    rank = dist.get_rank()
    for step in range(4):
        optimizer.zero_grad()
        models.backward(model, step)
        if rank == 1 and step == 2:
            model[0].bias.grad[1] = float("nan")
        if rank == 0:
            step_with(optimizer, None, torch.tensor(0.0))
        else:
            optimizer.step()
        assert optimizer.traffic()["last_step"]["skipped"] == (step == 2)
    return models.ended(model, optimizer)


def test_a_scaler_of_one_rank_makes_all_skip(world):
    assert len(set(world(2).run(on_one_rank_alone))) == 1


def resumed(stop):
    """Overflows before and after the stop."""
    model, optimizer = models.make("adamw")
    scaler = AttributeScaler(init_scale=4.0)
    with cpu_kernels():
        for step in range(6):
            if step == stop:
                saved = optimizer.state_dict(), model.state_dict(), scaler.state_dict()
                optimizer.close()
                model, optimizer = models.make("adamw")
                scaler = AttributeScaler()
                scaler.load_state_dict(saved[2])
                model.load_state_dict(saved[1])
                optimizer.load_state_dict(saved[0])
            optimizer.scaler = scaler
            optimizer.zero_grad()
            factor = float("inf") if step in (1, 4) and dist.get_rank() == 0 else 1.0
            scaler.scale(factor * models.loss_of(model, *models.batch(step))).backward()
            scaler.step(optimizer)
            scaler.update()
    result = whole(model, optimizer), scaler.get_scale()
    optimizer.close()
    return result


def test_a_resumed_run_has_the_steps_of_one_without_a_stop(world):
    expected = world(2).run(resumed, None)
    assert [scale for _, scale in expected] == [1.0, 1.0]
    assert world(2).run(resumed, 3) == expected


def of_local_steps():
    """Found-inf is read before the step: no frame would tell of it."""
    model, optimizer = models.make("local-vote", options={"h": 3})
    for step in range(6):
        optimizer.zero_grad()
        models.backward(model, step)
        flagged = step == 1 and dist.get_rank() == 1
        step_with(optimizer, torch.tensor(1.0), torch.tensor(float(flagged)))
        if step == 1:
            assert optimizer.traffic()["last_step"]["note"] == "found_inf on rank(s) 1"
    assert (optimizer.traffic()["steps"], optimizer.traffic()["skipped"]) == (5, 1)
    optimizer.check_replicas()
    optimizer.close()


def test_local_steps_are_skipped_on_all_ranks(world):
    world(2).run(of_local_steps)
