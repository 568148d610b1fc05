# Values of groups that change in every step: schedulers, and loops that write them.
# SPDX-License-Identifier: Apache-2.0
#
# Oracle: for each step a new optimizer, made with the values of that step, that loads the state
# before it.
import copy
import math

import pytest
import torch
from torch.optim import lr_scheduler

import models
import pride
from models import parameter, set_gradients

KEYS = ("lr", "betas", "eps", "weight_decay")
STEPS = 6
MIXES = {  # methods of groups, by name
    "one method": [None, None, None],
    "sections": [None, "adamw", "lion"],
    "matrices and the rest": ["dlion-muon", "adamw", "adamw"],
}
if "dlion-muon" not in [m.name for m in pride.methods()]:  # this build has no CBLAS
    del MIXES["matrices and the rest"]


def one_cycle(optimizer):
    return lr_scheduler.OneCycleLR(optimizer, [1e-2, 1e-3, 3e-3], STEPS, cycle_momentum=True).step


def lambdas(optimizer):
    return lr_scheduler.LambdaLR(optimizer, [
        lambda step: 1 / (1 + step), lambda step: 1.5 ** step, lambda step: 1 - step / STEPS]).step


def by_hand(optimizer):
    """Each group has its own schedule of rate, betas or decay."""
    def write(step):
        first, second, third = optimizer.param_groups
        first["lr"] = 1e-2 * math.cos(step / STEPS)
        first["weight_decay"] = 0.5 * (1 - step / STEPS)
        second["betas"] = (0.85 + 0.02 * step, second["betas"][1])
        third["betas"] = (third["betas"][0], 1 - 0.1 / (step + 1))
        third["weight_decay"] = torch.tensor(0.1 * step)
        third["lr"] = torch.tensor(5e-4 / (1 + step))

    steps = iter(range(STEPS + 1))
    write(next(steps))
    return lambda: write(next(steps))


SCHEDULES = {"OneCycleLR": one_cycle, "LambdaLR": lambdas, "by hand": by_hand}


def made(methods, values=None, **more):
    """Parameters, and an optimizer of three groups; values: a dict for each group."""
    params = [parameter(0, 12, 7), parameter(1, 70), parameter(2, 9, 5)]
    groups = [{"params": [(f"p{i}", p)], "matrix": i == 0, **({"method": method} if method else {})}
              for i, (p, method) in enumerate(zip(params, methods))]
    for group, own in zip(groups, values or ()):
        group.update(own)
    return params, pride.Optimizer(groups, 3e-3, weight_decay=0.1, method="dlion-vote", timeout=30,
                                   bucket_size=64, **more)


def values_of(optimizer):
    return [{key: group[key] for key in KEYS if key in group} for group in optimizer.param_groups]


def live(mix, schedule, **more):
    """The bits after each step, and each step's values."""
    params, optimizer = made(MIXES[mix], **more)
    advance, bits, values = SCHEDULES[schedule](optimizer), [], []
    for step in range(STEPS):
        values.append(copy.deepcopy(values_of(optimizer)))
        set_gradients(params, step, models.own_rank())
        optimizer.step()
        bits.append(models.bits(params))
        advance()
    optimizer.check_replicas()
    optimizer.close()
    return bits, values


def with_new_optimizers(mix, values):
    params, bits, state = None, [], None
    for step, own in enumerate(values):
        before, (params, optimizer) = params, made(MIXES[mix], own)
        if step:
            for p, q in zip(params, before):
                p.data.copy_(q.data)
            for group, new in zip(state["param_groups"], own):
                group.update(new)
            optimizer.load_state_dict(state)
        set_gradients(params, step, models.own_rank())
        optimizer.step()
        bits.append(models.bits(params))
        state = optimizer.state_dict()
        optimizer.close()
    return bits


def changes(values):
    return sorted({(g, key) for step in values for g, group in enumerate(step) for key in group
                   if group[key] != values[0][g][key]})


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("mix", MIXES)
def test_values_of_a_step_act_in_that_step(mix, schedule):
    bits, values = live(mix, schedule)
    assert bits == with_new_optimizers(mix, values)
    assert changes(values) == {
        "OneCycleLR": [(g, key) for g in range(3) for key in ("betas", "lr")],
        "LambdaLR": [(g, "lr") for g in range(3)],
        "by hand": [(0, "lr"), (0, "weight_decay"), (1, "betas"), (2, "betas"), (2, "lr"),
                    (2, "weight_decay")]}[schedule]
    for g, key in changes(values):  # each of them matters
        kept = copy.deepcopy(values)
        for step in kept:
            step[g][key] = values[0][g][key]
        assert bits != with_new_optimizers(mix, kept), (g, key)


def test_values_of_a_step_act_on_all_ranks(world):
    mix = list(MIXES)[-1]
    results = world(2).run(live, mix, "by hand")
    assert results[0] == results[1]
    assert results[0][0] == world(2).run(with_new_optimizers, mix, results[0][1])[0]


# --- Ranks that differ. ---------------------------------------------------------------------------

ODD = {"lr": 0.5, "betas": (0.9, 0.5), "eps": 0.25, "weight_decay": 0.75}


def apart(key, late, **more):
    """In a step rank 1 has another value in group 1."""
    params, optimizer = made(MIXES["sections"], [{}, {key: ODD[key]} if late is None and (
        models.own_rank() == 1) else {}], **more)
    for step in range(STEPS):
        if step == late and models.own_rank() == 1:
            optimizer.param_groups[1][key] = ODD[key]
        set_gradients(params, step, models.own_rank())
        before = models.bits(params)
        try:
            optimizer.step()
        except pride.InvalidArgument:
            assert models.bits(params) == before
            optimizer.close()
            raise


TEXTS = {"lr": "lr of group 1 is 0.001 on rank(s) 0, 2 and 0.5 on rank(s) 1: it must be equal",
         "betas": "beta2 of group 1 is 0.999 on rank(s) 0, 2 and 0.5 on rank(s) 1",
         "eps": "eps of group 1 is 1e-08 on rank(s) 0, 2 and 0.25 on rank(s) 1",
         "weight_decay": "weight_decay of group 1 is 0.0 on rank(s) 0, 2 and 0.75 on rank(s) 1"}


@pytest.mark.parametrize("late, more", [(None, {}), (0, {}), (4, {}), (4, {"lanes": 0})], ids=str)
@pytest.mark.parametrize("key", ODD)
def test_ranks_with_other_values_are_refused_by_group_and_value(world, key, late, more):
    for error in world(3).errors(apart, key, late, **more):
        assert error and error[0] is pride.InvalidArgument and TEXTS[key] in error[1], error


def apart_at_the_end():
    """Ranks 0 and 1 have batches left; their rates differ."""
    params, optimizer = made(MIXES["sections"])
    with pride.join(optimizer):
        for step in range(0 if models.own_rank() == 2 else 5):
            optimizer.param_groups[1]["lr"] = 0.5 if (step, models.own_rank()) == (4, 1) else 0.25
            set_gradients(params, step, models.own_rank())
            optimizer.step()


def test_a_rank_without_data_raises_with_the_others(world):
    for error in world(3).errors(apart_at_the_end):
        assert error and "lr of group 1 is 0.25 on rank(s) 0 and 0.5 on rank(s) 1" in error[1], error


def taken_over():
    model = torch.nn.Linear(4, 2)
    given = torch.optim.AdamW(model.parameters(), lr=0.1 * (1 + models.own_rank()))
    optimizer = pride.take_over(given, model, lr_scale=0.5, timeout=30)
    optimizer.step()


def test_values_of_a_group_that_was_taken_over_are_the_methods(world):
    for error in world(2).errors(taken_over):
        assert "lr of group 0 (times 'pride_lr_scale') is 0.05 on rank(s) 0 and 0.1 on" in error[1], error
