# Parameters on a GPU. Skipped where there is none.
# SPDX-License-Identifier: Apache-2.0
#
# Oracle: the same run on the CPU with the same gradients. Steps are made on the host in both, so
# that they agree to the bit.
import copy

import pytest
import torch
import torch.distributed as dist

import models
import pride

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
METHODS = ["dlion-vote", "adamw", "lion-cub", "local-vote"]


def gradients(model, step):
    """This rank's, in the type of the parameters: multiples of 1/8, exact in all of them."""
    g = torch.Generator().manual_seed(1000 * dist.get_rank() + step)
    return [torch.randint(-16, 17, p.shape, generator=g).to(p.dtype) / 8
            for p in model.parameters()]


def backward(model, slopes):
    """A loss with these gradients."""
    sum((p * s.to(p.device)).sum() for p, s in zip(model.parameters(), slopes)).backward()


def values(model):
    return [p.detach().cpu().clone() for p in model.parameters()]


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b))


def compared(method, dtype, overlap):
    host = models.mlp(dtype=dtype)
    gpu = copy.deepcopy(host).cuda()
    both = [(model, models.make(method, model, weight_decay=0.1, overlap=overlap)[1])
            for model in (host, gpu)]
    for step in range(6):
        slopes = gradients(host, step)
        for model, optimizer in both:
            optimizer.zero_grad()
            backward(model, slopes)
            optimizer.step()
    assert all(p.is_cuda for p in gpu.parameters())
    both[1][1].check_replicas()
    return same(values(host), values(gpu))


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("method", METHODS)
def test_steps_are_those_of_the_cpu(world, method, dtype, overlap):
    assert world(2).run(compared, method, dtype, overlap) == [True, True]


def resumed():
    model, optimizer = models.make("dlion-vote", models.mlp().cuda())

    def steps(model, optimizer, first):
        for step in range(first, first + 3):
            optimizer.zero_grad()
            backward(model, gradients(model, step))
            optimizer.step()
        return values(model)

    steps(model, optimizer, 0)
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    through = steps(model, optimizer, 3)
    again, optimizer = models.make("dlion-vote", models.mlp(seed=5).cuda())
    again.load_state_dict(weights)
    optimizer.load_state_dict(state)
    return same(steps(again, optimizer, 3), through)


def test_a_resumed_run_is_the_same_run(world):
    assert world(2).run(resumed) == [True, True]


def scaled():
    """Half precision under autocast with a scaler; the last rank overflows once."""
    model = models.mlp().cuda()
    optimizer = models.make("dlion-vote", model)[1]
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0 ** 10)
    losses = []
    for step in range(30):
        optimizer.zero_grad()
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


def test_gradients_are_clipped_where_they_are(world):
    assert world(2).run(clipped) == [True, True]


def test_a_plan_measures_this_gpu():
    network = dict(params=10_000_000, backward=0.1, bandwidth=1e9, latency=1e-5)
    methods = ["lion", "dlion-vote", "dlion-muon"]
    lion, vote, muon = pride.plan(**network, methods=methods, device="cuda")
    assert lion.bottleneck == "bandwidth"
    assert 0.1 < vote.step_s < lion.step_s
    assert 0.1 < muon.step_s < lion.step_s  # Newton-Schulz takes milliseconds, on the host a second
