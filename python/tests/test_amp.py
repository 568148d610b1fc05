# Gradient scalers, on one rank and on several.
# SPDX-License-Identifier: Apache-2.0
#
# Oracle: the run without a scaler. Scales are powers of two, so that undoing them is exact.
import inspect

import pytest
import torch
import torch.distributed as dist

import models
import pride
from models import NEW_TORCH, whole
from scalers import KINDS, AttributeScaler, Scaler, cpu_kernels

MODES = [(kind, unscale) for kind in KINDS for unscale in (False, True)]


def in_frames(kind):
    """True if ranks learn of an overflow from frames; torch 1.13's own scaler is asked before."""
    return kind == "attributes" or NEW_TORCH


def test_the_signature_is_that_of_the_protocol():
    has = "grad_scaler" in inspect.signature(pride.DistributedLion.step).parameters
    assert has == (not NEW_TORCH), "torch 2.x warns of it, and 1.13 needs it"
    assert pride.DistributedLion._step_supports_amp_scaling


def trained(kind=None, unscale=False, to_none=True, bad=(), leave_out=(), clip=None,
            without_gradients=(), method="dlion-vote", shared=False, **arguments):
    """Six steps: ((weights, state), scales, what bad steps left as it was, counts). bad: steps in
    which the last rank overflows. leave_out: steps that are not made."""
    rank, n = dist.get_rank(), dist.get_world_size()
    model, optimizer = models.make(method, weight_decay=0.1, **arguments)
    scaler = KINDS[kind](init_scale=2.0 ** 12, growth_interval=2) if kind else None
    optimizer.scaler = scaler if shared else None
    scales, untouched = [], []
    with cpu_kernels():
        for step in range(6):
            if step in leave_out:
                continue
            optimizer.zero_grad(set_to_none=to_none)
            loss = models.loss_of(model, *models.batch(step))
            if step in bad and rank == n - 1:
                loss = loss * float("inf")
            loss = scaler.scale(loss) if scaler else loss
            if (rank, step) not in without_gradients:
                loss.backward()
            before, made = whole(model, optimizer), optimizer.traffic()["steps"]
            if scaler is None:
                if clip:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
                continue
            if unscale:
                if any(p.grad is not None for p in model.parameters()):
                    scaler.unscale_(optimizer)
                if clip:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            scales.append(scaler.get_scale())
            assert scaler.step(optimizer) is None
            scaler.update()
            if step in bad:
                now, last = whole(model, optimizer), optimizer.traffic()["last_step"]
                untouched.append((now[0] == before[0], now[1] == before[1]))
                assert last["skipped"]
                check_note(kind, last["note"], made + 1, n - 1)
                assert all(state["step"] == made for state in optimizer.state.values())
    optimizer.check_replicas()
    traffic = optimizer.traffic()
    result = whole(model, optimizer)
    optimizer.close()
    return result, scales, untouched, (traffic["steps"], traffic["skipped"])


def check_note(kind, note, step, rank):
    if not in_frames(kind):
        assert note == f"found_inf on rank(s) {rank}", note
        return
    assert note.startswith(f"step {step}: NaN or Inf in the gradient of '"), note
    assert note.endswith(f"on rank {rank}"), note


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("kind, unscale", MODES)
def test_the_scale_is_undone_before_the_momentum(world, n, kind, unscale):
    expected = [each[0] for each in world(n).run(trained)]
    for to_none in (True, False):
        got = world(n).run(trained, kind, unscale, to_none)
        for _, scales, _, counts in got:
            assert scales == [2.0 ** (12 + step // 2) for step in range(6)]
            assert counts == (6, 0)
        assert [each[0] for each in got] == expected


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("kind, unscale", MODES)
def test_an_overflow_on_one_rank_is_a_skipped_step_on_all(world, n, kind, unscale):
    bad = (1, 2, 4)
    expected = [each[0] for each in world(n).run(trained, leave_out=bad, method="lion")]
    shared = n == 3  # 2.x keeps its flags to itself, unless the optimizer is told
    results = world(n).run(trained, kind, unscale, unscale, bad, method="lion", shared=shared)
    for rank, (result, scales, untouched, counts) in enumerate(results):
        assert untouched == [(True, True)] * len(bad), "weights, momentum or counters have changed"
        assert counts == (3, 3)
        assert result == expected[rank]
        if shared or rank == n - 1 or not in_frames(kind):
            assert scales == [2.0 ** k for k in (12, 12, 11, 10, 10, 9)], f"rank {rank}"


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_momenta_of_a_vote_take_in_what_is_finite_of_a_skipped_step(world, n, kind):
    """As with on_non_finite="skip", but that the step does not count."""
    bad, method = (1, 2, 4), "dlion-vote"
    oracle = dict(leave_out=bad) if not in_frames(kind) else dict(bad=bad, on_non_finite="skip")
    expected = [each[0][0] for each in world(n).run(trained, method=method, **oracle)]
    results = world(n).run(trained, kind, bad=bad, method=method)
    for (weights, _), _, untouched, counts in results:
        assert [weights_stay for weights_stay, _ in untouched] == [True] * len(bad)
        assert counts == (3, 3)
    assert [each[0][0] for each in results] == expected
    if not in_frames(kind):
        assert all(stays == (True, True) for _, _, untouched, _ in results for stays in untouched)
    elif n > 1:  # the gradients of the first rank are finite
        assert results[0][2] == [(True, False)] * len(bad)


def test_clipping_between_unscale_and_step(world):
    expected = [each[0] for each in world(2).run(trained, clip=0.5)]
    for kind in KINDS:
        got = world(2).run(trained, kind, True, clip=0.5)
        assert [each[0] for each in got] == expected


@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_without_gradients_takes_part(world, kind):
    nothing = ((0, 2), (1, 3), (0, 4), (1, 4))
    expected = [each[0] for each in world(2).run(trained, without_gradients=nothing)]
    if kind == "attributes" or NEW_TORCH:
        nothing_there = world(2).run(without_update, nothing)
        assert nothing_there == expected
        return
    got = world(2).run(trained, kind, without_gradients=nothing)
    assert [each[0] for each in got] == expected
    # an overflow elsewhere makes this rank's scaler back off too
    skipped = world(2).run(trained, kind, bad=(3,), without_gradients=((0, 3),))
    assert skipped[0][1] == skipped[1][1] == [2.0 ** k for k in (12, 12, 13, 13, 12, 12)]


def without_update(nothing):
    """torch 2.x's update() raises where a rank has no gradient; its step() does not."""
    class Forgiving(AttributeScaler):
        def update(self, new_scale=None):
            states = self._per_optimizer_states.values()
            if any(state["found_inf_per_device"] for state in states):
                return super().update(new_scale)
            self._per_optimizer_states.clear()
            return None

    KINDS["forgiving"] = Forgiving
    return trained("forgiving", without_gradients=nothing)[0]


def test_a_disabled_scaler(world):
    expected = [each[0] for each in world(2).run(trained)]
    got = world(2).run(disabled)
    assert got == expected


def disabled():
    model, optimizer = models.make(weight_decay=0.1)
    scaler = Scaler(enabled=False)
    for step in range(6):
        optimizer.zero_grad(set_to_none=True)
        models.backward(model, step)
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    result = whole(model, optimizer)
    optimizer.close()
    return result


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_gradients_are_unscaled_in_float32(kind):
    p = torch.nn.Parameter(torch.zeros(4, dtype=torch.float16))
    optimizer = pride.DistributedLion([p], 1.0)
    scaler = KINDS[kind](init_scale=2.0 ** 16)
    with cpu_kernels():
        scaler.scale(torch.zeros(1))
        p.grad = torch.tensor([1.0, -2.0, 6e-8, 1e-4], dtype=torch.float16)
        g = p.grad.float() * 2.0 ** -16  # less than float16 can hold
        scaler.step(optimizer)
        scaler.update()
    one_minus_beta = torch.tensor(0.01)
    assert torch.allclose(optimizer.state[p]["m.rank0"], one_minus_beta * g, rtol=1e-5, atol=0)
    assert torch.equal(p.float(), -g.sign())


@pytest.mark.parametrize("kind", KINDS)
def test_one_scaler_of_two_optimizers_skips_the_one_that_overflowed(kind):
    good, bad = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    optimizers = [pride.DistributedLion([p], 0.25) for p in (good, bad)]
    scaler = KINDS[kind](init_scale=4.0)
    with cpu_kernels():
        for step in range(2):
            for p in (good, bad):
                p.grad = None
            factor = float("inf") if step == 0 else 1.0
            scaler.scale(good.sum() + factor * bad.sum()).backward()
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()
            assert scaler.get_scale() == 2.0
    assert torch.equal(good, torch.full((3,), 0.5))
    assert torch.equal(bad, torch.full((3,), 0.75))


def climbing(kind):
    up, down = (torch.nn.Parameter(torch.ones(8)) for _ in range(2))
    optimizers = [pride.DistributedLion([up], 0.25, maximize=True),
                  pride.DistributedLion([down], 0.25)]
    scaler = KINDS[kind](init_scale=4.0)
    with cpu_kernels():
        for step in range(4):
            g = torch.randn(8, generator=torch.Generator().manual_seed(step))
            for optimizer in optimizers:
                optimizer.zero_grad(set_to_none=False)
            scaler.scale((g * up).sum() - (g * down).sum()).backward()
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()
    return up, down


@pytest.mark.parametrize("kind", KINDS)
def test_maximize_with_a_scaler(kind):
    up, down = climbing(kind)
    assert torch.equal(up, down) and not torch.equal(up, torch.ones(8))


# --- Overlap. -------------------------------------------------------------------------------------


def overlapped(kind, when, all_ranks):
    """A scaler is used from step `when` on, by all ranks or by rank 1 alone."""
    rank = dist.get_rank()
    model, optimizer = models.make(overlap=True)
    scaler = KINDS[kind](init_scale=4.0)
    try:
        with cpu_kernels():
            for step in range(6):
                optimizer.zero_grad(set_to_none=True)
                loss = models.loss_of(model, *models.batch(step))
                if step < when or not all_ranks and rank != 1:
                    loss.backward()
                    optimizer.step()
                else:
                    scaler.scale(loss).backward()
                    scaler.step(optimizer)
                    scaler.update()
        return None
    except pride.Error as error:
        return str(error)
    finally:
        optimizer.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("when", [0, 4])
def test_a_scaler_with_overlap_is_refused_on_all_ranks(world, kind, when):
    for text in world(2).run(overlapped, kind, when, True):
        assert text is not None and "overlap" in text
    others, own = world(2).run(overlapped, kind, when, False)
    assert "a GradScaler needs overlap=False" in own
    assert "GradScaler was used with overlap=True" in others
