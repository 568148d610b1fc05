# States of optimizers: what is in them, and what ranks of another number take from them.
# SPDX-License-Identifier: Apache-2.0
#
# Oracle: sums written here.
import collections
import warnings

import pytest
import torch
import torch.distributed as dist

import models
import pride
from checkpoints import METHODS, loaded, make, saved

LOCAL = {"dlion-vote": {"m"}, "lion-cub": {"m"}, "adamw": set()}


def contents(method):
    model, optimizer = make(method)
    first = {key for p in model.parameters() for key in optimizer.state[p]}
    views = [optimizer.state[p] for p in model.parameters()]
    models.train(model, optimizer, 3)
    state = optimizer.state_dict()
    for i, entry in enumerate(views):
        assert set(entry) == {key for key in state["state"][i] if not key.startswith("step.rank")}
        for key, values in entry.items():
            assert torch.equal(values, state["state"][i][key]), key
    moved = any(t.abs().sum() > 0 for key, t in views[0].items() if key != "step")
    before = {key: t.clone() for key, t in state["state"][0].items()}
    models.train(model, optimizer, 1, first=3)
    after = state["state"][0]  # a copy: later steps do not reach it
    assert all(torch.equal(before[key], after[key]) for key in before)
    optimizer.close()
    return first, moved, after["step"].item()


@pytest.mark.parametrize("method", METHODS)
def test_state_is_there_before_the_first_step_and_is_a_live_view(world, method):
    for rank, (keys, moved, step) in enumerate(world(2).run(contents, method)):
        assert moved and step == 3
        assert len(keys) > 1 and "step" in keys
        own = {key for key in keys if key.endswith(f".rank{rank}")}
        if method in LOCAL:
            assert own == {f"{name}.rank{rank}" for name in LOCAL[method]}
        assert not any(".rank" in key for key in keys - own)


def alone_on_rank_0():
    model, optimizer = make()
    models.train(model, optimizer, 2)
    keys = None
    if dist.get_rank() == 0:
        keys = sorted(optimizer.state_dict()["state"][0])
    models.train(model, optimizer, 2)
    optimizer.close()
    return keys


def test_state_dict_is_not_collective(world):
    assert world(3).run(alone_on_rank_0)[0] == ["m.rank0", "step", "step.rank0"]


def kept_views():
    model, optimizer = make()
    models.train(model, optimizer, 2)
    entry = optimizer.state[model[0].weight]
    kept = entry["m.rank0"]
    values = kept.clone()
    optimizer.close()
    filler = [torch.full_like(values, 7.0) for _ in range(50)]
    assert torch.equal(kept, values) and len(filler) == 50
    with pytest.raises(pride.Error, match="closed"):
        optimizer.state_dict()
    with pytest.raises(pride.Error, match="closed"):
        optimizer.step()


def test_tensors_that_the_caller_keeps_outlive_the_optimizer(world):
    world(1).run(kept_views)


class OldHooks:
    """The hooks of torch 2.x, where torch has none."""

    def __init__(self, optimizer):
        self.calls = []
        for name in ("state_dict_pre", "state_dict_post", "load_state_dict_pre",
                     "load_state_dict_post"):
            hooks = collections.OrderedDict({0: getattr(self, name)})
            setattr(optimizer, f"_optimizer_{name}_hooks", hooks)

    def state_dict_pre(self, optimizer):
        self.calls.append("save")

    def state_dict_post(self, optimizer, state):
        return {**state, "added": 1}

    def load_state_dict_pre(self, optimizer, state):
        self.calls.append(f"load {state.pop('added')}")

    def load_state_dict_post(self, optimizer):
        self.calls.append("loaded")


def hooked():
    model, optimizer = make()
    hooks = OldHooks(optimizer)
    state = optimizer.state_dict()
    optimizer.load_state_dict(state)
    assert state["added"] == 1  # the caller's own is as it was
    optimizer.close()
    return hooks.calls


def test_hooks_of_torch_2_are_called(world):
    assert world(2).run(hooked) == [["save", "load 1", "loaded"]] * 2


def consolidated_only_on(to):
    model, optimizer = make("signsgd-ef")
    models.train(model, optimizer, 2)
    optimizer.consolidate_state_dict(to=to)
    keys = [sorted(optimizer.state_dict()["state"][0])]
    models.train(model, optimizer, 1)
    keys.append(sorted(optimizer.state_dict()["state"][0]))  # that of others is of another step
    optimizer.close()
    return keys


def test_consolidate_gathers_on_one_rank_until_the_next_step(world):
    for rank, (first, then) in enumerate(world(3).run(consolidated_only_on, 2)):
        own = [f"{b}.rank{rank}" for b in ("error", "m", "server_error", "step")]
        everyone = sorted(f"{b}.rank{r}" for b in ("error", "m", "server_error", "step") for r in range(3))
        strip = [k for k in first if ".rank" in k]
        assert strip == (everyone if rank == 2 else own)
        assert [k for k in then if ".rank" in k] == own


# --- Another number of ranks, and states that ranks do not share. -------------------------------------


def momenta(method, steps=4):
    """The consolidated state of every rank, and this rank's own."""
    model, optimizer = make(method)
    models.train(model, optimizer, steps)
    own = saved(model, optimizer)
    optimizer.consolidate_state_dict(to=0)
    both = saved(model, optimizer), own
    optimizer.close()
    return both


def load_with(data, local, method="dlion-vote"):
    model, optimizer = make(method)
    file = loaded(data)
    model.load_state_dict(file["model"])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer.load_state_dict(file["optimizer"], local=local)
    state = optimizer.state_dict()["state"]
    flats = {}
    for name in sorted({key.split(".")[0] for key in state[0]}):
        parts = [t.reshape(-1) for entry in state.values() for key, t in entry.items()
                 if key.split(".")[0] == name]
        flats[name] = torch.cat(parts)
    models.train(model, optimizer, 1)
    models.ended(model, optimizer)
    return flats, [str(w.message) for w in caught if "pride" in str(w.message)]


def by_rank(data, name, world):
    state = loaded(data)["optimizer"]["state"]
    return [torch.cat([entry[f"{name}.rank{r}"].reshape(-1) for entry in state.values()])
            for r in range(world)]


@pytest.mark.parametrize("local", ["keep", "average", "reset"])
@pytest.mark.parametrize("old, new", [(4, 2), (2, 3), (2, 2)])
def test_another_number_of_ranks_goes_by_the_policy(world, old, new, local):
    data = world(old).run(momenta, "dlion-vote")[0][0]
    m = by_rank(data, "m", old)
    mean = (sum(t.double() for t in m) / old).float()
    for rank, (state, texts) in enumerate(world(new).run(load_with, data, local)):
        expected = {"keep": m[rank % old], "average": mean, "reset": torch.zeros_like(mean)}[local]
        assert torch.equal(state["m"], expected), f"rank {rank}"
        assert state["step"].unique().tolist() == [4] and not texts


@pytest.mark.parametrize("method, shared, served", [("adamw", ["m", "v"], []),
                                                    ("onebit-adam", ["m", "v"], ["server_error"])])
def test_shared_and_served_state_reach_another_number_of_ranks(world, method, shared, served):
    data = world(2).run(momenta, method)[0][0]
    saved_state = loaded(data)["optimizer"]["state"]
    got = world(3).run(load_with, data, "keep", method)
    for name in shared:
        expected = torch.cat([entry[name].reshape(-1) for entry in saved_state.values()])
        assert expected.abs().sum() > 0
        assert all(torch.equal(state[name], expected) for state, _ in got)
    for name in served:  # each coordinate is with one rank: sums are the same
        expected = sum(by_rank(data, name, 2))
        assert torch.equal(sum(state[name] for state, _ in got), expected)


def test_one_ranks_state_on_all_ranks_warns_where_the_momentum_is_anothers(world):
    data = world(3).run(momenta, "dlion-vote")
    own = by_rank(data[0][0], "m", 3)
    got = world(3).run(load_with, data[1][1], "keep")
    assert not got[1][1]
    for rank in (0, 2):
        assert len(got[rank][1]) == 1
        assert f"rank {rank} loads the momentum of rank 1" in got[rank][1][0]
        assert "consolidate_state_dict" in got[rank][1][0]
    for state, _ in got:
        assert torch.equal(state["m"], own[1])
    for state, texts in world(3).run(load_with, data[1][1], "reset"):
        assert not texts and not state["m"].any()
    for _, texts in world(3).run(load_with, world(3).run(momenta, "adamw")[1][1], "keep", "adamw"):
        assert not texts  # nothing is a rank's own
