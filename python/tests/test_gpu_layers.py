# lab/experiments/gpu: gradients of several workers from one backward.
# SPDX-License-Identifier: Apache-2.0
#
# Oracle: torch's own backward, one worker after the other, in double.
import pathlib
import sys

import pytest
import torch
from torch.nn import functional as F

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "lab" / "experiments" / "gpu"))

pytestmark = pytest.mark.skipif(int(torch.__version__.split(".")[0]) < 2,
                                reason=f"torch {torch.__version__}: the experiments need 2.x")
N, BATCH = 3, 4


def vit():
    import nets

    pixels = torch.randint(256, (N * BATCH, 3, 32, 32), dtype=torch.uint8)
    return nets.ViT(2, 2, 24), (pixels, torch.randint(10, (N * BATCH,)))


def gpt():
    import nets

    return nets.GPT(2, 2, 24, 16, 40), (torch.randint(40, (N * BATCH, 12)),)  # shorter than the context


@pytest.mark.parametrize("make", [vit, gpt])
def test_one_backward_gives_the_gradients_of_each_worker(make):
    import training

    torch.manual_seed(5)
    model, inputs = make()
    model = model.double()
    with torch.no_grad():
        for p in model.parameters():  # norms and biases too have values of their own
            p += 0.1 * torch.randn_like(p)
    loss, together = training.Gradient(model, "eager", inputs, N)(inputs)
    expected = 0.0
    for worker in range(N):
        mine = [x[worker * BATCH:(worker + 1) * BATCH] for x in inputs]
        of_one = model(*mine)
        expected += of_one.item()
        of_one.backward()
        for (name, p), grads in zip(model.named_parameters(), together):
            assert grads.shape == (N, *p.shape)
            assert (grads[worker] - p.grad).abs().max() < 1e-6 * p.grad.abs().max(), name
            p.grad = None
    assert abs(loss.item() - expected) < 1e-6


def test_patches_are_a_convolution():
    import layers

    torch.manual_seed(5)
    patches, pixels = layers.Patches(3, 7, 4), torch.randn(2, 3, 16, 16)
    kernel = patches.weight.view(7, 3, 4, 4)
    expected = F.conv2d(pixels, kernel, patches.bias, 4).flatten(2).transpose(1, 2)
    assert torch.allclose(patches(pixels), expected, atol=1e-6)


def test_frozen_parameters_have_no_gradient():
    import training

    model, inputs = gpt()
    for name, p in model.named_parameters():
        p.requires_grad_("blocks.1.up" in name)
    gradient = training.Gradient(model, "eager", inputs, N)
    assert [g.shape[0] for g in gradient(inputs)[1]] == [N, N]


def test_a_layer_without_a_rule_is_named():
    import training

    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.PReLU())
    gradient = training.Gradient(model, "eager", (torch.ones(2, 3),), 2)
    with pytest.raises(TypeError, match="no rule for Linear, PReLU"):
        gradient((torch.ones(2, 3),))


def test_what_is_measured_as_faster_runs(monkeypatch):
    import plans
    import training

    model, (windows,) = gpt()
    run = next(r for r in plans.runs_of("lm-30m", True) if r.label == "dlion-vote")
    batches = [(windows[:2],), (windows[2:4],)]
    for seconds, expected in (({1: 3.0, 2: 1.0}, 2), ({1: 1.0, 2: 3.0}, 1)):
        monkeypatch.setattr(training, "seconds_of", lambda gradient, *_, s=seconds: s[gradient.n])
        assert training.fastest(model, run, batches, torch.device("cpu")).n == expected
    run.at_once = 2
    assert training.fastest(model, run, batches, torch.device("cpu")).n == 2
    run.at_once = 3
    with pytest.raises(ValueError, match="3 workers at once, which does not divide 2"):
        training.fastest(model, run, batches, torch.device("cpu"))


def test_workers_at_once_fit_into_memory_and_divide_all():
    import plans
    import training

    run = next(r for r in plans.runs_of("cifar") if r.workers == 32 and r.label == "dlion-vote")
    assert training.most_at_once(run) == 32  # 32 x 32 images of 64 patches are 65,536
    run.batch = 33
    assert training.most_at_once(run) == 16
    assert all(training.most_at_once(r) == 1 for r in plans.runs_of("lm-124m") if "h" in r.options)
