# Methods with local steps from Python: what ranks have in common, and states in the middle of a phase
# and of a delay.
# SPDX-License-Identifier: Apache-2.0
#
# Oracles: the other ranks, and the undisturbed run.
import pytest
import torch

import models
import pride
from checkpoints import BF16, loaded, saved

PLAIN = {"h": 4}
STREAM = {"h": 4, "fragments": 2, "delay": 2}
FED_AVG = {"h": 4, "local": "sgdm", "outer_lr": 1, "outer_beta1": 0, "nesterov": "no"}
KINDS = [("local-vote", PLAIN), ("diloco", PLAIN), ("diloco", FED_AVG), ("local-vote", STREAM), ("local-ef", STREAM)]
STEPS = 11


def make(method, options, dtype=torch.float32, copies=False, **kwargs):
    model = models.mlp(dtype=dtype)
    if copies:  # columns after columns in memory
        for p in model.parameters():
            if p.dim() == 2:
                p.data = p.data.t().contiguous().t()
    return models.make(method, model, options=options, **kwargs)


def bits(model):
    return models.bits(model.parameters())


def backward(model, step):
    """Without a product of matrices: torch may round it otherwise in another order of memory."""
    total = 0.0
    for i, p in enumerate(model.parameters()):
        aim = models.numbers(1000 * step + 100 * models.own_rank() + i, *p.shape)
        total = total + (p.float() - aim).square().sum()
    total.backward()


def trace(method, options, dtype, copies, lanes):
    """After each step: this rank's own parameters and the common ones."""
    model, optimizer = make(method, options, dtype, copies, lanes=lanes)
    own, common = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        backward(model, step)
        optimizer.step()
        own.append(bits(model))
        with optimizer.common_parameters():
            common.append(bits(model))
        assert bits(model) == own[-1], "to_local() is not the way back"
    hashes = optimizer.check_replicas()
    optimizer.close()
    return own, common, hashes


@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("method, options", KINDS)
def test_common_parameters_are_equal_on_all_ranks_after_every_step(world, n, method, options):
    ranks = world(n).run(trace, method, options, torch.float32, False, 2)
    for step in range(STEPS):
        assert all(r[1][step] == ranks[0][1][step] for r in ranks), f"step {step}"
    if n > 1:
        assert ranks[0][0][1] != ranks[1][0][1], "between exchanges ranks go their own way"
    assert ranks[0][1][3] != ranks[0][1][0], "an exchange moves what they have in common"
    assert len({r[2] for r in ranks}) == 1


@pytest.mark.parametrize("method, options", KINDS)
def test_copies_and_lanes_have_the_same_bits(world, method, options):
    want = world(2).run(trace, method, options, torch.float32, False, 2)
    for copies, lanes in ((True, 2), (False, 0), (True, 1)):
        assert world(2).run(trace, method, options, torch.float32, copies, lanes) == want


def test_parameters_in_bfloat16_are_those_of_their_masters(world):
    ranks = world(2).run(trace, "local-vote", STREAM, BF16, False, 2)
    assert ranks[0][1] == ranks[1][1]
    assert ranks[0][0][1] != ranks[1][0][1]


def resumed(method, options, dtype, at, in_common, model_too):
    def ended(model, optimizer):
        with optimizer.common_parameters():
            common = bits(model)
        own = bits(model)
        optimizer.close()
        return own, common

    model, optimizer = make(method, options, dtype)
    models.train(model, optimizer, STEPS)
    want = ended(model, optimizer)

    model, optimizer = make(method, options, dtype)
    models.train(model, optimizer, at)
    if in_common:
        with optimizer.common_parameters():
            data = saved(model, optimizer)
    else:
        data = saved(model, optimizer)
    optimizer.close()

    model, optimizer = make(method, options, dtype)
    state = loaded(data)
    if model_too:
        model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    models.train(model, optimizer, STEPS - at, first=at)
    assert ended(model, optimizer) == want


@pytest.mark.parametrize("method, options", KINDS)
def test_a_state_from_the_middle_of_a_phase_goes_on_with_the_same_bits(world, method, options):
    for at in range(1, 9):
        world(2).run(resumed, method, options, torch.float32, at, at % 2 == 0, at % 3 > 0)
    for at in (3, 5):
        world(2).run(resumed, method, options, BF16, at, at == 3, at == 5)


def bytes_sent(options):
    model, optimizer = make("local-vote", options)
    models.train(model, optimizer, 4)
    before = optimizer.traffic()["bytes_sent"]
    models.train(model, optimizer, 8, first=4)
    traffic = optimizer.traffic()
    optimizer.close()
    return traffic["bytes_sent"] - before, traffic["mean_cost_bytes"]


@pytest.mark.parametrize("options", [PLAIN, STREAM])
def test_bytes_are_the_mean_cost_times_the_steps(world, options):
    for sent, mean in world(3).run(bytes_sent, options):
        assert 8 * mean - 16 <= sent <= 8 * mean  # both directions are rounded up
        assert mean > 0
    shapes = [p.shape for p in models.mlp().parameters()]
    assert pride.step_bytes("local-vote", shapes, 3, options=options, bucket_size=64) == max(
        mean for _, mean in world(3).run(bytes_sent, options))


def in_backward():
    model, optimizer = make("local-vote", PLAIN, overlap=True)
    models.train(model, optimizer, 3)
    models.backward(model, 3)
    with pytest.raises(pride.InvalidArgument, match="to_common.. between backward and step"):
        optimizer.to_common()
    optimizer.step()
    optimizer.to_common()
    optimizer.to_local()
    optimizer.close()


def test_the_middle_of_a_step_has_no_common_parameters(world):
    world(2).run(in_backward)


def nested(overlap):
    model, optimizer = make("local-vote", PLAIN, overlap=overlap)
    models.train(model, optimizer, 3)
    own = bits(model)
    with optimizer.common_parameters():
        common = bits(model)
        with optimizer.common_parameters():
            assert bits(model) == common
        assert bits(model) == common != own
    assert bits(model) == own
    optimizer.to_common()
    with pytest.raises(pride.InvalidArgument, match="call to_local.. before the next gradient"):
        models.train(model, optimizer, 1, first=3)


@pytest.mark.parametrize("overlap", [False, True])
def test_inside_another_block_nothing_changes_and_no_step_is_taken_there(world, overlap):
    world(2).run(nested, overlap)


def yes_and_no():
    params = [torch.nn.Parameter(torch.ones(4))]
    optimizer = pride.Optimizer(params, 1e-3, method="diloco", options={"nesterov": False})
    params[0].grad = torch.ones(4)
    optimizer.step()
    optimizer.close()


def test_true_and_false_are_the_options_yes_and_no(world):
    world(1).run(yes_and_no)


def without_local_steps():
    model, optimizer = models.make()
    models.train(model, optimizer, 3)
    before, versions = bits(model), [p._version for p in model.parameters()]
    with optimizer.common_parameters():
        assert bits(model) == before
    assert [p._version for p in model.parameters()] == versions
    optimizer.close()
    with pytest.raises(pride.Error):
        optimizer.to_common()


def test_other_methods_have_nothing_to_replace(world):
    world(2).run(without_local_steps)
