# Nodes average, nodes vote (node_group=): failures, which all ranks learn of, and refusals.
# SPDX-License-Identifier: Apache-2.0
import os
import signal
import socket

import pytest
import torch
import torch.distributed as dist

import models
from nodes import STEPS, backward, ending, groups_of, make, model_of, train, with_nodes
import pride
from pride import _nodes


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
        optimizer._ranks.nodes._share_results = interrupt
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
    ("counts", "method, options, seed or parameters of rank(s) 1 and of rank 0 differ"),
    ("starts", "initial parameters of rank(s) 1 are not those of rank 0; the first of 1 (of 6) "
               "that differ is '2.weight'"),
    ("name", "node_group = 'host', must be 'auto' or a process group"),
    ("averaged", "the gradients of all ranks are equal, bit for bit"),
    ("join", "join() with node_group"),
    ("add", "add_param_group() with node_group"),
    ("shape", "rank 2 refuses step: InvalidArgument: pride: 2.bias has shape (8,) now and had (7,)"),
    ({"overlap": True}, "node_group: overlap=True"),
    ({"node_of_rank": [0, 0, 1, 1]}, "node_group: give one of node_of_rank,"),
    ({"on_non_finite": "skip", "method": "local-vote"}, "non_finite = skip is not supported with local-vote"),
    ({"method": "dlion-muon", "options": {"matrix_scale": "fan-in"}}, "matrix_scale=fan-in"),
]


@pytest.mark.parametrize("case, text", REFUSED, ids=str)
def test_what_is_refused(world, case, text):
    for rank, error in enumerate(world(4).errors(refused, case)):
        assert error is not None and error[0] is pride.InvalidArgument, f"rank {rank}: {error}"
        assert text in error[1] or (case, rank) == ("shape", 2), f"rank {rank}: {error[1]}"
