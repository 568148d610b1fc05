# States of nodes (node_group=): kills, consolidated states, torch.distributed.checkpoint, copies.
# SPDX-License-Identifier: Apache-2.0
import itertools
import os
import signal

import pytest
import torch
import torch.distributed as dist

import models
from nodes import ending, groups_of, make, model_of, train
import pride


def saved(local, method, folder=None, gather=False):
    """The states of a run of 3 steps, and how it ends."""
    model, optimizer = make(method, node_group=groups_of(local))
    train(model, optimizer, 3)
    if gather:
        optimizer.consolidate_state_dict()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, folder / f"{dist.get_rank()}.pt")
    train(model, optimizer, 2, 3)
    return ending(model, optimizer)


def resumed(local, method, folder, gathered=False, steps=2, policy="keep"):
    state = torch.load(folder / f"{0 if gathered else dist.get_rank()}.pt")
    model = model_of()
    model.load_state_dict(state["model"])
    model, optimizer = make(method, model=model, node_group=groups_of(local) if local else None)
    optimizer.load_state_dict(state["optimizer"], local=policy)
    train(model, optimizer, steps, 3)
    return ending(model, optimizer)


def until_killed(folder):
    model, optimizer = make("dlion-vote", node_group=groups_of(2))
    train(model, optimizer, 3)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()},
               folder / f"{dist.get_rank()}.pt")
    dist.barrier()
    train(model, optimizer, 1, 3)
    os.kill(os.getpid(), signal.SIGKILL)


def test_save_kill_resume(world, job, tmp_path):
    """Each rank from its own file."""
    jobs = job(4, until_killed, tmp_path)
    assert [jobs.result(rank) for rank in range(4)] == [None] * 4
    jobs.kill()
    (tmp_path / "other").mkdir()
    expected = world(4).run(saved, 2, "dlion-vote", tmp_path / "other")
    assert world(4).run(resumed, 2, "dlion-vote", tmp_path) == expected


@pytest.mark.parametrize("method", ["dlion-avg", "adamw"])
def test_a_consolidated_state_loads_on_nodes_of_another_size(world, tmp_path, method):
    """Momenta go by tensor; on as many nodes they are the same."""
    expected = world(4).run(saved, 2, method, tmp_path, gather=True)
    whole = world(2).run(resumed, 0, method, tmp_path, gathered=True, steps=0)
    for local in (1, 2, 3):
        states = world(2 * local).run(resumed, local, method, tmp_path, gathered=True, steps=0)
        for node in range(2):
            union = {}
            for weights, state in states[node * local:(node + 1) * local]:
                assert weights == whole[node][0]
                union.update(state)
            assert union == whole[node][1]
    assert world(4).run(resumed, 2, method, tmp_path, gathered=True) == expected


def test_a_consolidated_state_on_another_number_of_nodes(world, tmp_path):
    world(4).run(saved, 2, "dlion-avg", tmp_path, gather=True)
    for policy, nodes in itertools.product(["keep", "average", "reset"], [1, 3]):
        expected = world(nodes).run(resumed, 0, "dlion-avg", tmp_path, gathered=True, steps=0,
                                    policy=policy)
        states = world(2 * nodes).run(resumed, 2, "dlion-avg", tmp_path, gathered=True, steps=0,
                                      policy=policy)
        for rank, (weights, state) in enumerate(states):
            assert weights == expected[rank // 2][0]
            assert state.items() <= expected[rank // 2][1].items()


def test_state_by_buckets(world, tmp_path):
    """It goes on with the same nodes alone."""
    method = "signsgd-ef"
    expected = world(4).run(saved, 2, method, tmp_path, gather=True)
    assert world(4).run(resumed, 2, method, tmp_path, gathered=True) == expected
    for local, n in ((0, 2), (3, 6)):
        for error in world(n).errors(resumed, local, method, tmp_path, gathered=True):
            assert "signsgd-ef has a state by buckets, for nodes of 2 rank(s); " in error[1]


def copied():
    import copy

    model, optimizer = make(node_group=groups_of(2))
    train(model, optimizer, 2)
    other, twin = copy.deepcopy((model, optimizer))
    train(other, twin, 2, 2)
    train(model, optimizer, 2, 2)
    return ending(model, optimizer) == ending(other, twin)


def test_a_copy_goes_on_alike(world):
    assert world(4).run(copied) == [True] * 4


def dcp_saved(local, folder):
    model, optimizer = make("adamw", node_group=groups_of(local))
    train(model, optimizer, 3)
    pride.checkpoint.save(folder, model, optimizer)
    return ending(model, optimizer)


def dcp_loaded(local, folder):
    model, optimizer = make("adamw", node_group=groups_of(local) if local else None)
    pride.checkpoint.load(folder, model, optimizer)
    return ending(model, optimizer)


@pytest.mark.skipif(not models.NEW_TORCH, reason="torch 1.13 has no state_dict of checkpoints")
def test_torch_distributed_checkpoint(world, tmp_path):
    """Each rank writes its own tensors; nodes of another size read them."""
    weights = world(4).run(dcp_saved, 2, tmp_path)[0][0]
    whole = world(2).run(dcp_loaded, 0, tmp_path)
    for local in (2, 3):
        states = world(2 * local).run(dcp_loaded, local, tmp_path)
        for node in range(2):
            union = {}
            for loaded, state in states[node * local:(node + 1) * local]:
                assert loaded == weights == whole[node][0]
                union.update(state)
            assert union == whole[node][1]
