# pride.take_over(): steps after it: local steps, schedulers, changed groups and states.
# SPDX-License-Identifier: Apache-2.0
import copy
import functools

import pytest
import torch
from torch.optim import lr_scheduler

import pride
from models import batch, bits, loss_of, mlp, numbers, parameter
from test_take_over import loop


def what_is_saved(steps):
    """Whether ranks have equal parameters after each step, in eval and in a copy."""
    model = mlp()
    optimizer = pride.take_over(torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0),
                                model, method="local-vote", options={"h": 4}, bucket_size=64)
    own, seen = [], []
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, *batch(step)).backward()
        own.append(bits(model.parameters()))
        if step == 2:  # evaluation in the middle of a step
            with torch.no_grad():
                model.eval()(batch(0)[0])
            seen.append(bits(copy.deepcopy(model).parameters()))
            model.train()(batch(0)[0])
            assert bits(model.parameters()) == own[-1]
        if step == 3:
            with torch.no_grad():
                model.eval()(batch(0)[0])
            model.train()
        optimizer.step()
        seen.append(bits(model.parameters()))
    oracle = mlp()
    by_hand = pride.Optimizer(oracle.parameters(), 1e-2, method="local-vote", options={"h": 4},
                              bucket_size=64)
    loop(oracle, by_hand, lambda _: None, steps)
    by_hand.to_common()
    assert bits(oracle.parameters()) == seen[-1]
    return own, seen


def test_between_local_steps_the_model_has_the_common_parameters(world):
    (own, seen), (other, also_seen) = world(2).run(what_is_saved, 7)
    assert seen == also_seen and own[2] != other[2]


def test_values_written_between_local_steps_are_not_overwritten_in_silence():
    model = mlp()
    optimizer = pride.take_over(torch.optim.AdamW(model.parameters(), lr=1e-2), model,
                                method="local-vote", options={"h": 4})
    loop(model, optimizer, lambda _: None, 2)
    kept = copy.deepcopy(model.state_dict())
    averaged = {key: values + 1 for key, values in kept.items()}
    model.load_state_dict(averaged)  # as an average of weights that is evaluated, and put back
    model.load_state_dict(kept)
    loop(model, optimizer, lambda _: None, 1, 2)
    model.load_state_dict(averaged)
    with pytest.raises(pride.InvalidArgument, match="'0.weight' was changed between steps"):
        model(batch(0)[0])
    assert all(map(torch.equal, model.state_dict().values(), averaged.values()))
    optimizer.load_state_dict(optimizer.state_dict())
    loop(model, optimizer, lambda _: None, 1, 3)
    model[0].weight.sum().backward()  # no module sees it
    with pytest.raises(pride.InvalidArgument, match="no such forward pass was seen"):
        optimizer.step()


CALLS = {
    "the model": lambda model, x: model(x),
    "in eval()": lambda model, x: model.eval()(x),
    "its modules": lambda model, x: functools.reduce(lambda made, layer: layer(made), model, x),
    "after to_local()": lambda model, x: model.eval()(x),
    "partly without gradients": lambda model, x: model[2](_without_gradients(model[:2], x) + model[1](
        model[0](x))),
}


@torch.no_grad()
def _without_gradients(model, x):
    return 0 * model(x)


def trained_through(how, by_hand=False):
    model = mlp()
    if by_hand:
        optimizer = pride.Optimizer(model.parameters(), 1e-2, method="local-vote", options={"h": 4})
    else:
        optimizer = pride.take_over(torch.optim.AdamW(model.parameters(), lr=3e-2, weight_decay=0.0),
                                    model, method="local-vote", options={"h": 4}, lr_scale=1 / 3)
    for step in range(6):
        optimizer.zero_grad()
        if how == "after to_local()":
            optimizer.to_local()
        CALLS[how](model, batch(step)[0]).square().mean().backward()
        optimizer.step()
    optimizer.to_common()
    return bits(model.parameters())


def trained_through_all():
    return {how: trained_through(how) for how in CALLS}, trained_through("the model", True)


def test_a_forward_pass_with_gradients_is_training_however_it_is_called(world):
    for got, expected in world(2).run(trained_through_all):
        assert {how for how in CALLS if got[how] != expected} == set()


def trained_compiled(how):
    """Local steps of a model that torch.compile has compiled, and those of a plain one."""
    model = mlp()
    compiled = functools.partial(torch.compile, backend="eager")  # the hooks are dynamo's matter
    used = compiled(model) if how == "before" else model
    optimizer = pride.take_over(torch.optim.AdamW(model.parameters(), lr=3e-2, weight_decay=0.0),
                                used, method="local-vote", options={"h": 4}, lr_scale=1 / 3)
    if how == "after":
        used = compiled(model)
    elif how == "a part":
        model[0] = compiled(model[0])
    seen = []
    for step in range(6):
        optimizer.zero_grad()
        used(batch(step)[0]).square().mean().backward()
        optimizer.step()
        seen.append(bits(model.parameters()))
        with torch.no_grad():
            used(batch(0)[0])
        assert bits(model.parameters()) == seen[-1]  # the common ones
    return seen, trained_through("the model")


@pytest.mark.skipif(not hasattr(torch, "compile"), reason="this torch has no torch.compile")
@pytest.mark.parametrize("how", ["before", "after", "a part"])
def test_a_compiled_model_has_the_common_parameters_between_local_steps(world, how):
    (seen, expected), (other, _) = world(2).run(trained_compiled, how)
    assert seen == other and seen[-1] == expected


def test_one_cycle_changes_betas_that_are_not_followed_with_a_warning():
    model = torch.nn.Linear(3, 2)
    given = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = lr_scheduler.OneCycleLR(given, 3e-2, 4)
    optimizer = pride.take_over(given, model, scheduler=scheduler)
    with pytest.warns(UserWarning, match="'betas' of group 0 has changed.*cycle_momentum=False"):
        for _ in range(3):
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
            scheduler.step()
    assert optimizer._groups.values(optimizer.param_groups[0]).beta2 == 0.99


def test_a_rate_far_above_the_first_warns_once_with_the_groups_name():
    model = torch.nn.Linear(3, 2)
    groups = [{"params": [model.weight]}, {"params": [model.bias], "param_group": "bias"}]
    optimizer = pride.take_over(torch.optim.AdamW(groups, lr=2e-3), model)
    with pytest.warns(UserWarning) as got:
        for _ in range(2):
            optimizer.param_groups[1]["lr"] = 0.1  # a warm-up of biases, from above
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
    assert [str(w.message) for w in got if "pride" in str(w.message)] == [
        "pride: the rate of group 1 'bias' ('bias' ...) is 0.03333, 50 times the 0.0006667 that it "
        "began with: with signs every parameter of the group moves by it in each step"]


EDITS = {
    "vote_weight": lambda g: g.update(vote_weight=3),
    "kind": lambda g: g.update(kind="muon"),
    "use_muon": lambda g: g.update(use_muon=False),
    "lr": lambda g: g.pop("lr"),
    "betas": lambda g: g.pop("betas"),
    "weight_decay": lambda g: g.pop("weight_decay"),
    "capturable": lambda g: g.update(capturable=True),
}


@pytest.mark.parametrize("key", EDITS)
def test_a_key_that_no_step_follows_is_refused(key):
    p = parameter(0, 4)
    optimizer = pride.DistributedLion([p], 0.25)
    optimizer.param_groups[0].update(initial_lr=1.0, max_lr=2.0, lr_scale=0.5, name="all")
    p.grad = torch.ones(4)
    optimizer.step()
    EDITS[key](optimizer.param_groups[0])
    with pytest.raises(pride.InvalidArgument, match=f"group 0 has .*'?{key}"):
        optimizer.step()


def test_a_key_that_no_step_follows_is_refused_at_the_start():
    with pytest.raises(pride.InvalidArgument, match="'vote_weight', .*argument of the optimizer"):
        pride.DistributedLion([{"params": [parameter(0, 4)], "vote_weight": 2}])


def test_entries_of_the_state_that_are_replaced_or_gone_are_followed():
    p, q = parameter(0, 4), parameter(1, 4)
    optimizer = pride.DistributedLion([p, q], 0.25)
    key = "m.rank0"

    def momenta():
        for i, each in enumerate((p, q)):
            each.grad = numbers(i, 4)
        optimizer.step()
        return [optimizer.state_dict()["state"][i][key].clone() for i in (0, 1)]

    fresh = momenta()
    for reset in (lambda: optimizer.state.clear(), lambda: setattr(optimizer, "state", {}),
                  lambda: [optimizer.state.pop(each) for each in (p, q)],
                  lambda: [optimizer.state[each].clear() for each in (p, q)],
                  lambda: [optimizer.state[each].update({key: torch.zeros(4)}) for each in (p, q)]):
        assert not torch.equal(momenta()[0], fresh[0])
        reset()
        assert all(map(torch.equal, momenta(), fresh))
        assert optimizer.state[p][key].data_ptr() == optimizer._parameters.views._made[0][1][key].data_ptr()
    optimizer.state[p][key] = torch.full((4,), 2.0)
    assert optimizer.state_dict()["state"][0][key].tolist() == [2.0] * 4
    for edit, text in ((lambda e: e.update({key: torch.ones(3)}), r"'m.rank0' of .* is \(3,\)"),
                       (lambda e: e.update(step=torch.tensor(0.0)), "'step' of .* is 0 now"),
                       (lambda e: e.update(exp_avg=torch.ones(4)), "has 'exp_avg'")):
        before = dict(optimizer.state[p])
        edit(optimizer.state[p])
        for use in (optimizer.step, optimizer.state_dict):
            with pytest.raises(pride.InvalidArgument, match=text):
                use()
        optimizer.state[p].clear()
        optimizer.state[p].update(before)
    optimizer.step()


def test_a_state_that_depends_on_the_number_of_steps_cannot_be_cleared():
    p = parameter(0, 4)
    optimizer = pride.Optimizer([p], 0.25, method="adamw")
    optimizer.state.clear()
    with pytest.raises(pride.InvalidArgument, match="adamw cannot reset it"):
        optimizer.step()
