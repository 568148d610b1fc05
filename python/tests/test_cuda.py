# Parameters on a GPU. Skipped where there is none.
# SPDX-License-Identifier: Apache-2.0
#
# Oracle: the same run on the CPU with the same gradients. Bits are equal, except where torch
# multiplies matrices. PRIDE_TEST_FAKE_GPU=1 takes the driver that PRIDE_CUDA_DRIVER names in place of
# a GPU, as far as torch's CPU can play one.
import contextlib
import copy
import os
import threading

import pytest
import torch
import torch.distributed as dist

import fake_gpu
import models
import pride

FAKE = os.environ.get("PRIDE_TEST_FAKE_GPU") == "1"
if FAKE:
    fake_gpu.install()
pytestmark = pytest.mark.skipif(not (FAKE or torch.cuda.is_available()), reason="no CUDA device")
real = pytest.mark.skipif(FAKE, reason="needs torch's CUDA")

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
METHODS = [method.name for method in pride.methods() if method.on_device]
WITH_PRODUCTS = {name for name in METHODS if "muon" in name}
LOCAL = {"local-vote", "local-muon", "local-ef", "diloco", "dsm"}
OVERLAPPED = [name for name in METHODS if name not in LOCAL]
SHAPES = [(130, 70), (33,), (9001,), (3, 5, 3, 3), (257, 16), (1,)]
LR = 1e-2


def on_gpu(module):
    """A copy on the GPU."""
    made = copy.deepcopy(module)
    return made if FAKE else made.cuda()


def synchronize():
    if FAKE:
        fake_gpu.synchronize()
    else:
        torch.cuda.synchronize()


def tensors(dtype=torch.float32):
    module = torch.nn.Module()
    for i, shape in enumerate(SHAPES):
        module.register_parameter(f"w{i}", models.parameter(i, *shape, dtype=dtype))
    return module


def gradients(dtype, step, rank=None):
    """This rank's, over many magnitudes, with zeros of both signs and denormals."""
    g = torch.Generator().manual_seed(1000 * (models.own_rank() if rank is None else rank) + step)
    made = []
    for shape in SHAPES:
        values = torch.randn(shape, generator=g)
        values *= 10.0 ** torch.randint(-4, 2, shape, generator=g)
        kind = torch.randint(16, shape, generator=g)
        values[kind == 0] = 0.0
        values[kind == 1] = -0.0
        values[kind == 2] *= 1e-38
        made.append(values.to(dtype))
    return made


def backward(module, slopes):
    """A loss with these gradients. Returns them: the fake GPU reads them later."""
    place = "cpu" if FAKE else next(module.parameters()).device
    sum((p * s.to(place)).sum() for p, s in zip(module.parameters(), slopes)).backward()
    return [p.grad for p in module.parameters()]


def values(module):
    synchronize()
    return [p.detach().cpu().clone() for p in module.parameters()]


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b))


def agree(method, ours, host, steps):
    """Equal bits; with products of matrices, nearly all signs."""
    if method not in WITH_PRODUCTS:
        return same(ours, host)
    apart = torch.cat([(a.float() - b.float()).abs().flatten() for a, b in zip(ours, host)])
    return apart.mean().item() < 0.02 * steps * LR


def options_of(method):
    return {"h": 2} if method in LOCAL else {}


def optimizer_of(method, module, run_on, **more):
    return models.make(method, module, lr=LR, weight_decay=0.1, bucket_size=4096, run_on=run_on,
                       **{"options": options_of(method), **more})[1]


def train(method, module, run_on, dtype, steps=6, workers=0, **more):
    """(parameters, state, bytes sent, hash) after some steps with an unused tensor in one of them."""
    optimizer = optimizer_of(method, module, run_on, **more,
                             **({"workers": workers} if workers else {}))
    held = []
    for step in range(steps):
        for worker in range(workers or 1):
            with optimizer.worker(worker) if workers else contextlib.nullcontext():
                optimizer.zero_grad(set_to_none=True)
                held.append(backward(module, gradients(dtype, step, worker if workers else None)))
                if step == 3 and not more.get("overlap"):
                    module.w1.grad = None
        optimizer.step()
    place = optimizer._parameters.slots[0].place.code  # pylint: disable=protected-access
    assert place == (run_on != "host"), f"{method} ran on place {place}"
    with optimizer.common_parameters():
        made = values(module)
    state = {(i, name): value.cpu().clone() for i, p in enumerate(module.parameters())
             for name, value in optimizer.state[p].items()}
    hashed, sent = optimizer.check_replicas(), optimizer.traffic()["bytes_sent"]
    optimizer.close()
    return made, state, sent, hashed


def compared(method, dtype, **more):
    host = tensors(dtype)
    gpu = on_gpu(host)
    wanted = train(method, host, "host", dtype, **more)
    made = train(method, gpu, "device", dtype, **more)
    assert FAKE or all(p.is_cuda for p in gpu.parameters())
    assert made[2] == wanted[2] or method in WITH_PRODUCTS and method in LOCAL
    if method not in WITH_PRODUCTS:
        assert made[1].keys() == wanted[1].keys()
        for key, value in wanted[1].items():
            assert torch.equal(made[1][key], value), (key, made[1][key], value)
        assert made[3] == wanted[3]
    return agree(method, made[0], wanted[0], 6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("method", METHODS)
def test_steps_are_those_of_the_cpu(world, method, dtype):
    assert world(2).run(compared, method, dtype) == [True, True]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("method", OVERLAPPED)
def test_overlapped_steps_are_those_of_the_cpu(world, method, dtype):
    assert world(2).run(compared, method, dtype, overlap=True) == [True, True]


@pytest.mark.parametrize("method", METHODS)
def test_virtual_workers_are_those_of_the_cpu(world, method):
    assert world(1).run(compared, method, torch.bfloat16, workers=3) == [True]


def test_a_momentum_in_bfloat16(world):
    options = {"momentum_dtype": "bfloat16"}
    assert world(2).run(compared, "dlion-vote", torch.bfloat16, options=options) == [True, True]


def resumed(method):
    """A run that is saved and loaded is the same run. Local steps are saved after an exchange."""
    module = on_gpu(tensors())
    held = []

    def steps(module, optimizer, first):
        for step in range(first, first + 4):
            optimizer.zero_grad(set_to_none=True)
            held.append(backward(module, gradients(torch.float32, step)))
            optimizer.step()
        return values(module)

    optimizer = optimizer_of(method, module, "device")
    steps(module, optimizer, 0)
    weights, state = copy.deepcopy(module.state_dict()), copy.deepcopy(optimizer.state_dict())
    through = steps(module, optimizer, 4)
    again = on_gpu(tensors())
    again.load_state_dict(weights)
    optimizer = optimizer_of(method, again, "device")
    optimizer.load_state_dict(state)
    return same(steps(again, optimizer, 4), through)


@pytest.mark.parametrize("method", ["dlion-vote", "adamw", "lion-cub", "signsgd-ef", "local-vote"])
def test_a_resumed_run_is_the_same_run(world, method):
    assert world(2).run(resumed, method) == [True, True]


def state_before_a_step():
    module = on_gpu(tensors())
    optimizer = optimizer_of("dlion-vote", module, "device")
    synchronize()
    return all(not value.any() for p in module.parameters() for name, value in optimizer.state[p].items()
               if name != "step")


def test_state_is_zero_before_the_first_step(world):
    assert world(2).run(state_before_a_step) == [True, True]


def scaled():
    """Half precision under autocast with a scaler; the last rank overflows once."""
    model = models.mlp().cuda()
    optimizer = models.make("dlion-vote", model)[1]
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0 ** 10)
    losses = []
    for step in range(30):
        optimizer.zero_grad(set_to_none=True)
        x, y = (t.cuda() for t in models.batch(step % 3))
        with torch.autocast("cuda", dtype=torch.float16):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        bad = step == 7 and dist.get_rank() == dist.get_world_size() - 1
        scaler.scale(loss * float("inf") if bad else loss).backward()
        before = values(model)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
        assert same(before, values(model)) == (step == 7), step
    optimizer.check_replicas()
    return sum(losses[-3:]) < sum(losses[:3])


@real
def test_a_scaler_skips_a_step_on_all_ranks(world):
    assert world(2).run(scaled) == [True, True]


def clipped():
    model, optimizer = models.make("dlion-vote", models.mlp().cuda())
    x, y = (t.cuda() for t in models.batch(0))
    torch.nn.functional.cross_entropy(model(x), y).backward()
    before = pride.clip_grad_norm_(optimizer, 1e-3)
    after = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return float(before) > 1e-3 >= float(after) * (1 - 1e-5) and pride.mean_over_ranks(before) > 0


@real
def test_gradients_are_clipped_where_they_are(world):
    assert world(2).run(clipped) == [True, True]


def trained(module, optimizer, forward, steps=8):
    losses = []
    for step in range(steps):
        optimizer.zero_grad(set_to_none=True)
        x, y = (t.cuda() for t in models.batch(step % 2))
        loss = torch.nn.functional.cross_entropy(forward(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    optimizer.check_replicas()
    return losses[-1] < losses[0]


def compiled():
    model = models.mlp().cuda()
    return trained(model, models.make("dlion-vote", model)[1], torch.compile(model))


@real
def test_a_compiled_model(world):
    assert world(1).run(compiled) == [True]


def beside_the_default_stream():
    """All of a step in a stream of the caller's own, whose work is not waited for."""
    made = []
    for own in (False, True):
        module = on_gpu(tensors())
        optimizer = optimizer_of("dlion-vote", module, "device")
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()) if own else contextlib.nullcontext():
            for step in range(5):
                optimizer.zero_grad(set_to_none=True)
                busy = torch.randn(4096, 4096, device="cuda")
                for _ in range(20):  # gradients are late
                    busy = busy @ busy * 1e-4
                slopes = [s.cuda() + 0 * busy[0, 0] for s in gradients(torch.float32, step)]
                backward(module, slopes)
                optimizer.step()
                for p in module.parameters():  # and results are read at once
                    p.data.mul_(1.0)
        made.append(values(module))
    return same(*made)


@real
def test_streams_of_the_caller(world):
    assert world(2).run(beside_the_default_stream) == [True, True]


def captured():
    """Forward and backward from a CUDA graph; a step during capture is refused and harms nothing."""
    model = models.mlp().cuda()
    optimizer = models.make("dlion-vote", model)[1]
    x, y = (t.cuda() for t in models.batch(0))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            optimizer.zero_grad(set_to_none=True)
            torch.nn.functional.cross_entropy(model(x), y).backward()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    refused = False
    with torch.cuda.graph(graph):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        try:
            optimizer.step()
        except pride.Error:
            refused = True
    losses = []
    for _ in range(8):
        graph.replay()
        losses.append(loss.item())
        optimizer.step()
    optimizer.check_replicas()
    return refused and losses[-1] < losses[0]


@real
def test_graphs_have_forward_and_backward_but_no_step(world):
    assert world(2).run(captured) == [True, True]


def beside_a_full_cache():
    """torch's allocator has kept nearly all memory, in blocks of which it needs few."""
    free, _ = torch.cuda.mem_get_info()
    blocks = [torch.empty(int(0.95 * free) // 64, dtype=torch.uint8, device="cuda") for _ in range(64)]
    del blocks
    left, _ = torch.cuda.mem_get_info()
    p = torch.nn.Parameter(torch.ones(int(1.2 * left) // 4, device="cuda"))
    optimizer = pride.DistributedLion([p], lr=LR, weight_decay=0.0, run_on="device", bucket_size=1 << 26)
    p.grad = torch.ones_like(p)
    optimizer.step()
    good = bool((p == 1 - torch.tensor(LR)).all())
    optimizer.close()
    return good and left < 0.2 * free


@real
def test_memory_that_torch_has_kept(fresh_world):
    assert fresh_world(1).run(beside_a_full_cache) == [True]


def in_threads():
    """Two models in two threads share a GPU, and have the bits of one after the other."""
    def one(seed, made):
        group = groups[seed]
        module = on_gpu(tensors())
        optimizer = models.make("dlion-vote", module, run_on="device", process_group=group)[1]
        held = []
        for step in range(20):
            optimizer.zero_grad(set_to_none=True)
            held.append(backward(module, gradients(torch.float32, 100 * seed + step)))
            optimizer.step()
        made[seed] = values(module)

    groups = [dist.new_group() for _ in range(2)]
    alone, beside = {}, {}
    for seed in range(2):
        one(seed, alone)
    threads = [threading.Thread(target=one, args=(seed, beside)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(beside) == 2 and all(same(alone[seed], beside[seed]) for seed in range(2))


@real
def test_two_optimizers_in_two_threads(fresh_world):
    assert fresh_world(1).run(in_threads) == [True]


@real
def test_a_plan_measures_this_gpu():
    network = dict(params=10_000_000, backward=0.1, bandwidth=1e9, latency=1e-5)
    methods = ["lion", "dlion-vote", "dlion-muon"]
    lion, vote, muon = pride.plan(**network, methods=methods, device="cuda")
    assert lion.bottleneck == "bandwidth"
    assert 0.1 < vote.step_s < lion.step_s
    assert 0.1 < muon.step_s < lion.step_s  # Newton-Schulz takes milliseconds, on the host a second
