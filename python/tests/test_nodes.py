# Nodes average, nodes vote (node_group=): the steps.
# SPDX-License-Identifier: Apache-2.0
#
# Oracle: one rank a node, with the mean gradient of the node's ranks, bit for bit.
import pytest
import torch
import torch.distributed as dist

import models
from nodes import (METHODS, STEPS, compare, ending, groups_of, make, model_of,
                   one_rank_a_node, train)
import pride
from pride import _nodes


@pytest.mark.parametrize("local", [1, 2, 3])
@pytest.mark.parametrize("method, options", METHODS)
def test_nodes_take_the_steps_of_one_rank_with_the_mean_gradient(world, local, method, options):
    results, expected = compare(world, 2, local, method, options)
    if local == 1:
        return
    for node in range(2):
        of_node = results[node * local:(node + 1) * local]
        assert sum(held for held, _, _ in of_node) == expected[node][0]
        assert max(held for held, _, _ in of_node) <= 0.75 * expected[node][0]


# What an owner sends of a tensor: a frame for each bucket of 64 coordinates, with a header of 64
# bytes; or its values.
RESULTS = {"dlion-vote": lambda n: -(-n // 64) * (64 + 8 + 8),
           "dlion-avg": lambda n: -(-n // 64) * (64 + 8 + 2 * 8),  # users; two planes
           "adamw": lambda n: 4 * n}


@pytest.mark.parametrize("method", RESULTS)
def test_bytes_between_nodes_are_the_cost_of_the_share(world, method):
    """And inside: all gradients but the own share to their owners, the share's results to all
    others."""
    for more, per_step in (({}, 0), ({"on_non_finite": "skip"}, 2 * 2 * 8)):  # and two numbers
        check_bytes(compare(world, 2, 3, method, None, **more)[0], RESULTS[method], per_step)


def check_bytes(results, bytes_of, more):
    sizes = sorted(p.numel() for p in model_of().parameters())
    d, results_of_all = sum(sizes), sum(map(bytes_of, sizes))
    shares = []
    for _, traffic, (_, state) in results[:3]:
        own = {i: len(data) // 4 for (i, key), data in state.items()
               if not key.startswith("step")}.values()
        share, sent = sum(own), sum(map(bytes_of, own))
        shares.append(share)
        steps = traffic["steps"]
        assert traffic["bytes_sent"] == steps * traffic["cost_bytes"]
        assert traffic["cost_bytes"] < d or bytes_of(d) == 4 * d
        # and one flag for each tensor
        flags = 2 * (1 + len(sizes)) + more
        assert traffic["node_bytes_sent"] == steps * (4 * (d - share) + 2 * sent + flags)
        assert traffic["node_bytes_received"] == steps * (
            4 * 2 * share + results_of_all - sent + flags)
        assert traffic["last_step"]["node_bytes_sent"] * steps == traffic["node_bytes_sent"]
    assert sum(shares) == d


def skips():
    """The second step. (Bytes inside the node, float32 values of gradients that it sends.)"""
    model, optimizer = make("dlion-vote", node_group=groups_of(2), on_non_finite="skip")
    own = sum(slot.n for slot in optimizer._parameters.slots)
    sent = []
    for step in range(3):
        train(model, optimizer, 1, step, nan=1)
        sent.append(optimizer.traffic()["last_step"]["node_bytes_sent"])
    ending(model, optimizer)
    return sent, sum(p.numel() for p in model.parameters()) - own


def test_a_skipped_step_sends_no_results(world):
    for sent, gradients in world(4).run(skips):
        assert sent[1] == 4 * gradients + 1 + 6 + 2 * 8 < sent[0] == sent[2]


def in_another_order(local, nodes=True):
    """A parameter that libpride cannot read where it lies, on its owner and on the others."""
    model = model_of()
    for layer in (model[0], model[2]):
        layer.weight.data = layer.weight.data.t().contiguous().t()
    if not nodes:
        return one_rank_a_node(local, "dlion-vote", model=model)[2][0]
    _, optimizer = make("dlion-vote", model=model, node_group=groups_of(local))
    before = [p._version for p in model.parameters()]
    train(model, optimizer, STEPS)
    assert all(p._version > version for p, version in zip(model.parameters(), before))
    assert optimizer.memory()["copies"] == sum(
        layer.weight.numel() * 4 for layer in (model[0], model[2]))
    return ending(model, optimizer)[0]


def test_parameters_that_libpride_cannot_read_in_place(world):
    expected = world(2).run(in_another_order, 2, False)
    assert world(4).run(in_another_order, 2) == expected[:1] * 4


def test_auto_is_the_ranks_of_this_host(world):
    """All of them here: one voter."""
    for local in (1, 2, 3):
        compare(world, 1, local, "dlion-avg", None, auto=True)


@pytest.mark.parametrize("local", [2, 3])
@pytest.mark.parametrize("method, nan, more", [
    ("dlion-vote", 2, dict(on_non_finite="skip")),
    ("lion", 2, dict(on_non_finite="skip", clip_global_norm=3.0)),
    ("adamw", None, dict(clip_global_norm=3.0))], ids=str)
def test_nodes_skip_a_step_together_and_clip_by_the_norm_of_all(world, local, method, nan, more):
    compare(world, 2, local, method, None, nan=nan, **more)


def test_parameters_in_bfloat16(world):
    """Their gradients cancel to exact zeros, too, whose signs are drawn by coordinate."""
    compare(world, 2, 2, "dlion-vote", None, dtype=torch.bfloat16)
    compare(world, 2, 3, "adamw", None, dtype=torch.bfloat16)


def test_a_tensor_is_used_if_one_rank_of_the_node_uses_it(world):
    """The others add zeros, as with DDP."""
    compare(world, 2, 2, "dlion-avg", None, spread=True)
    compare(world, 2, 3, "adamw", None, spread=True)


SHAPES = [(5, 9), (40,), (64,), (3, 3, 3), (65,), (7,), (1,)]
TYPES = [torch.float32, torch.bfloat16, torch.float16]


def of_three_types(local, nodes=None):
    """With nodes in rounds of 64 values; or the oracle."""
    params = [models.parameter(i, *shape, dtype=TYPES[i % 3]) for i, shape in enumerate(SHAPES)]
    kept, _nodes._ROUND = _nodes._ROUND, 64
    optimizer = pride.Optimizer(params, 1e-2, method="dlion-avg", bucket_size=64, timeout=30,
                                node_group=groups_of(local) if nodes else None)
    _nodes._ROUND = kept
    for step in range(STEPS):
        if nodes:
            models.set_gradients(params, step, dist.get_rank())
            params[0].grad = params[0].grad.t().contiguous().t()
        else:
            total = 0
            for rank in range(dist.get_rank() * local, dist.get_rank() * local + local):
                models.set_gradients(params, step, rank)
                total = [p.grad.float() + (total[i] if total else 0) for i, p in enumerate(params)]
            for p, values in zip(params, total):
                p.grad = (values / local).to(p.dtype)
        optimizer.step()
    return models.ended(torch.nn.ParameterList(params), optimizer)


def test_types_and_rounds(world):
    for local in (2, 3):
        expected = world(2).run(of_three_types, local)
        assert world(2 * local).run(of_three_types, local, 2) == expected[:1] * 2 * local


def in_ddp():
    model = torch.nn.parallel.DistributedDataParallel(model_of(), find_unused_parameters=True)
    pride.local_gradients(model)
    _, optimizer = make("adamw", model=model.module, node_group=groups_of(2))
    for step in range(STEPS):
        optimizer.zero_grad()
        x, _ = models.batch(step)
        model(x).sin().sum().backward()
        optimizer.step()
    return ending(model.module, optimizer)[0]


def test_a_model_in_ddp(world):
    expected = world(2).run(one_rank_a_node, 2, "adamw")
    assert world(4).run(in_ddp) == [expected[r // 2][2][0] for r in range(4)]


def frozen():
    """The first layer until the third step."""
    model, optimizer = make("dlion-avg", node_group=groups_of(2))
    sent = []
    for step in range(4):
        model[0].requires_grad_(step > 1)
        before = [p.detach().clone() for p in model.parameters()]
        train(model, optimizer, 1, step)
        sent.append(optimizer.traffic()["last_step"]["node_bytes_sent"])
        assert [torch.equal(p, b) for p, b in zip(model.parameters(), before)] == (
            [step < 2] * 2 + [False] * 4)
    ending(model, optimizer)
    return sent


def test_gradients_of_frozen_parameters_do_not_travel(world):
    results = world(4).run(frozen)
    assert all(sent[0] == sent[1] < sent[2] == sent[3] for sent in results)
