# pride.ddp_hook(): DistributedDataParallel's gradients as levels of few bits.
# SPDX-License-Identifier: Apache-2.0
#
# Oracle: rounding to levels in torch, block by block, and the mean in rank order.
import copy
import gc
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import pride
from models import Branches, backward_of_branches, taken
from processes import PATIENCE, SOON, environment, start_group
from scalers import Scaler, cpu_kernels

ACTS = {"exit": lambda: os._exit(3), "kill": lambda: os.kill(os.getpid(), signal.SIGKILL)}


def in_levels(values, bits):
    """Multiples of a bfloat16 scale for each 64 values, in float32."""
    largest = 2 ** (bits - 1) - 1
    blocks = torch.nn.functional.pad(values.float(), (0, -len(values) % 64)).view(-1, 64)
    most = blocks.abs().max(1, keepdim=True).values
    scale = (most / largest).bfloat16().float().masked_fill(most < 2.0 ** -100, 0)
    levels = torch.where(scale == 0, torch.zeros_like(blocks), (blocks * (1 / scale)).round())
    return (levels.clamp(-largest, largest) * scale).flatten()[:len(values)]


def gradient_of(rank, n, dtype=torch.float32):
    made = torch.Generator().manual_seed(rank)
    size = torch.randn(n, generator=made).exp()
    return (torch.randn(n, generator=made) * size).to(dtype)


class Line(torch.nn.Module):
    """One parameter, whose gradient is the input."""

    def __init__(self, n, dtype=torch.float32):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(n, dtype=dtype))

    def forward(self, x):
        return (self.w * x).sum()


class Bucket:
    """As DDP's."""

    def __init__(self, values, index=0):
        self.values, self.number = values, index

    def buffer(self):
        return self.values

    def parameters(self):
        return [self.values]

    def index(self):
        return self.number


def hooked(model, bits=4, lanes=2, timeout=None, **options):
    model = DistributedDataParallel(model, **options)
    return model, pride.ddp_hook(model, bits, lanes=lanes, timeout=timeout)


def means(n, bits, dtype):
    model, hook = hooked(Line(n), bits)
    if dtype != torch.float32:  # Gloo and its DDP may lack it
        return [hook.start(Bucket(gradient_of(dist.get_rank(), n, dtype))).wait() for _ in range(3)][2]
    for _ in range(3):
        model.zero_grad()
        model(gradient_of(dist.get_rank(), n, dtype)).backward()
    return model.module.w.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bits", [8, 4, 2])
def test_gradients_are_the_mean_of_rounded_ones_bit_for_bit(world, bits, dtype):
    for ranks, n in ((1, 100), (2, 1000), (3, 64 * 7 + 1)):
        rows = [in_levels(gradient_of(r, n, dtype), bits) for r in range(ranks)]
        expected = in_levels(sum(rows[1:], rows[0]) / ranks, bits).to(dtype)
        for mean in world(ranks).run(means, n, bits, dtype):
            assert mean.dtype == dtype and torch.equal(mean, expected)


def with_all_bits(bits):
    n, rank, size = 1000, dist.get_rank(), dist.get_world_size()
    return means(n, bits, torch.float32), sum(gradient_of(r, n) for r in range(size)) / size, rank


def test_32_bits_are_the_plain_mean(world):
    for mean, expected, _ in world(3).run(with_all_bits, 32):
        assert torch.allclose(mean, expected, rtol=1e-6, atol=1e-6)


def branches(**options):
    """Gradients of each step, of a model with unused parameters and many buckets, whose second half of
    the steps accumulates two backwards; DDP rebuilds its buckets after the first step."""
    torch.manual_seed(1)
    unused = not options.get("static_graph")
    model, hook = hooked(Branches(), 8, find_unused_parameters=unused, bucket_cap_mb=0.001, **options)
    grads = []
    for step in range(6):
        model.zero_grad(set_to_none=True)
        path = taken(0, 0) if not unused else taken(dist.get_rank(), step)
        if step >= 3:
            with model.no_sync():
                backward_of_branches(model, step, path)
        backward_of_branches(model, step, path)
        grads.append([None if p.grad is None else p.grad.clone() for p in model.parameters()])
    assert hook.traffic()["bytes_sent"] > 0
    return grads


@pytest.mark.parametrize("options", [{}, {"gradient_as_bucket_view": True}, {"static_graph": True}],
                         ids=str)
def test_all_forms_of_ddp_have_equal_gradients_on_all_ranks(world, options):
    first, *others = world(3).run(branches, **options)
    assert any(g is not None and g.abs().sum() > 0 for grads in first for g in grads)
    for other in others:
        for step, (mine, theirs) in enumerate(zip(first, other)):
            for a, b in zip(mine, theirs):
                assert (a is None) == (b is None) and (a is None or torch.equal(a, b)), step


def trained(bits):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.Tanh(), torch.nn.Linear(50, 1))
    model = DistributedDataParallel(net)
    if bits is not None:
        pride.ddp_hook(model, bits)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(60):
        x = torch.randn(32, 20, generator=data)
        loss = (model(x)[:, 0] - x[:, :3].sum(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item(), torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("bits, factor", [(8, 1.2), (4, 1.5), (2, 2.5)])
def test_torchs_optimizer_learns_as_without_it(world, bits, factor):
    (plain, _), _ = world(2).run(trained, None)
    (loss, weights), (_, theirs) = world(2).run(trained, bits)
    assert torch.equal(weights, theirs)
    assert loss < factor * plain


def not_finite(bad, dtype):
    _, hook = hooked(Line(10))
    g = gradient_of(dist.get_rank(), 300, dtype)
    if dist.get_rank() == 1:
        g[77] = bad
    first = hook.start(Bucket(g)).wait()
    second = hook.start(Bucket(gradient_of(dist.get_rank(), 300, dtype))).wait()
    return first.isnan().all().item(), second.isfinite().all().item()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_gradient_that_is_not_finite_is_nan_on_all_ranks_and_the_next_is_none(world, bad, dtype):
    assert world(2).run(not_finite, bad, dtype) == [(True, True)] * 2


def scaled():
    """Six steps, with an overflow on the last rank in the third: scales, weights."""
    torch.manual_seed(0)
    model, _ = hooked(torch.nn.Linear(20, 8), 8)
    optimizer, scaler, seen = torch.optim.AdamW(model.parameters(), lr=1e-2), Scaler(init_scale=1024.0), []
    with cpu_kernels():
        for step in range(6):
            optimizer.zero_grad()
            loss = model(gradient_of(step, 60).view(3, 20)).square().mean()
            if step == 2 and dist.get_rank() == dist.get_world_size() - 1:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            seen.append((scaler.get_scale(), model.module.weight.detach().clone()))
    return seen


def test_an_overflow_on_one_rank_skips_the_step_on_all(world):
    mine, theirs = world(2).run(scaled)
    assert [scale for scale, _ in mine] == [1024.0] * 2 + [512.0] * 4
    for step, ((scale, a), (their_scale, b)) in enumerate(zip(mine, theirs)):
        assert scale == their_scale and torch.equal(a, b)
        assert torch.equal(a, mine[step - 1][1]) == (step == 2)


def bytes_sent(n, bits):
    model, hook = hooked(Line(n), bits)
    for _ in range(2):
        model(gradient_of(dist.get_rank(), n)).backward()
    return hook.traffic()["bytes_sent"]


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_bytes_are_those_of_the_wire_format(world, bits):
    ranks, n = 3, 1000
    words = [16 * j // ranks for j in range(ranks + 1)]
    frames = [64 + 8 + 8 * -(-(b - a) // 4) + 8 * bits * (b - a) for a, b in zip(words, words[1:])]
    expected = [2 * (sum(frames) - frames[r] + (ranks - 1) * frames[r]) for r in range(ranks)]
    assert world(ranks).run(bytes_sent, n, bits) == expected


class Pair(torch.nn.Module):
    """Two small parameters, whose gradients are 100 times apart."""

    def __init__(self):
        super().__init__()
        self.a, self.b = (torch.nn.Parameter(torch.zeros(40)) for _ in range(2))

    def forward(self, x):
        return 100 * (self.a * x).sum() + (self.b * x).sum()


def pair():
    model, _ = hooked(Pair(), 4)
    model(1 + torch.arange(40) / 40).backward()
    return model.module.a.grad / 100, model.module.b.grad


def test_parameters_of_a_bucket_have_scales_of_their_own(world):
    for a, b in world(2).run(pair):
        assert (b > 0.5).all() and torch.allclose(a, b, atol=0.3)


def other(name):
    options = {"bits": 4, "lanes": 2}
    options[name] *= 1 + dist.get_rank()
    pride.ddp_hook(DistributedDataParallel(Line(10)), **options)


@pytest.mark.parametrize("name, values", [("bits", (4, 8)), ("lanes", (2, 4))])
def test_ranks_with_other_arguments_are_told(world, name, values):
    for kind, text in world(2).errors(other, name):
        assert kind is pride.InvalidArgument
        assert f"{name} is {values[0]} on rank(s) 0, {values[1]} on rank(s) 1" in text


def bad_arguments():
    model = DistributedDataParallel(Line(10))
    texts = []
    for arguments, options in (((Line(10),), {}), ((model, 3), {}), ((model,), {"lanes": 0}),
                               ((model,), {"timeout": -1}), ((model, 4.0), {}), ((model, [4]), {}),
                               ((hooked(Line(10))[0],), {})):
        try:
            pride.ddp_hook(*arguments, **options)
        except pride.InvalidArgument as error:
            texts.append(str(error))
    return texts


def test_bad_arguments_are_named(world):
    for texts in world(1).run(bad_arguments):
        assert [next(w for w in ("model", "bits", "lanes", "timeout") if w in t) for t in texts] == [
            "model", "bits", "lanes", "timeout", "bits", "bits", "model"]


def refused(sparse):
    """Of rank 0; rank 1 has what hooks take."""
    _, hook = hooked(Line(10))
    bad = torch.ones(10).to_sparse() if sparse else torch.ones(10, dtype=torch.float64)
    hook.start(Bucket(bad if dist.get_rank() == 0 else torch.ones(10))).wait()


@pytest.mark.parametrize("sparse", [False, True])
def test_gradients_that_are_refused_on_one_rank_end_all(fresh_world, sparse):
    for _, text in fresh_world(2).errors(refused, sparse):
        assert "gradients are torch." in text and "no sign of life" not in text, text


def victim(act):
    model, _ = hooked(Line(300), timeout=60)
    for step in range(6):
        if step == 3 and dist.get_rank() == 1:
            ACTS[act]()
        model(gradient_of(step, 300)).backward()


@pytest.mark.parametrize("act", ["exit", "kill"])
def test_a_rank_that_dies_is_named_in_backward(job, act):
    job = job(3, victim, act)
    for rank in (0, 2):
        text, _, seconds = job.result(rank)
        assert "gradient mean, call 4" in text and "rank(s) 1 gave no sign of life" in text, text
        assert seconds < SOON + 10
    assert job.result(1) is None
    job.close()


def ends_while_busy():
    """Rank 1 never comes."""
    _, hook = hooked(Line(10))
    if dist.get_rank() == 0:
        hook.start(Bucket(torch.ones(10)))
        time.sleep(0.5)
        sys.exit(7)
    hook.start(Bucket(torch.ones(10), 1)).wait()


def test_a_process_that_ends_while_a_lane_is_busy_does_not_abort():
    file = pathlib.Path(tempfile.mkdtemp()) / "store"
    program = "import sys, test_ddp_hook as t; t.alone(int(sys.argv[1]), sys.argv[2])"
    ranks = [subprocess.Popen([sys.executable, "-c", program, str(r), str(file)], env=environment(),
                              stderr=subprocess.PIPE, text=True) for r in range(2)]
    texts = [rank.communicate(timeout=PATIENCE)[1] for rank in ranks]
    assert ranks[0].returncode == 7, texts[0]
    assert ranks[1].returncode == 1 and "CommError" in texts[1], texts[1]


def alone(rank, file):
    start_group(rank, 2, f"file://{file}")
    ends_while_busy()


def several_at_once():
    """Buckets of two lanes overtake each other; a lane keeps its order."""
    hook = pride.ddp_hook(DistributedDataParallel(Line(10)), 8, lanes=2)
    rank = dist.get_rank()
    futures = [hook.start(Bucket(gradient_of(10 * rank + i, 5000 if i % 2 else 70), i))
               for i in range(8)]
    return [future.wait().clone() for future in futures]


def test_buckets_of_several_lanes(world):
    for means_of in world(2).run(several_at_once):
        for i, mean in enumerate(means_of):
            n = 5000 if i % 2 else 70
            rows = [in_levels(gradient_of(10 * r + i, n), 8) for r in range(2)]
            assert torch.equal(mean, in_levels((rows[0] + rows[1]) / 2, 8)), i


def copied():
    model, hook = hooked(Line(10))
    other = copy.deepcopy(model)
    model(torch.ones(10)).backward()
    return other.module.w.grad is None and hook.traffic()["last_step"]["bytes_sent"] > 0


def test_a_hooked_model_can_be_copied(world):
    assert world(2).run(copied) == [True, True]


def threads_left():
    before = threading.active_count()
    model, hook = hooked(Line(10), lanes=3)
    model(torch.ones(10)).backward()
    during = threading.active_count()
    del model, hook
    gc.collect()
    until = time.monotonic() + 60
    while threading.active_count() > before and time.monotonic() < until:
        time.sleep(0.01)
    return during - before, threading.active_count() - before


def test_threads_end_with_the_model(world):
    for during, after in world(1).run(threads_left):
        assert during >= 3 and after <= 0
