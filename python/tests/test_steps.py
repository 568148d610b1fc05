# Steps: replicas, and equality with Algorithm 1 written in torch.
# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
import torch.distributed as dist

import models
import pride

METHODS = ["dlion-vote", "dlion-avg", "lion-cub", "lion", "adamw", "terngrad", "onebit-adam",
           "signsgd-ef", "dgc", "graddrop", "signum-vote", "sgdm"]


def trained(method, overlap=False, **kwargs):
    model, optimizer = models.make(method, overlap=overlap, **kwargs)
    models.train(model, optimizer, 6)
    traffic = optimizer.traffic()
    return models.ended(model, optimizer), traffic


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("method", METHODS)
def test_replicas_are_equal_and_overlap_changes_no_bit(world, method, n):
    plain = world(n).run(trained, method)
    assert len({b for b, _ in plain}) == 1
    overlapped = world(n).run(trained, method, True)
    assert {b for b, _ in overlapped} == {plain[0][0]}
    assert plain[0][0] != models.bits(models.mlp().parameters())


def test_traffic_is_the_stated_cost(world):
    for _, traffic in world(4).run(trained, "dlion-vote"):
        assert traffic["cost_exact"]
        assert traffic["last_step"]["bytes_sent"] == traffic["cost_bytes"]
        assert traffic["bytes_sent"] == 6 * traffic["cost_bytes"]


# --- Votes with weights. --------------------------------------------------------------------------


def trained_with_weights(method, weights):
    return trained(method, vote_weight=weights[dist.get_rank()])


def test_a_rank_with_most_of_the_weight_decides_every_vote(world):
    alone = world(1).run(trained, "dlion-vote")[0][0]
    weighted = world(2).run(trained_with_weights, "dlion-vote", (7, 3))
    equal = world(2).run(trained_with_weights, "dlion-vote", (7, 7))
    assert {b for b, _ in weighted} == {alone}
    assert {b for b, _ in equal} == {b for b, _ in world(2).run(trained, "dlion-vote")} != {alone}


def test_traffic_with_weights_is_the_stated_cost(world):
    for _, traffic in world(2).run(trained_with_weights, "dlion-avg", (400, 1)):
        assert traffic["last_step"]["bytes_sent"] == traffic["cost_bytes"]


@pytest.mark.parametrize("method, weights, text", [
    ("dlion-vote", (1, 0), "vote_weight = 0"),
    ("dlion-vote", (1, 65536), "vote_weight = 65536"),
    ("dlion-vote", (2.5, 1), "vote_weight = 2.5"),
    ("dlion-avg", (65535, 1), "at most 65535"),
    ("lion", (1, 2), "lion has no vote weights, given are 1, 2")])
def test_weights_that_cannot_be_used_are_refused_on_all_ranks(world, method, weights, text):
    for kind, message in world(2).errors(trained_with_weights, method, weights):
        assert kind is pride.InvalidArgument and text in message


# --- Algorithm 1 of Liu et al. (arXiv:2404.00438) in torch, written from the paper. ------------------


def algorithm_1(x, grads, momenta, lr, beta1, beta2, decay):
    """One step; grads and momenta of all workers. With an odd number there are no ties."""
    votes = torch.stack([torch.sign(beta1 * m + (1 - beta1) * g) for m, g in zip(momenta, grads)])
    new = x - lr * (torch.sign(votes.sum(0)) + decay * x)
    return new, [beta2 * m + (1 - beta2) * g for m, g in zip(momenta, grads)], votes


def by_vote():
    rank = dist.get_rank()
    p = torch.nn.Parameter(torch.linspace(-1, 1, 1000))
    optimizer = pride.DistributedLion([p], lr=1e-2, weight_decay=0.1)
    for step in range(20):
        p.grad = torch.randn(1000, generator=torch.Generator().manual_seed(step * 8 + rank))
        optimizer.step()
    optimizer.close()
    return p.detach().clone()


@pytest.mark.parametrize("n", [1, 3])
def test_distributed_lion_is_algorithm_1_of_the_paper(world, n):
    x = torch.linspace(-1, 1, 1000)
    momenta = [torch.zeros(1000) for _ in range(n)]
    near = torch.zeros(1000, dtype=torch.bool)  # a blend that rounding may bring to either sign
    for step in range(20):
        grads = [torch.randn(1000, generator=torch.Generator().manual_seed(step * 8 + r))
                 for r in range(n)]
        for m, g in zip(momenta, grads):
            blend = 0.9 * m + 0.1 * g
            near |= blend.abs() < 1e-6 * (0.9 * m.abs() + 0.1 * g.abs())
        x, momenta, _ = algorithm_1(x, grads, momenta, 1e-2, 0.9, 0.99, 0.1)
    assert near.sum() < 10
    for got in world(n).run(by_vote):
        assert torch.allclose(got[~near], x[~near], atol=1e-5, rtol=0)
