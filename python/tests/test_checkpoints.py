# Checkpoints: what is in a state, that a run continues with the same bits, and what is refused.
# SPDX-License-Identifier: Apache-2.0
#
# Oracle: the run that nobody disturbed; for policies, sums written here.
import collections
import copy
import functools
import io
import os
import pickle
import re
import signal
import warnings

import pytest
import torch
import torch.distributed as dist

import models
import pride
from pride import _library as library

METHODS = ["dlion-vote", "lion-cub", "adamw", "onebit-adam", "signsgd-ef", "dgc"]
OPTIONS = {"onebit-adam": {"freeze_steps": 4}}
LOCAL = {"dlion-vote": {"m"}, "lion-cub": {"m"}, "adamw": set()}
BF16 = torch.bfloat16


def make(method="dlion-vote", dtype=torch.float32, seed=1, lr=1e-2, **kwargs):
    model = models.mlp(seed, dtype=dtype)
    kwargs = {"timeout": 30, "bucket_size": 64, "options": OPTIONS.get(method), **kwargs}
    return model, pride.Optimizer(model.named_parameters(), lr, method=method, **kwargs)


def ending(optimizer, model):
    """All that a run leaves behind, as bytes; closes the optimizer."""
    state = optimizer.state_dict()
    values = [(i, key, t.numpy().tobytes()) for i, entry in sorted(state["state"].items())
              for key, t in sorted(entry.items())]
    optimizer.check_replicas()
    optimizer.close()
    return models.bits(model.parameters()), values


def saved(model, optimizer):
    data = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, data)
    return data.getvalue()


def loaded(data):
    return torch.load(io.BytesIO(data))


# --- What is in a state. ------------------------------------------------------------------------------


def contents(method):
    model, optimizer = make(method)
    first = {key for p in model.parameters() for key in optimizer.state[p]}
    views = [optimizer.state[p] for p in model.parameters()]
    models.train(model, optimizer, 3, dist.get_rank())
    state = optimizer.state_dict()
    for i, entry in enumerate(views):
        assert set(entry) == set(state["state"][i])
        for key, values in entry.items():
            assert torch.equal(values, state["state"][i][key]), key
    moved = any(t.abs().sum() > 0 for key, t in views[0].items() if key != "step")
    before = {key: t.clone() for key, t in state["state"][0].items()}
    models.train(model, optimizer, 1, dist.get_rank(), first=3)
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
    models.train(model, optimizer, 2, dist.get_rank())
    keys = None
    if dist.get_rank() == 0:
        keys = sorted(optimizer.state_dict()["state"][0])
    models.train(model, optimizer, 2, dist.get_rank())
    optimizer.close()
    return keys


def test_state_dict_is_not_collective(world):
    assert world(3).run(alone_on_rank_0)[0] == ["m.rank0", "step"]


def kept_views():
    model, optimizer = make()
    models.train(model, optimizer, 2, 0)
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


# --- A run goes on. -----------------------------------------------------------------------------------


def undisturbed(method, dtype, steps=10, **kwargs):
    model, optimizer = make(method, dtype, **kwargs)
    models.train(model, optimizer, steps, dist.get_rank())
    return ending(optimizer, model)


def save_and_die(folder, method, dtype, consolidate, steps=5):
    rank = dist.get_rank()
    model, optimizer = make(method, dtype)
    models.train(model, optimizer, steps, rank)
    if consolidate:
        optimizer.consolidate_state_dict()
    if not consolidate or rank == 0:
        with open(f"{folder}/{rank}.part", "wb") as file:
            file.write(saved(model, optimizer))
        os.rename(f"{folder}/{rank}.part", f"{folder}/{rank}.pt")
    dist.barrier()  # killed in the middle of steps that no file has
    models.train(model, optimizer, 2, rank, first=steps)
    os.kill(os.getpid(), signal.SIGKILL)


def resumed(folder, method, dtype, consolidate, overlap, bucket_size, first=5, steps=5):
    rank = dist.get_rank()
    model, optimizer = make(method, dtype, seed=77, lr=3e-4, overlap=overlap,
                            bucket_size=bucket_size, broadcast_parameters=True)
    file = torch.load(f"{folder}/{0 if consolidate else rank}.pt")
    model.load_state_dict(file["model"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.load_state_dict(state_dict=file["optimizer"])
    assert optimizer.param_groups[0]["lr"] == 1e-2
    models.train(model, optimizer, steps, rank, first=first)
    return ending(optimizer, model)


def killed(many, body, *arguments):
    for pipe in many.pipes:
        pipe.send((body, arguments))
    for process in many.processes:
        process.join(60)
        assert process.exitcode == -signal.SIGKILL
    for pipe in many.pipes:
        pipe.close()


KILLED = [(method, consolidate, torch.float32) for method in METHODS
          for consolidate in (False, True)] + [("dlion-vote", False, BF16),
                                               ("onebit-adam", True, BF16)]


@pytest.mark.parametrize("method, consolidate, dtype", KILLED)
def test_a_killed_run_continues_with_the_same_bits(world, fresh_world, tmp_path, method,
                                                   consolidate, dtype):
    n = 3 if consolidate else 2
    expected = world(n).run(undisturbed, method, dtype)
    killed(fresh_world(n), save_and_die, str(tmp_path), method, dtype, consolidate)
    assert len(list(tmp_path.iterdir())) == (1 if consolidate else n)
    # servers' state lies by bucket: another size moves it
    got = world(n).run(resumed, str(tmp_path), method, dtype, consolidate, consolidate,
                       64 if consolidate else 4096)
    for rank in range(n):
        assert got[rank][0] == expected[rank][0], f"parameters of rank {rank}"
    if consolidate:
        assert [r[1] for r in got] == [r[1] for r in expected]


def master_orders(order):
    rank = dist.get_rank()
    model, optimizer = make(dtype=BF16)
    models.train(model, optimizer, 4, rank)
    state = loaded(saved(model, optimizer))
    assert all("master" in entry for entry in state["optimizer"]["state"].values())
    masters = optimizer._flat.params.clone()
    models.train(model, optimizer, 3, rank, first=4)
    expected = ending(optimizer, model)[0]
    again, other = make(dtype=BF16)
    if order == "model first":
        again.load_state_dict(state["model"])
    other.load_state_dict(state["optimizer"])
    if order == "optimizer first":
        again.load_state_dict(state["model"])
    other._flat.pull()
    assert torch.equal(other._flat.params, masters)
    models.train(again, other, 3, rank, first=4)
    assert ending(other, again)[0] == expected


@pytest.mark.parametrize("order", ["model first", "optimizer first"])
def test_masters_are_restored_in_either_order(world, order):
    world(2).run(master_orders, order)


def changed_narrow_parameters():
    model, optimizer = make(dtype=BF16)
    models.train(model, optimizer, 2, 0)
    state = optimizer.state_dict()
    with torch.no_grad():
        model[0].weight.data[0, 0] = 5.0  # without a new version
    optimizer.load_state_dict(state)
    w = model[0].weight.detach().float().clone()
    m = optimizer.state_dict()["state"][0]["master"]
    assert m[0, 0] == 5.0  # the model's value counts
    assert not torch.equal(m, w) and torch.equal(m.to(BF16).float(), w)  # and no other is rounded
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.step()
    assert torch.equal(model[0].weight.float(), w)
    optimizer.close()


def test_values_of_the_model_count_and_masters_add_the_lower_bits(world):
    world(1).run(changed_narrow_parameters)


def fp32_state_into_bf16_model():
    rank = dist.get_rank()
    model, optimizer = make()
    models.train(model, optimizer, 3, rank)
    state = loaded(saved(model, optimizer))
    optimizer.close()
    narrow, other = make(dtype=BF16)
    narrow.load_state_dict(state["model"])
    other.load_state_dict(state["optimizer"])
    models.train(narrow, other, 2, rank, first=3)
    back = loaded(saved(narrow, other))
    other.close()
    wide, third = make()
    wide.load_state_dict(back["model"])
    third.load_state_dict(back["optimizer"])
    models.train(wide, third, 1, rank, first=5)
    third.close()


def test_dtype_of_the_model_may_change_between_runs(world):
    world(2).run(fp32_state_into_bf16_model)


def scheduled(method, stop):
    """10 steps with a scheduler; after `stop` of them in an optimizer of a fresh process's kind."""
    rank = dist.get_rank()

    def begin(seed):
        model, optimizer = make(method, seed=seed)
        return model, optimizer, torch.optim.lr_scheduler.OneCycleLR(
            optimizer, 1e-2, total_steps=12, cycle_momentum=False)

    model, optimizer, scheduler = begin(1)
    for step in range(10):
        if step == stop:
            state = loaded(saved(model, optimizer))
            schedule = scheduler.state_dict()
            groups = optimizer.param_groups
            optimizer.close()
            model, optimizer, scheduler = begin(1)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            scheduler.load_state_dict(schedule)
            for key in ("lr", "initial_lr", "max_lr", "min_lr", "betas", "weight_decay"):
                assert optimizer.param_groups[0][key] == groups[0][key], key
            assert "pride" not in optimizer.param_groups[0]
        models.train(model, optimizer, 1, rank, first=step)
        scheduler.step()
    return ending(optimizer, model)


@pytest.mark.parametrize("method", ["dlion-vote", "adamw"])
def test_schedulers_resume_with_the_optimizer(world, method):
    assert world(2).run(scheduled, method, 4) == world(2).run(scheduled, method, None)


def grown(resume):
    rank = dist.get_rank()
    model, optimizer = make("adamw")
    late = torch.nn.Parameter(torch.ones(7))

    def steps(optimizer, model, late, first, n, with_late):
        for step in range(first, first + n):
            optimizer.zero_grad()
            models.backward(model, rank, step)
            if with_late:
                late.grad = torch.full((7,), float(rank + step))
            optimizer.step()

    steps(optimizer, model, late, 0, 3, False)
    optimizer.consolidate_state_dict()  # of a time without the new group
    optimizer.add_param_group({"params": [("late", late)], "lr": 5e-3})
    steps(optimizer, model, late, 3, 2 if resume == "later" else 0, True)
    state = loaded(saved(model, optimizer))
    if resume == "no":
        steps(optimizer, model, late, 3, 5, True)
        return ending(optimizer, model)[0] + models.bits([late])
    first, other = make("adamw")
    again = torch.nn.Parameter(late.detach().clone())
    optimizer.close()
    first.load_state_dict(state["model"])
    other.close()
    other = pride.Optimizer([{"params": list(first.named_parameters())},
                             {"params": [("late", again)]}], 1e-2, method="adamw",
                            bucket_size=64, timeout=30)
    other.load_state_dict(state["optimizer"])
    assert other.param_groups[1]["lr"] == 5e-3
    done = 2 if resume == "later" else 0
    steps(other, first, again, 3 + done, 5 - done, True)
    return ending(other, first)[0] + models.bits([again])


@pytest.mark.parametrize("resume", ["at once", "later"])
def test_added_groups_are_saved_and_loaded(world, resume):
    assert world(2).run(grown, resume) == world(2).run(grown, "no")


def any_layout():
    """Layouts whose digest begins with a zero digit were refused by their own states."""
    found = 0
    for i in range(400):
        layout = library.make_layout([(f"p{i}", (3,), 0)])
        if library.lib.pride_layout_digest(layout) >> 60:
            continue
        p = torch.nn.Parameter(torch.ones(3))
        optimizer = pride.DistributedLion([(f"p{i}", p)])
        optimizer.load_state_dict(optimizer.state_dict())
        optimizer.close()
        found += 1
        if found == 3:
            return
    raise AssertionError("no such layout")


def test_states_load_whatever_the_digest_of_the_layout_is(world):
    world(1).run(any_layout)


def fresh_own_state(method):
    model, optimizer = make(method)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            optimizer.load_state_dict(optimizer.state_dict())
    models.train(model, optimizer, 10, dist.get_rank())
    return ending(optimizer, model)


@pytest.mark.parametrize("method", ["dlion-vote", "onebit-adam"])
def test_loading_a_fresh_optimizers_own_state_is_silent_and_changes_nothing(world, method):
    assert world(2).run(fresh_own_state, method) == world(2).run(undisturbed, method,
                                                                 torch.float32)


def consolidated_only_on(to):
    model, optimizer = make("signsgd-ef")
    models.train(model, optimizer, 2, dist.get_rank())
    optimizer.consolidate_state_dict(to=to)
    keys = [sorted(optimizer.state_dict()["state"][0])]
    models.train(model, optimizer, 1, dist.get_rank())
    keys.append(sorted(optimizer.state_dict()["state"][0]))  # that of others is of another step
    optimizer.close()
    return keys


def test_consolidate_gathers_on_one_rank_until_the_next_step(world):
    for rank, (first, then) in enumerate(world(3).run(consolidated_only_on, 2)):
        own = [f"{b}.rank{rank}" for b in ("error", "m", "server_error")]
        everyone = sorted(f"{b}.rank{r}" for b in ("error", "m", "server_error") for r in range(3))
        strip = [k for k in first if ".rank" in k]
        assert strip == (everyone if rank == 2 else own)
        assert [k for k in then if ".rank" in k] == own


# --- Another number of ranks, and states that ranks do not share. -------------------------------------


def momenta(method, steps=4):
    """The consolidated state of every rank, and this rank's own."""
    model, optimizer = make(method)
    models.train(model, optimizer, steps, dist.get_rank())
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
    models.train(model, optimizer, 1, dist.get_rank())
    optimizer.check_replicas()
    optimizer.close()
    return flats, [str(w.message) for w in caught if "pride" in str(w.message)]


def by_rank(data, name, world):
    state = loaded(data)["optimizer"]["state"]
    return [torch.cat([entry[f"{name}.rank{r}"].reshape(-1) for entry in state.values()])
            for r in range(world)]


@pytest.mark.parametrize("local", ["keep", "average", "reset"])
@pytest.mark.parametrize("old, new", [(4, 2), (2, 3), (3, 1), (1, 2), (2, 2)])
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


def reset_of_own_files(files):
    return load_with(files[dist.get_rank()], "reset")


def test_reset_holds_for_own_files_too(world):
    files = [own for _, own in world(2).run(momenta, "dlion-vote")]
    for state, _ in world(2).run(reset_of_own_files, files):
        assert not state["m"].any() and state["step"].unique().tolist() == [4]


# --- What is refused: on all ranks, and nothing changes. ----------------------------------------------


def refused(files, local="keep", method="adamw"):
    """Loads files[rank]; the text of the error; then the run goes on as if nothing had been."""
    rank = dist.get_rank()
    model, optimizer = make(method)
    models.train(model, optimizer, 3, rank)
    before = saved(model, optimizer)
    text = None
    try:
        optimizer.load_state_dict(loaded(files[rank]), local=local)
    except (pride.Error, ValueError) as error:
        text = f"{type(error).__name__}: {error}"
    assert saved(model, optimizer) == before, "the state was changed"
    models.train(model, optimizer, 7, rank, first=3)
    return text, ending(optimizer, model)


def packed(state):
    data = io.BytesIO()
    torch.save(state, data)
    return data.getvalue()


def state_of(method="adamw", steps=2, sizes=(12, 33, 7), groups=1, consolidate=False, **kwargs):
    """A rank's state_dict, as bytes."""
    model = models.mlp(sizes=sizes)
    params = [{"params": part} for part in (
        [list(model.named_parameters())] if groups == 1 else
        [list(model[0].named_parameters("0")), list(model[2].named_parameters("2"))])]
    optimizer = pride.Optimizer(params, 1e-2, method=method, bucket_size=64, timeout=30,
                                options=OPTIONS.get(method), **kwargs)
    for step in range(steps):
        for p in model.parameters():
            p.grad = torch.full_like(p, 1.0 + dist.get_rank() + step)
        optimizer.step()
    if consolidate:
        optimizer.consolidate_state_dict()
    data = packed(optimizer.state_dict())
    optimizer.close()
    return data


def of_torch():
    model = models.mlp()
    optimizer = torch.optim.AdamW(model.parameters())
    models.train(model, optimizer, 1, 0)
    return packed(optimizer.state_dict())


def damaged(data, how):
    state = loaded(data)
    about = state["param_groups"][0]["pride"]
    texts = next(iter(about["ranks"].values()))
    entry = state["state"][1]
    key = next(k for k in entry if k != "step")
    if how == "nan":
        entry[key].view(-1)[3] = float("nan")
    elif how == "missing key":
        del entry[key]
    elif how == "missing parameter":
        del state["state"][1]
    elif how == "no texts":
        about["ranks"] = {}
    elif how == "half":
        entry[key] = entry[key].half()
    elif how == "no world":
        del texts["world"]
    elif how == "unknown kind":
        texts["kind.m"] = "elsewhere"
    elif how == "format":
        about["format"] = 99
    elif how == "lr":
        state["param_groups"][0]["lr"] = float("nan")
    elif how == "negative":
        state["param_groups"][0]["lr"] = -1.0
    elif how == "betas":
        state["param_groups"][0]["betas"] = (0.9,)
    elif how == "step":
        texts["step"] = "-4"
    elif how == "list":
        state = [1, 2]
    elif how == "model":
        state = models.mlp().state_dict()
    return packed(state)


DAMAGES = {"nan": "not finite", "missing key": "0.bias has no 'm'",
           "missing parameter": "0.bias has no 'm'", "no texts": "damaged",
           "half": "float16, must be torch.float32", "no world": "damaged.*world",
           "unknown kind": "damaged.*elsewhere", "format": "not of format 1",
           "lr": "lr of group 0 is NaN", "betas": "betas", "step": "damaged.*step",
           "negative": "group 0 has lr = -1.0", "list": "not the state of an optimizer", "model": "not the state of an optimizer"}


_expected = {}  # by number of ranks: the undisturbed runs


def check_refused(world, files, pattern, n=2, **kwargs):
    """On all ranks, with the reason on all of them; afterwards the run is an undisturbed one."""
    if n not in _expected:
        _expected[n] = world(n).run(undisturbed, "adamw", torch.float32)
    expected = _expected[n]
    got = world(n).run(functools.partial(refused, files, **kwargs))
    for rank, (text, end) in enumerate(got):
        assert text, f"rank {rank} loaded it"
        assert re.search(pattern, text), text
        assert end == expected[rank]
    return [text for text, _ in got]


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_file_of_one_rank_is_refused_by_all(world, how):
    files = world(2).run(state_of)
    texts = check_refused(world, [files[0], damaged(files[1], how)], DAMAGES[how])
    assert "rank 1 refuses load_state_dict" in texts[0] or "rank 1" in texts[0]


@pytest.mark.parametrize("kind, pattern", [
    ("method", "method lion, this optimizer has adamw"),
    ("shapes", r"0.weight has shape \(5, 12\), the parameter \(33, 12\)"),
    ("groups", "different number of parameter groups"),
    ("torch", "not saved by pride"),
    ("seed", "seed 5"),
])
def test_the_wrong_file_is_refused_by_all(world, kind, pattern):
    if kind == "torch":
        files = [of_torch()] * 2
    else:
        body = {"method": functools.partial(state_of, "lion"),
                "shapes": functools.partial(state_of, sizes=(12, 5, 7)),
                "groups": functools.partial(state_of, groups=2),
                "seed": functools.partial(state_of, seed=5)}[kind]
        files = world(2).run(body)
    check_refused(world, files, pattern)


def test_ranks_that_load_different_things_are_refused(world):
    two = world(2).run(state_of)
    later = world(2).run(state_of, "adamw", 3)
    check_refused(world, [two[0], later[1]], r"different steps \(rank 0: 2, rank 1: 3\)")
    three = world(3).run(state_of)
    check_refused(world, [two[0], three[1]],
                  "rank 0 loads the state of rank 0 of 2; rank 1 loads the state of rank 1 of 3")
    check_refused(world, three[:2], "rank 1 of 3; this run has 2")
    check_refused(world, [two[1], two[0]], "rank 0 loads the state of rank 1 of 2")
    other = loaded(two[1])
    other["state"][0]["m"][0, 0] += 1e-3  # of another run
    check_refused(world, [two[0], packed(other)], "state to load, in what all ranks have alike")
    rates = loaded(two[1])
    rates["param_groups"][0]["lr"] = 0.5
    check_refused(world, [two[0], packed(rates)], "hyper-parameters of the state to load")
    whole = world(3).run(state_of, "adamw", 2, (12, 33, 7), 1, True)[0]
    part = loaded(whole)
    del part["param_groups"][0]["pride"]["ranks"][2]
    check_refused(world, [packed(part)] * 2, "ranks 0, 1 of 3: others are missing")
    check_refused(world, two, "local = 'mean'", local="mean")
    check_refused(world, two, "needs the states of all ranks", local="average")


def other_arguments(kind):
    rank = dist.get_rank()
    model, optimizer = make("dlion-vote")
    models.train(model, optimizer, 1, rank)
    texts = []
    calls = {
        "to": lambda: optimizer.consolidate_state_dict(to=rank),
        "to beyond": lambda: optimizer.consolidate_state_dict(to=2 if rank else 0),
        "local": lambda: optimizer.load_state_dict(optimizer.state_dict(),
                                                   local="reset" if rank else "keep"),
    }
    with pytest.raises(pride.InvalidArgument) as caught:
        calls[kind]()
    texts.append(str(caught.value))
    models.train(model, optimizer, 1, rank)
    optimizer.check_replicas()
    optimizer.close()
    return texts


@pytest.mark.parametrize("kind, pattern", [("to", r"argument 'to' .* rank\(s\) 1"),
                                           ("to beyond", "to=2"),
                                           ("local", r"argument 'local' .* rank\(s\) 1")])
def test_arguments_that_differ_are_refused_by_all(world, kind, pattern):
    for texts in world(2).run(other_arguments, kind):
        assert re.search(pattern, texts[0]), texts


def in_the_middle_of_a_step():
    rank = dist.get_rank()
    model, optimizer = make(overlap=True)
    models.train(model, optimizer, 3, rank)
    models.backward(model, rank, 3)  # its exchange has begun
    with pytest.raises(pride.Error, match="middle of a step"):
        optimizer.state_dict()
    optimizer.step()
    return ending(optimizer, model)


def four_steps():
    model, optimizer = make()
    for step in range(4):
        if step < 3:
            optimizer.zero_grad()
        models.backward(model, dist.get_rank(), step)
        optimizer.step()
    return ending(optimizer, model)


def test_state_is_refused_in_the_middle_of_a_step_which_then_ends_well(world):
    assert world(2).run(in_the_middle_of_a_step) == world(2).run(four_steps)


# --- Copies and pickles. ------------------------------------------------------------------------------


def copied(how, method, dtype):
    rank = dist.get_rank()
    model, optimizer = make(method, dtype)
    models.train(model, optimizer, 4, rank)
    if how == "deepcopy":
        other_model, other = copy.deepcopy((model, optimizer))
    else:
        other_model, other = pickle.loads(pickle.dumps((model, optimizer)))
    assert type(other) is type(optimizer)
    for p, q in zip(model.parameters(), other_model.parameters()):
        assert p is not q and other.param_groups[0]["params"]
        for key, values in optimizer.state[p].items():
            assert torch.equal(other.state[q][key], values)
    assert all(p is q for p, q in zip(other_model.parameters(), other.param_groups[0]["params"]))
    first = other.state_dict()["state"][0]
    assert all(torch.equal(t, optimizer.state_dict()["state"][0][k]) for k, t in first.items())
    models.train(model, optimizer, 6, rank, first=4)
    expected = ending(optimizer, model)
    models.train(other_model, other, 6, rank, first=4)
    assert ending(other, other_model) == expected
    return expected


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
@pytest.mark.parametrize("n, method, dtype", [(1, "dlion-vote", torch.float32),
                                              (2, "dlion-vote", BF16),
                                              (2, "onebit-adam", torch.float32)])
def test_a_copy_goes_on_as_the_original_does(world, how, n, method, dtype):
    assert world(n).run(copied, how, method, dtype) == world(n).run(undisturbed, method, dtype)


def changed_copy():
    """A copy keeps what its owner changes before its first step."""
    rank = dist.get_rank()
    model, optimizer = make()
    models.train(model, optimizer, 2, rank)
    other_model, other = copy.deepcopy((model, optimizer))
    for each in (optimizer, other):
        each.param_groups[0]["lr"] = 5e-2
    assert other.state_dict()["param_groups"][0]["lr"] == 5e-2
    again = copy.deepcopy(other)  # a copy of a copy, with parameters of its own
    assert again.param_groups[0]["params"][0] is not other_model[0].weight
    late = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    for each, p in zip((optimizer, other), late):
        each.add_param_group({"params": [("late", p)]})
    for m, o, p in ((model, optimizer, late[0]), (other_model, other, late[1])):
        o.zero_grad()
        p.grad = torch.full((3,), 1.0 + rank)
        models.backward(m, rank, 2)
        o.step()
        assert o.param_groups[0]["lr"] == 5e-2
    assert models.bits(model.parameters()) == models.bits(other_model.parameters())
    assert models.bits([late[0]]) == models.bits([late[1]])
    assert ending(optimizer, model)[1] == ending(other, other_model)[1]


def test_a_copy_keeps_what_is_changed_before_its_first_step(world):
    world(1).run(changed_copy)
    world(2).run(changed_copy)


def pickle_with_group():
    model = models.mlp()
    optimizer = pride.DistributedLion(model.parameters(), process_group=dist.new_group([0]))
    with pytest.raises(TypeError, match="process_group"):
        pickle.dumps(optimizer)
    copy.deepcopy(optimizer).close()
    optimizer.close()


def test_an_optimizer_of_a_group_is_not_pickled(world):
    world(1).run(pickle_with_group)
