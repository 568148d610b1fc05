# Nodes average, nodes vote (node_group=).
# SPDX-License-Identifier: Apache-2.0
#
# Oracle: one rank a node, with the mean gradient of the node's ranks, bit for bit.
import os
import signal
import socket

import pytest
import torch
import torch.distributed as dist

import models
from nodes import (METHODS, STEPS, backward, compare, ending, groups_of, make, model_of,
                   one_rank_a_node, train, with_nodes)
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
        own = {i: len(data) // 4 for (i, key), data in state.items() if key != "step"}.values()
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
    own = sum(slot.n for slot in optimizer._slots)
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


def test_signs_and_votes_that_are_drawn(world):
    compare(world, 2, 2, "dlion-vote", {"signs": "stochastic", "result": "stochastic"})


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


# --- Failures. ------------------------------------------------------------------------------------


def not_finite():
    model, optimizer = make(node_group=groups_of(2))
    before = models.bits(model.parameters())
    backward(model, dist.get_rank(), 0)
    if dist.get_rank() == 2:
        model[2].bias.grad[3] = float("nan")
    with pytest.raises(pride.NonFiniteGradient) as error:
        optimizer.step()
    assert models.bits(model.parameters()) == before
    train(model, optimizer, STEPS)
    return str(error.value), ending(model, optimizer)[0]


def test_nan_on_one_rank_raises_on_all_and_changes_nothing(world):
    expected = world(4).run(with_nodes, 2, "dlion-avg")
    for (text, weights), (_, _, (undisturbed, _)) in zip(world(4).run(not_finite), expected):
        assert "step 1: the mean gradient of 2.bias in node 1, held by rank " in text
        assert weights == undisturbed


def overflow():
    model, optimizer = make("lion", node_group=groups_of(2))
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    optimizer.scaler = scaler
    seen = []
    for step in range(3):
        optimizer.zero_grad()
        scaler.scale(model(models.batch(step)[0]).sin().sum()).backward()
        if step == 1 and dist.get_rank() == 3:
            model[0].weight.grad[3, 2] = float("inf")
        scaler.step(optimizer)
        scaler.update()
        seen.append((optimizer.traffic()["skipped"], scaler.get_scale()))
    ending(model, optimizer)
    return seen


@pytest.mark.skipif(not models.NEW_TORCH, reason="torch 1.13 scales on GPUs alone")
def test_an_overflow_on_one_rank_skips_the_step_everywhere(world):
    assert world(4).run(overflow) == [[(0, 64.0), (1, 32.0), (1, 32.0)]] * 4


def until_one_dies(die):
    model, optimizer = make(node_group=groups_of(2))
    train(model, optimizer, 2)
    if dist.get_rank() == die:
        os.kill(os.getpid(), signal.SIGKILL)
    train(model, optimizer, 2, 2)


@pytest.mark.parametrize("die", [1, 2])
def test_a_rank_that_dies_ends_all(job, die):
    jobs = job(4, until_one_dies, die)
    for rank in range(4):
        result = jobs.result(rank)
        assert (result is None) == (rank == die)
        if result is not None:
            assert result[0].startswith("CommError: ") and result[2] < 15, result
            assert f"rank(s) {die} gave no sign of life in step 3" in result[0]
    jobs.close()


def damaged():
    """Rank 1 sends other results than it applied."""
    model, optimizer = make("dlion-vote", node_group=groups_of(2))
    train(model, optimizer, 1)
    plain = _nodes.bytes_at

    def other(address, n):
        values = plain(address, n).clone()
        values[-1] ^= 1
        return values

    if dist.get_rank() == 1:
        _nodes.bytes_at = other
    try:
        train(model, optimizer, 2, 1)
    finally:
        _nodes.bytes_at = plain


def test_results_that_are_damaged_raise_on_all(world):
    for error in world(4).errors(damaged):
        assert error is not None and error[0] is pride.CommError
        assert "rank 1 of node 0: results for '" in error[1]
        assert "step 2: vote frames of bucket " in error[1] and "checksum" in error[1]


def interrupted():
    """Ctrl-C on rank 2 while results travel in its node. It tries another step."""
    model, optimizer = make("dlion-vote", node_group=groups_of(2))
    train(model, optimizer, 1)
    if dist.get_rank() == 2:
        def interrupt():
            raise KeyboardInterrupt
        optimizer._nodes._share_results = interrupt
        with pytest.raises(KeyboardInterrupt):
            train(model, optimizer, 1, 1)
    train(model, optimizer, 2, 1)


def test_an_interrupt_while_results_travel_ends_all(world):
    for rank, error in enumerate(world(4).errors(interrupted)):
        assert error is not None and error[0] is pride.CommError, f"rank {rank}: {error}"
        assert "KeyboardInterrupt" in error[1], f"rank {rank}: {error}"


def with_an_empty_tensor():
    model = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(100)),
                                    torch.nn.Parameter(torch.ones(0))])
    optimizer = pride.DistributedLion(model.named_parameters(), node_group=groups_of(2))
    for step in range(2):
        for p in model:
            p.grad = torch.full_like(p, 1.0 + dist.get_rank() + step)
        optimizer.step()
    return models.ended(model, optimizer)


def test_an_owner_of_empty_tensors_alone(world):
    ends = world(4).run(with_an_empty_tensor)
    assert ends == ends[:1] * 4


def sparse():
    """Its gradients cannot be taken on one rank."""
    model = torch.nn.Sequential(torch.nn.Embedding(5, 3, sparse=dist.get_rank() == 1),
                                torch.nn.Linear(3, 2))
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(0.5)
    optimizer = pride.DistributedLion(model.named_parameters(), node_group=groups_of(2), timeout=20)
    model(torch.tensor([1, 2])).sum().backward()
    optimizer.step()


def test_a_gradient_that_cannot_be_taken_raises_on_all(world):
    for rank, error in enumerate(world(4).errors(sparse)):
        assert error[0] is pride.InvalidArgument
        assert "the gradient of 0.weight is sparse" in error[1]
        assert rank == 1 or "rank 1 refuses step" in error[1]


def refused(case):
    rank = dist.get_rank()
    uneven = [dist.new_group(ranks) for ranks in ([0, 1, 2], [3])]
    node, arguments, change = groups_of(2), {}, None
    if case == "sizes":
        node = uneven[rank // 3]
    elif case == "partial":
        node = uneven[0] if rank < 2 else node
    elif case == "some":
        node = None if rank == 3 else node
    elif case == "member":
        node = uneven[1]
    elif case == "hosts":
        node = "auto"
        name = f"node{rank // 3}"
        socket.gethostname, change = lambda: name, socket.gethostname
    elif case == "weights":
        arguments["vote_weight"] = 1 + rank % 2
    elif case == "counts":
        arguments["options"] = {"counts": "planes"} if rank % 2 else None
    elif case == "starts":
        torch.manual_seed(rank)
    elif case == "name":
        node = "host"
    elif case not in ("averaged", "join", "add", "shape"):
        arguments = case
    model = model_of()
    if case == "starts" and rank == 1:
        with torch.no_grad():
            model[2].weight[3, 3] += 1
    try:
        optimizer = make(arguments.pop("method", "dlion-avg"), arguments.pop("options", None),
                         model=model, node_group=node, **arguments)[1]
    finally:
        if change:
            socket.gethostname = change
    if case == "join":
        with pride.join(optimizer):
            pass
    elif case == "add":
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(3))]})
    backward(model, rank, 0)
    for p in model.parameters():
        dist.all_reduce(p.grad)
    if case == "shape" and rank == 2:
        model[2].bias.data = torch.ones(8)
    optimizer.step()


REFUSED = [
    ("sizes", "same number of ranks; here "),
    ("partial", "the group of rank(s) 0, 1 has 3 ranks; all of them must give it"),
    ("some", "rank 3: construct()"),
    ("member", " is not a member of the group that it gives"),
    ("hosts", "here node0 has 3 (rank(s) 0, 1, 2), node1 has 1 (rank(s) 3)"),
    ("weights", "the argument 'vote_weight' of rank(s) 1 and of rank 0 differ"),
    ("counts", "method, options, bucket_size, seed or parameters of rank(s) 1 and of rank 0 differ"),
    ("starts", "initial parameters of rank(s) 1 are not those of rank 0; the first that differs is "
               "'2.weight'"),
    ("name", "node_group = 'host', must be 'auto' or a process group"),
    ("averaged", "the gradients of all ranks are equal, bit for bit"),
    ("join", "join() with node_group"),
    ("add", "add_param_group() with node_group"),
    ("shape", "rank 2 refuses step: InvalidArgument: pride: 2.bias has shape (8,) now and had (7,)"),
    ({"overlap": True}, "node_group: overlap=True"),
    ({"virtual_workers": 2}, "node_group: give one of virtual_workers and"),
    ({"coordinator": "localhost:1"}, "node_group: give one of coordinator and"),
    ({"node_of_rank": [0, 0, 1, 1]}, "node_group: give one of node_of_rank,"),
    ({"on_non_finite": "skip", "method": "local-vote"}, "non_finite = skip with local-vote"),
    ({"method": "dlion-muon", "options": {"matrix_scale": "fan-in"}}, "matrix_scale=fan-in"),
]


@pytest.mark.parametrize("case, text", REFUSED, ids=str)
def test_what_is_refused(world, case, text):
    for rank, error in enumerate(world(4).errors(refused, case)):
        assert error is not None and error[0] is pride.InvalidArgument, f"rank {rank}: {error}"
        assert text in error[1] or (case, rank) == ("shape", 2), f"rank {rank}: {error[1]}"
