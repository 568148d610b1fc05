# Copies and pickles of optimizers.
# SPDX-License-Identifier: Apache-2.0
#
# Oracle: the original, and the undisturbed run.
import copy
import pickle

import pytest
import torch
import torch.distributed as dist

import models
import pride
from checkpoints import BF16, ending, make, undisturbed


def copied(how, method, dtype):
    model, optimizer = make(method, dtype)
    models.train(model, optimizer, 4)
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
    models.train(model, optimizer, 6, first=4)
    expected = ending(model, optimizer)
    models.train(other_model, other, 6, first=4)
    assert ending(other_model, other) == expected
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
    models.train(model, optimizer, 2)
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
        models.backward(m, 2)
        o.step()
        assert o.param_groups[0]["lr"] == 5e-2
    assert models.bits(model.parameters()) == models.bits(other_model.parameters())
    assert models.bits([late[0]]) == models.bits([late[1]])
    assert ending(model, optimizer)[1] == ending(other_model, other)[1]


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
