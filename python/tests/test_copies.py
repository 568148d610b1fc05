# Copies of optimizers on two ranks: what follows a refusal, and local steps.
# SPDX-License-Identifier: Apache-2.0
import copy
import warnings

import pytest
import torch.distributed as dist

import models
import pride


def refused_and_tried_again():
    """(step of the state, parameters) of an optimizer, and of a copy that is refused once, both after
    one more step."""
    model, optimizer = models.make()
    models.train(model, optimizer, 4)
    made_model, made = copy.deepcopy((model, optimizer))
    weight = made_model[0].weight.detach()
    kept = weight.clone()
    weight += dist.get_rank()
    models.backward(made_model, 4)
    with pytest.raises(pride.InvalidArgument, match="initial parameters of rank.s. 1"):
        made.step()
    weight.copy_(kept)
    return [ending(*each) for each in ((model, optimizer), (made_model, made))]


def ending(model, optimizer):
    optimizer.zero_grad()
    models.backward(model, 4)
    optimizer.step()
    state = optimizer.state_dict()["state"][0]
    found = int(state["step"]), models.bits(model.parameters()), models.bits([
        state[f"m.rank{dist.get_rank()}"]])
    optimizer.close()
    return found


def test_a_copy_that_was_refused_has_its_state_when_it_is_tried_again(world):
    for of_model, of_copy in world(2).run(refused_and_tried_again):
        assert of_model == of_copy and of_model[0] == 5


def copied_between_exchanges(method, options):
    model, optimizer = models.make(method, options=options)
    models.train(model, optimizer, 4)
    made_model, made = copy.deepcopy((model, optimizer))
    for m, o in ((model, optimizer), (made_model, made)):
        models.train(m, o, 4, first=4)
        o.to_common()
    return [models.bits(m.parameters()) for m in (model, made_model)]


@pytest.mark.parametrize("method, options", [("local-vote", {"h": 3}), ("diloco", {"h": 3})])
def test_copies_go_on_between_exchanges_of_local_steps(world, method, options):
    for of_model, of_copy in world(2).run(copied_between_exchanges, method, options):
        assert of_model == of_copy


def copied_on_one_rank():
    model, optimizer = models.make()
    models.train(model, optimizer, 3)
    if dist.get_rank() == 0:
        copy.deepcopy(optimizer)
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        models.train(model, optimizer, 2, first=3)
    return [str(each.message) for each in given]


def test_a_copy_on_one_rank_is_no_save(world):
    assert world(2).run(copied_on_one_rank) == [[], []]


def test_a_closed_optimizer_takes_no_group():
    model, optimizer = models.make()
    optimizer.close()
    with pytest.raises(pride.CommError, match="the optimizer is closed"):
        optimizer.add_param_group({"params": [models.mlp()[0].weight]})
    assert len(optimizer.param_groups) == 1
    with pytest.raises(pride.Error, match="no traffic: the optimizer is closed"):
        optimizer.traffic()
