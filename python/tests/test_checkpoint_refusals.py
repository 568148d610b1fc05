# States that are refused: on all ranks, and nothing changes.
# SPDX-License-Identifier: Apache-2.0
#
# Oracle: the undisturbed run.
import re

import pytest
import torch
import torch.distributed as dist

import models
import pride
from checkpoints import OPTIONS, ending, loaded, make, packed, saved, undisturbed


def refused(files, local="keep", method="adamw"):
    """Loads files[rank]; the text of the error; then the run goes on as if nothing had been."""
    rank = dist.get_rank()
    model, optimizer = make(method)
    models.train(model, optimizer, 3)
    before = saved(model, optimizer)
    text = None
    try:
        optimizer.load_state_dict(loaded(files[rank]), local=local)
    except (pride.Error, ValueError) as error:
        text = f"{type(error).__name__}: {error}"
    assert saved(model, optimizer) == before, "the state was changed"
    models.train(model, optimizer, 7, first=3)
    return text, ending(model, optimizer)


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
    models.train(model, optimizer, 1)
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
    elif how == "whole numbers":
        entry[key] = entry[key].int()
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
           "whole numbers": "int32, must be torch.float32", "no world": "damaged.*world",
           "unknown kind": "damaged.*elsewhere", "format": "not of format 1",
           "lr": "lr of group 0 = nan", "betas": "betas", "step": "damaged.*step",
           "negative": "lr of group 0 = -1.0", "list": "not the state of an optimizer",
           "model": "not the state of an optimizer"}


_expected = {}  # by method: the undisturbed runs


def check_refused(world, files, pattern, method="adamw", **kwargs):
    """On all ranks, with the reason on all of them; afterwards the run is an undisturbed one."""
    if method not in _expected:
        _expected[method] = world(2).run(undisturbed, method)
    expected = _expected[method]
    got = world(2).run(refused, files, method=method, **kwargs)
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
        other = {"method": dict(method="lion"), "shapes": dict(sizes=(12, 5, 7)),
                 "groups": dict(groups=2), "seed": dict(seed=5)}[kind]
        files = world(2).run(state_of, **other)
    check_refused(world, files, pattern)


def test_ranks_that_load_different_things_are_refused(world):
    two = world(2).run(state_of)
    later = world(2).run(state_of, "adamw", 3)
    check_refused(world, [two[0], later[1]], r"different steps \(rank 0: 2, rank 1: 3\)")
    vote = dict(method="dlion-vote")
    of_two, of_three = (world(n).run(state_of, "dlion-vote") for n in (2, 3))
    check_refused(world, [of_two[0], of_three[1]],
                  "rank 0 loads the state of rank 0 of 2; rank 1 loads the state of rank 1 of 3",
                  **vote)
    check_refused(world, of_three[:2], "rank 1 of 3; this run has 2", **vote)
    check_refused(world, [of_two[1], of_two[0]], "rank 0 loads the state of rank 1 of 2", **vote)
    other = loaded(two[1])
    other["state"][0]["m"][0, 0] += 1e-3  # of another run
    check_refused(world, [two[0], packed(other)], "shared part of the state to load")
    rates = loaded(two[1])
    rates["param_groups"][0]["lr"] = 0.5
    check_refused(world, [two[0], packed(rates)], "hyper-parameters of the state to load")
    whole = world(3).run(state_of, "dlion-vote", consolidate=True)[0]
    part = loaded(whole)
    del part["param_groups"][0]["pride"]["ranks"]["2"]
    check_refused(world, [packed(part)] * 2, "ranks 0, 1 of 3: others are missing", **vote)
    check_refused(world, two, "local = 'mean'", local="mean")
    check_refused(world, two, "needs the states of all ranks", local="average")


def other_arguments(kind):
    rank = dist.get_rank()
    model, optimizer = make("dlion-vote")
    models.train(model, optimizer, 1)
    calls = {
        "to": lambda: optimizer.consolidate_state_dict(to=rank),
        "to beyond": lambda: optimizer.consolidate_state_dict(to=2 if rank else 0),
        "local": lambda: optimizer.load_state_dict(optimizer.state_dict(),
                                                   local="reset" if rank else "keep"),
    }
    with pytest.raises(pride.InvalidArgument) as caught:
        calls[kind]()
    models.train(model, optimizer, 1)
    models.ended(model, optimizer)
    return str(caught.value)


@pytest.mark.parametrize("kind, pattern", [("to", r"argument 'to' .* rank\(s\) 1"),
                                           ("to beyond", "to=2"),
                                           ("local", r"argument 'local' .* rank\(s\) 1")])
def test_arguments_that_differ_are_refused_by_all(world, kind, pattern):
    for text in world(2).run(other_arguments, kind):
        assert re.search(pattern, text), text


def four_steps(overlap):
    model, optimizer = make(overlap=overlap)
    models.train(model, optimizer, 3)
    models.backward(model, 3)
    if overlap:  # the exchange has begun
        with pytest.raises(pride.Error, match="between backward and step"):
            optimizer.state_dict()
    optimizer.step()
    return ending(model, optimizer)


def test_state_is_refused_in_the_middle_of_a_step_which_then_ends_well(world):
    assert world(2).run(four_steps, True) == world(2).run(four_steps, False)


@pytest.mark.skipif(models.NEW_TORCH, reason="this torch has torch.distributed.checkpoint")
def test_checkpoints_of_torch_say_which_torch_they_need():
    with pytest.raises(ImportError, match="of torch 2.2 or newer, this is torch 1"):
        pride.checkpoint.save("ck", None, None)
