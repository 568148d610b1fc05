# Gradient scalers and gradients that are not finite, on one rank and on several.
# SPDX-License-Identifier: Apache-2.0
#
# Oracle: the run without a scaler. Scales are powers of two, so that undoing them is exact. torch's
# own scaler runs, with Python in the place of two kernels that torch 1.13 has for CUDA alone.
import contextlib
import inspect
from unittest import mock

import pytest
import torch
import torch.distributed as dist

import models
import pride

NEW_TORCH = int(torch.__version__.split(".")[0]) >= 2
TIMEOUT = 30


def check_and_unscale(grads, found_inf, inverse):
    """torch._amp_foreach_non_finite_check_and_unscale_"""
    for g in grads:
        if not torch.isfinite(g).all():
            found_inf.fill_(1.0)
        if inverse.item() != 1:
            g.mul_(inverse.to(g.dtype))


def update_scale(scale, tracker, found_inf, growth, backoff, interval):
    """torch._amp_update_scale_"""
    if found_inf.item():
        scale.mul_(backoff)
        tracker.zero_()
    elif tracker.item() + 1 == interval:
        scale.mul_(growth)
        tracker.zero_()
    else:
        tracker.add_(1)


class Replicator:
    """torch 1.13's refuses tensors on the CPU."""

    def __init__(self, master):
        self.master = master
        self._per_device_tensors = {}

    def get(self, device):
        return self._per_device_tensors.setdefault(device, self.master)


@contextlib.contextmanager
def cpu_kernels():
    if NEW_TORCH:
        yield
        return
    kernels = {"_amp_foreach_non_finite_check_and_unscale_": check_and_unscale,
               "_amp_update_scale_": update_scale}
    module = torch.cuda.amp.grad_scaler
    with mock.patch.multiple(torch, **kernels), mock.patch.object(
            module, "_MultiDeviceReplicator", Replicator):
        yield


if NEW_TORCH:
    class Scaler(torch.amp.GradScaler):
        def __init__(self, **options):
            super().__init__("cpu", **options)
else:
    class Scaler(torch.cuda.amp.GradScaler):
        """torch 1.13's, for tensors on the CPU."""

        def __init__(self, **options):
            with mock.patch.object(torch.cuda.amp.grad_scaler, "amp_definitely_not_available",
                                   lambda: False):
                super().__init__(**options)

        def scale(self, outputs):
            if self._scale is None:
                self._lazy_init_scale_growth_tracker(outputs.device)
            return outputs * self._scale


class AttributeScaler(Scaler):
    """step() as torch 2.x has it for optimizers without an argument grad_scaler."""

    def step(self, optimizer, *args, **kwargs):
        state = self._per_optimizer_states[id(optimizer)]
        if state["stage"].name == "READY":
            self._check_inf_per_device(optimizer)
        optimizer.grad_scale = None if state["stage"].name == "UNSCALED" else self._scale
        optimizer.found_inf = sum(state["found_inf_per_device"].values())
        result = optimizer.step(*args, **kwargs)
        state["stage"] = type(state["stage"]).STEPPED
        del optimizer.grad_scale
        del optimizer.found_inf
        return result


KINDS = {"own": Scaler, "attributes": AttributeScaler}
MODES = [(kind, unscale) for kind in KINDS for unscale in (False, True)]


def test_the_signature_is_that_of_the_protocol():
    has = "grad_scaler" in inspect.signature(pride.DistributedLion.step).parameters
    assert has == (not NEW_TORCH), "torch 2.x warns of it, and 1.13 needs it"
    assert pride.DistributedLion._step_supports_amp_scaling


def trained(kind=None, unscale=False, to_none=True, bad=(), leave_out=(), clip=None,
            without_gradients=(), options=None, **more):
    """Six steps: (weights, momenta, scales, traffic). bad: steps in which the last rank overflows.
    leave_out: steps that are not made."""
    rank, n = dist.get_rank(), dist.get_world_size()
    model = models.mlp()
    optimizer = pride.DistributedLion(model.parameters(), 1e-2, weight_decay=0.1, timeout=TIMEOUT,
                                      bucket_size=64, **more)
    scaler = KINDS[kind](init_scale=2.0 ** 12, growth_interval=2,
                         **(options or {})) if kind else None
    scales, untouched = [], []
    with cpu_kernels():
        for step in range(6):
            if step in leave_out:
                continue
            optimizer.zero_grad(set_to_none=to_none)
            x, y = models.batch(rank, step)
            loss = torch.nn.functional.cross_entropy(model(x), y)
            if step in bad and rank == n - 1:
                loss = loss * float("inf")
            loss = scaler.scale(loss) if scaler else loss
            if (rank, step) not in without_gradients:
                loss.backward()
            before = whole(model, optimizer)
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
                untouched.append(whole(model, optimizer) == before)
                assert optimizer.traffic()["last_step"]["skipped"]
                note = optimizer.traffic()["last_step"]["note"]
                assert note == f"found_inf on rank(s) {n - 1}", note
    optimizer.check_replicas()
    traffic = optimizer.traffic()
    result = whole(model, optimizer)
    optimizer.close()
    return result, scales, untouched, (traffic["steps"], traffic["skipped"])


def whole(model, optimizer):
    """Weights, and all state: momentum and step."""
    state = [v for p in model.parameters() for _, v in sorted(optimizer.state[p].items())]
    return models.bits(model.parameters()), models.bits(state)


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
    expected = [each[0] for each in world(n).run(trained, None, False, True, (), bad)]
    results = world(n).run(trained, kind, unscale, unscale, bad)
    for rank, (result, scales, untouched, counts) in enumerate(results):
        assert untouched == [True] * len(bad), "weights, momentum or counters have changed"
        assert counts == (3, 3)
        assert result == expected[rank]
        if rank == n - 1 or kind == "own" and not NEW_TORCH:  # 2.x keeps its flags to itself
            assert scales == [2.0 ** k for k in (12, 12, 11, 10, 10, 9)], f"rank {rank}"


def test_clipping_between_unscale_and_step(world):
    expected = [each[0] for each in world(2).run(trained, None, False, True, (), (), 0.5)]
    for kind in KINDS:
        got = world(2).run(trained, kind, True, True, (), (), 0.5)
        assert [each[0] for each in got] == expected


@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_without_gradients_takes_part(world, kind):
    nothing = ((0, 2), (1, 3), (0, 4), (1, 4))
    expected = [each[0] for each in world(2).run(trained, None, False, True, (), (), None, nothing)]
    if kind == "attributes":
        nothing_there = world(2).run(without_update, nothing)
        assert nothing_there == expected
        return
    got = world(2).run(trained, kind, False, True, (), (), None, nothing)
    assert [each[0] for each in got] == expected
    # an overflow elsewhere makes this rank's scaler back off too
    skipped = world(2).run(trained, kind, False, True, (3,), (), None, ((0, 3),))
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
    rank = dist.get_rank()
    model = models.mlp()
    optimizer = pride.DistributedLion(model.parameters(), 1e-2, weight_decay=0.1, bucket_size=64)
    scaler = Scaler(enabled=False)
    for step in range(6):
        optimizer.zero_grad(set_to_none=True)
        x, y = models.batch(rank, step)
        torch.nn.functional.cross_entropy(model(x), y).backward()
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
    model = models.mlp()
    optimizer = pride.DistributedLion(model.parameters(), 1e-2, overlap=True, bucket_size=64,
                                      timeout=TIMEOUT)
    scaler = KINDS[kind](init_scale=4.0)
    try:
        with cpu_kernels():
            for step in range(6):
                optimizer.zero_grad(set_to_none=True)
                x, y = models.batch(rank, step)
                loss = torch.nn.functional.cross_entropy(model(x), y)
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


# --- Without a scaler. ----------------------------------------------------------------------------


def not_finite(policy, overlap, value, culprit, recover=False):
    """Step 3 has a NaN or Inf on one rank: (text of the error, weights, steps, skipped)."""
    rank = dist.get_rank()
    model = models.mlp()
    optimizer = pride.DistributedLion(model.named_parameters(), 1e-2, weight_decay=0.1,
                                      overlap=overlap, bucket_size=64, on_non_finite=policy,
                                      timeout=TIMEOUT)
    texts, untouched = [], None
    for step in range(6):
        if step == 3:
            saved = ({k: v.clone() for k, v in model.state_dict().items()}, optimizer.state_dict())
            before = models.bits(model.parameters())
        optimizer.zero_grad(set_to_none=True)
        x, y = models.batch(rank, step)
        if step == 3 and rank == culprit:
            x[2, 5] = value
        try:
            torch.nn.functional.cross_entropy(model(x), y).backward()  # overlap begins the step
            optimizer.step()
        except (pride.NonFiniteGradient, pride.InvalidArgument) as error:
            texts.append((type(error).__name__, str(error)))
            if recover:
                model.load_state_dict(saved[0])
                optimizer.load_state_dict(saved[1])
        if step == 3:
            untouched = models.bits(model.parameters()) == before
    if not texts or recover:
        optimizer.check_replicas()
    traffic = optimizer.traffic()
    result = whole(model, optimizer)
    optimizer.close()
    return texts, untouched, (traffic["steps"], traffic["skipped"]), result


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("n", [1, 3])
def test_a_nan_on_one_rank_raises_on_all(world, n, overlap):
    results = world(n).run(not_finite, "raise", overlap, float("nan"), n - 1)
    assert len({texts[0] for texts, _, _, _ in results}) == 1
    for texts, _, counts, _ in results:
        kinds = [kind for kind, _ in texts]
        assert kinds[0] == "NonFiniteGradient" and len(texts) == 3
        assert texts[0][1].startswith("step 4: NaN or Inf in the gradient of '"), texts[0]
        assert texts[0][1].endswith(f"on rank {n - 1}"), texts[0]
        assert all("load a state to go on" in text for _, text in texts[1:]), texts
        assert counts == (3, 0)


@pytest.mark.parametrize("overlap", [False, True])
def test_after_a_nan_a_loaded_state_goes_on_as_if_the_step_had_not_been(world, overlap):
    results = world(2).run(not_finite, "raise", overlap, float("inf"), 0, True)
    expected = world(2).run(trained, None, False, True, (), (3,))
    for (texts, untouched, counts, result), other in zip(results, expected):
        assert len(texts) == 1 and untouched and counts == (5, 0)
        assert result == other[0]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
@pytest.mark.parametrize("n", [1, 3])
def test_a_step_that_is_not_finite_is_skipped_on_all(world, n, value, overlap):
    results = world(n).run(not_finite, "skip", overlap, value, 0)
    assert len({result[0] for _, _, _, result in results}) == 1
    for texts, untouched, counts, (weights, _) in results:
        assert texts == [] and untouched and counts == (5, 1)
        assert b"\x00\x00\xc0\x7f" not in weights
