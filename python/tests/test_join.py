# Ranks with unequal numbers of batches: pride.join().
# SPDX-License-Identifier: Apache-2.0
#
# Oracle: as many steps on every rank, without gradients where a rank has no batch.
import contextlib

import pytest
import torch
import torch.distributed as dist

import models
import pride
from models import ended, make
from processes import SOON

COUNTS = {2: (7, 3), 3: (3, 7, 0)}
OPTIONS = {"onebit-adam": {"freeze_steps": 3}, "local-vote": {"h": 2}}


def unequal(method, joined, overlap=False, dtype=torch.float32, frozen=False):
    """Weights and this rank's state; with rates that change from step to step."""
    counts, rank = COUNTS[dist.get_world_size()], dist.get_rank()
    model, optimizer = make(method, models.mlp(dtype=dtype), options=OPTIONS.get(method),
                            overlap=overlap)
    last = max(counts)
    with pride.join(optimizer) if joined else contextlib.nullcontext():
        for step in range(counts[rank] if joined else last):
            optimizer.zero_grad(set_to_none=True)
            for group in optimizer.param_groups:
                group["lr"] = 0.01 * (1 + step)
            if frozen:
                model[2].bias.requires_grad_(step < 5)
            if step < counts[rank]:
                models.backward(model, step)
            optimizer.step()
    for step in range(last, 10):  # and go on together; local-vote has exchanged in the last
        optimizer.zero_grad(set_to_none=True)
        model[2].bias.requires_grad_(True)
        models.backward(model, step)
        optimizer.step()
    state = models.whole(model, optimizer)[1]
    return ended(model, optimizer), state


@pytest.mark.parametrize("n", COUNTS)
@pytest.mark.parametrize("method", ["dlion-vote", "dlion-avg", "lion-cub", "adamw", "onebit-adam",
                                    "signsgd-ef", "local-vote"])
def test_a_rank_without_data_serves_and_abstains(world, n, method):
    expected = world(n).run(unequal, method, False)
    assert len({weights for weights, _ in expected}) == 1
    assert world(n).run(unequal, method, True) == expected


@pytest.mark.parametrize("options", [dict(overlap=True), dict(frozen=True),
                                     dict(dtype=torch.bfloat16)], ids=str)
def test_with_overlap_half_precision_and_tensors_that_freeze(world, options):
    expected = world(3).run(unequal, "dlion-vote", False, **options)
    assert world(3).run(unequal, "dlion-vote", True, **options) == expected


def with_equal_gradients():
    """The two that have data have the same."""
    model, optimizer = make()
    with pride.join(optimizer):
        for step in range(3 if dist.get_rank() else 0):
            models.train(model, optimizer, 1, step, rank=1)


def test_gradients_that_are_equal_on_all_ranks_with_data_are_refused(world):
    for kind, text in world(3).errors(with_equal_gradients):
        assert kind is pride.InvalidArgument and "equal, bit for bit" in text


def not_finite_and_on():
    """A gradient that is not finite, while rank 1 has no data; then all load a state and go on."""
    model, optimizer = make()
    saved, rank = optimizer.state_dict(), dist.get_rank()
    with pytest.raises(pride.NonFiniteGradient):
        with pride.join(optimizer):
            for step in range(3 if rank else 6):
                optimizer.zero_grad(set_to_none=True)
                models.backward(model, step)
                if step == 4:
                    model[0].weight.grad[0, 0] = float("nan")
                optimizer.step()
    optimizer.load_state_dict(saved)
    models.train(model, optimizer, 2)
    return ended(model, optimizer)


def test_a_gradient_that_is_not_finite_does_not_end_the_optimizer(world):
    assert len(set(world(2).run(not_finite_and_on))) == 1


def with_collective():
    model, optimizer = make()
    with pride.join(optimizer):
        if dist.get_rank() == 0:
            models.train(model, optimizer, 1)
            optimizer.check_replicas()


def without():
    model, optimizer = make()
    if dist.get_rank() == 0:
        models.train(model, optimizer, 1)
    else:
        with pride.join(optimizer):
            pass


@pytest.mark.parametrize("body, text", [
    (with_collective, "rank 0: check_replicas(), rank 1: end of join()"),
    (without, "rank 0: step(), rank 1: join()")])
def test_other_calls_are_named(world, body, text):
    for error in world(2).errors(body):
        assert error[0] is pride.InvalidArgument and text in error[1]


def stops(overlap):
    model, optimizer = make(overlap=overlap, timeout=1.0)
    models.train(model, optimizer, 4 if dist.get_rank() == 1 else 9)
    if dist.get_rank() == 1:
        dist.barrier()


@pytest.mark.parametrize("overlap", [False, True])
def test_without_it_the_rank_that_stopped_is_named_with_the_step(job, overlap):
    job = job(2, stops, overlap)
    text, _, seconds = job.result(0)
    assert "rank(s) 1 gave no sign of life in step 5" in text, text
    assert "pride.join(optimizer)" in text, text
    assert 0.9 < seconds < 1 + SOON
    job.kill()
