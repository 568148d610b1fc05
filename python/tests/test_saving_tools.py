# States as tools save them: full state dicts, casts, a second thread, rank 0 alone.
# SPDX-License-Identifier: Apache-2.0
#
# Oracle: the state without the tool.
import copy
import threading
import time
import warnings

import pytest
import torch
import torch.distributed as dist

import models
import pride

try:
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions, get_state_dict, set_model_state_dict, set_optimizer_state_dict)
except ImportError:  # torch 1.13
    StateDictOptions = None

needs_state_dicts = pytest.mark.skipif(
    StateDictOptions is None, reason=f"torch {torch.__version__} has no get_state_dict(); the stage of "
    "the newest torch runs these")
METHODS = ["dlion-vote", "lion-cub", "adamw", "onebit-adam", "local-vote"]


def warned(call):
    """What a call says in warnings of pride's."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        call()
    return [str(w.message) for w in seen if "pride" in str(w.message)]


def momenta(optimizer):
    state = optimizer.state_dict()["state"]
    return [(i, key.split(".")[0], t.numpy().tobytes()) for i, entry in sorted(state.items())
            for key, t in sorted(entry.items()) if not key.startswith("step")]


def full(method, how):
    """Loads a full state dict of rank 0 into a new optimizer. Returns (error, warnings, how many
    ranks' momenta this rank has kept)."""
    model, optimizer = models.make(method)
    models.train(model, optimizer, 4)
    before = momenta(optimizer)
    if how == "consolidated":
        optimizer.consolidate_state_dict()
    pair = get_state_dict(model, optimizer, options=StateDictOptions(
        full_state_dict=True, cpu_offload=True))
    of_rank_0 = [pair]
    dist.broadcast_object_list(of_rank_0)
    weights, state = of_rank_0[0]
    if how == "broadcast" and dist.get_rank():
        weights, state = {}, {}
    optimizer.close()
    model, optimizer = models.make(method)
    broadcast = how.startswith("broadcast")
    error, said, same = None, [], False
    try:
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=broadcast)
        set_model_state_dict(model, weights, options=options)
        said = warned(lambda: set_optimizer_state_dict(model, optimizer, state, options=options))
        same = momenta(optimizer) == before
        models.train(model, optimizer, 2, first=4)
        models.ended(model, optimizer)
    except pride.Error as problem:
        error = f"{type(problem).__name__}: {problem}"
    return error, said, same


@needs_state_dicts
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("how", ["all", "broadcast, all"])
def test_a_full_state_dict_of_rank_0_loads_with_a_warning_of_its_momentum(world, method, how):
    for rank, (error, said, same) in enumerate(world(2).run(full, method, how)):
        lost = bool(rank) and method != "adamw"
        assert error is None and (same or lost)
        assert bool(said) == lost and (not lost or "loads the momentum of rank 0" in said[0])


@needs_state_dicts
@pytest.mark.parametrize("method", METHODS)
def test_a_consolidated_full_state_dict_loads_as_it_was(world, method):
    assert world(2).run(full, method, "consolidated") == [(None, [], True)] * 2


@needs_state_dicts
def test_a_state_that_is_sent_to_ranks_with_other_momenta_is_refused_with_the_reason(world):
    for error, _, _ in world(2).run(full, "dlion-vote", "broadcast"):
        assert "broadcast_from_rank0" in error and "consolidate_state_dict()" in error
    for error, said, _ in world(2).run(full, "adamw", "broadcast"):
        assert error is None and not said


def groups(method):
    model, optimizer = models.make(method)
    models.train(model, optimizer, 2)

    def keys(value):
        if isinstance(value, (list, tuple)):
            return [keys(each) for each in value]
        return {k: keys(v) for k, v in value.items()} if isinstance(value, dict) else None

    made = keys(optimizer.state_dict()["param_groups"])
    optimizer.close()
    return made


@pytest.mark.parametrize("method", METHODS)
def test_groups_of_a_state_have_equal_keys_on_all_ranks(world, method):
    first, *others = world(3).run(groups, method)
    assert others == [first, first]


def cast(method, dtype, narrow=torch.float32):
    """Momenta before, and after a state was cast and loaded; warnings; whether it goes on."""
    model, optimizer = models.make(method, models.mlp(dtype=narrow))
    models.train(model, optimizer, 3)
    state = copy.deepcopy(optimizer.state_dict())
    for entry in state["state"].values():
        for key, value in entry.items():
            if value.dtype == torch.float32 and not key.startswith("step"):
                entry[key] = value.to(dtype)
    expected = [[(i, key.split(".")[0], t.float().numpy().tobytes())
                 for i, entry in sorted(state["state"].items()) for key, t in sorted(entry.items())
                 if not key.startswith(("step", "master"))]]
    said = warned(lambda: optimizer.load_state_dict(state))
    got = [each for each in momenta(optimizer) if each[1] != "master"]
    models.train(model, optimizer, 2, first=3)
    models.ended(model, optimizer)
    return [got], expected, said


@pytest.mark.parametrize("method", ["dlion-vote", "adamw"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("narrow", [torch.float32, torch.bfloat16])
def test_a_state_that_was_cast_loads_with_a_warning(world, method, dtype, narrow):
    for got, expected, said in world(2).run(cast, method, dtype, narrow):
        assert got == expected
        assert [str(dtype) in text for text in said] == [True] * (dtype != torch.float64)


def in_a_thread(overlap):
    """(number of states, those that are not of one moment) of a second thread."""
    model, optimizer = models.make(model=models.mlp(sizes=(12, 2000, 7)), overlap=overlap,
                                   bucket_size=1 << 20)
    rank, of_step, got, stop = dist.get_rank(), {}, [], []

    def look():
        state = optimizer.state_dict()
        texts = state["param_groups"][0]["pride"]["ranks"][str(rank)]
        steps = {int(texts["step"])} | {int(entry["step"]) for entry in state["state"].values()}
        return steps, [entry[f"m.rank{rank}"].double().sum().item()
                       for entry in state["state"].values()]

    def save():
        while not stop:
            try:
                got.append(look())
            except pride.Error:  # with overlap, between backward and step()
                time.sleep(0.0005)

    thread = threading.Thread(target=save)
    of_step[0] = look()[1]
    thread.start()
    for step in range(1, 60):
        optimizer.zero_grad()
        models.backward(model, step)
        optimizer.step()
        of_step[step] = look()[1]
    stop.append(1)
    thread.join()
    models.ended(model, optimizer)
    return len(got), [steps for steps, values in got
                      if len(steps) > 1 or of_step[min(steps)] != values]


@pytest.mark.parametrize("overlap", [False, True])
def test_a_state_of_a_second_thread_is_of_one_moment(world, overlap):
    for n, torn in world(2).run(in_a_thread, overlap):
        assert n > 10 and not torn


def saves(method, who, **arguments):
    model, optimizer = models.make(method, **arguments)

    def run():
        for step in range(6):
            models.train(model, optimizer, 1, first=step)
            if 1 <= step < 4:
                if who.startswith("consolidated"):
                    optimizer.consolidate_state_dict(to=0)
                if who in ("all", "consolidated, all") or dist.get_rank() == 0:
                    optimizer.state_dict()

    said = warned(run)
    optimizer.close()
    return said


@pytest.mark.parametrize("method, who, warns", [
    ("dlion-vote", "rank 0", True), ("onebit-adam", "rank 0", True), ("dlion-vote", "all", False),
    ("dlion-vote", "consolidated", False), ("dlion-vote", "consolidated, all", False), ("adamw", "rank 0", False), ("lion", "rank 0", False)])
def test_a_rank_that_saves_alone_is_told_once_in_the_next_step(world, method, who, warns):
    said = world(2).run(saves, method, who)
    assert said[1] == [] and len(said[0]) == warns
    assert not warns or "rank(s) 0 called state_dict()" in said[0][0]
