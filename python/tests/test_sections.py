# Groups with a method of their own: sections of one optimizer.
# SPDX-License-Identifier: Apache-2.0
#
# Oracle: an optimizer of its own for each method, over the tensors of its groups. Both methods take no
# random bits, whose keys are coordinates in the whole model.
import copy
import functools
import pickle

import pytest
import torch
import torch.distributed as dist
from torch.optim import lr_scheduler

import models
import pride
from models import moved, parameter, set_gradients
from nodes import backward, model_of

STEPS = 5
PAIRS = {"a vote and AdamW": (("dlion-avg", {}), ("adamw", {})),
         "AdamW and Muon's vote": (("adamw", {"dense": "bf16"}), ("dlion-muon-avg", {"every": 2})),
         "with server state": (("onebit-adam", {"freeze_steps": 2}), ("signum-avg", {})),
         "local steps": (("diloco", {"h": 2}), ("local-ef", {"h": 2}))}
if "dlion-muon" not in [m.name for m in pride.methods()]:  # this build has no CBLAS
    del PAIRS["AdamW and Muon's vote"]


def groups_of(model, pair):
    """Vectors have the first method and its default rate, matrices the second and a rate."""
    named = list(model.named_parameters())
    return [{"params": [(n, p) for n, p in named if (p.ndim > 1) == matrices], "method": method,
             "options": options, **more} for matrices, (method, options), more in zip(
                 (False, True), pair, ({}, {"lr": 3e-3, "weight_decay": 0.1}))]


def made(model, pair, apart=False, **more):
    """One optimizer of both groups, whose own method is that of the first; or one for each."""
    groups = groups_of(model, pair)
    door = pride.VirtualWorkers if "workers" in more else functools.partial(pride.Optimizer, timeout=30)
    more = {"bucket_size": 64, **more}
    if not apart:
        first = {k: v for k, v in groups[0].items() if k not in ("method", "options")}
        return [door([first, groups[1]], method=pair[0][0], options=pair[0][1], **more)]
    return [door([{k: v for k, v in group.items() if k not in ("method", "options")}],
                 method=method, options=options, **more)
            for group, (method, options) in zip(groups, pair)]


def train(model, optimizers, steps, first=0):
    for step in range(first, first + steps):
        for optimizer in optimizers:
            optimizer.zero_grad()
        backward(model, models.own_rank(), step)
        for optimizer in optimizers:
            optimizer.step()


def ending(model, optimizers):
    """(weights, {key of a state's entry: bytes}) of a model."""
    state = {}
    for optimizer in optimizers:
        optimizer.check_replicas()
        saved = optimizer.state_dict()
        params = [p for group in optimizer.param_groups for p in group["params"]]
        names = {id(p): n for n, p in model.named_parameters()}
        for i, entry in saved["state"].items():
            state.update({(names[id(params[i])], key): t.float().numpy().tobytes()
                          for key, t in entry.items() if not key.startswith("step.")})
        optimizer.to_common()
    weights = models.bits(model.parameters())
    for optimizer in optimizers:
        optimizer.close()
    return weights, state


def trained(name, apart, dtype=torch.float32, **more):
    model = model_of(dtype)
    optimizers = made(model, PAIRS[name], apart, **more)
    train(model, optimizers, STEPS)
    return ending(model, optimizers)


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("n, more", [(1, {}), (2, {}), (2, {"lanes": 0}), (2, {"overlap": True})],
                         ids=str)
def test_a_section_steps_as_an_optimizer_of_its_own(world, name, n, more):
    expected = world(n).run(trained, name, True)
    assert world(n).run(trained, name, False, **more) == expected
    assert expected[0][0] != models.bits(model_of().parameters())


def test_sections_have_masters(world):
    expected = world(2).run(trained, "a vote and AdamW", True, torch.bfloat16)
    assert world(2).run(trained, "a vote and AdamW", False, torch.bfloat16) == expected


def played(name, workers):
    """Virtual workers."""
    model = model_of()
    (optimizer,) = made(model, PAIRS[name], workers=workers)
    for step in range(STEPS):
        for rank in range(workers):
            with optimizer.worker(rank):
                backward(model, rank, step)
        optimizer.step()
    return ending(model, [optimizer])[0]


@pytest.mark.parametrize("name", PAIRS)
def test_virtual_workers_take_the_steps_of_ranks(world, name):
    assert played(name, 2) == world(2).run(trained, name, True)[0][0]


# --- Groups and their values. ---------------------------------------------------------------------


def pair_of(**second):
    """An optimizer of two vectors, the second in a group of its own."""
    params = [parameter(0, 40), parameter(1, 6)]
    return params, pride.Optimizer([{"params": params[:1]}, {"params": params[1:], **second}],
                                   lr=0.25, betas=(0.5, 0.75), weight_decay=0.125, method="dlion-vote")


def test_what_a_group_does_not_give_is_its_methods_default():
    _, optimizer = pair_of(method="adamw", weight_decay=0.5)
    first, second = optimizer.param_groups
    info = pride.method_info("adamw")
    assert (first["lr"], first["betas"], first["weight_decay"]) == (0.25, (0.5, 0.75), 0.125)
    assert (second["lr"], second["betas"], second["eps"]) == (info.lr, (info.beta1, info.beta2), info.eps)
    assert second["weight_decay"] == 0.5 and "eps" not in first
    optimizer.add_param_group({"params": [parameter(2, 3)], "method": "signsgd-ef", "lr": 0.5})
    optimizer.add_param_group({"params": [parameter(3, 3)]})
    assert "betas" not in optimizer.param_groups[2] and optimizer.param_groups[2]["lr"] == 0.5
    assert optimizer.param_groups[3]["betas"] == (0.5, 0.75)
    optimizer.close()


def test_the_optimizers_method_may_be_left_out_if_each_group_has_its_own():
    groups = [{"params": [parameter(i, 5)], "method": method} for i, method in enumerate(("lion", "adamw"))]
    for door in (pride.Optimizer, functools.partial(pride.VirtualWorkers, workers=2)):
        optimizer = door(groups)
        assert [group["lr"] for group in optimizer.param_groups] == [
            pride.method_info(group["method"]).lr for group in groups]
        lr_scheduler.OneCycleLR(optimizer, 0.5, 8)  # both have betas
        with pytest.raises(pride.InvalidArgument, match="group 2 has no 'method': without method= each"):
            optimizer.add_param_group({"params": [parameter(2, 3)]})
        optimizer.add_param_group({"params": [parameter(2, 3)], "method": "signsgd-ef"})
        optimizer.close()
    for params, more, text in (
            ([parameter(0, 5)], {}, "method is missing: give method=, or each group a 'method'"),
            ([*groups, {"params": [parameter(2, 3)]}], {}, "group 2 has no 'method'"),
            ([{"params": [parameter(2, 3)]}, *groups], {}, "method is missing"),
            (groups, dict(lr=0.5), "lr, .* are of groups without a method of their own: give method="),
            (groups, dict(options={"tie": "zero"}), "options are of groups without a method")):
        with pytest.raises(pride.InvalidArgument, match=text):
            pride.Optimizer(params, **more)


def test_a_cycled_momentum_is_refused_if_a_group_has_none():
    _, optimizer = pair_of(method="signsgd-ef")
    with pytest.raises(ValueError, match="must support momentum"):
        lr_scheduler.OneCycleLR(optimizer, 0.5, 8)
    lr_scheduler.OneCycleLR(optimizer, 0.5, 8, cycle_momentum=False)
    optimizer.close()


def test_a_changed_rate_acts_on_its_section():
    (first, second), optimizer = pair_of(method="adamw", weight_decay=0.0)
    for rate in (1e-3, 2e-3, 0.0):
        optimizer.param_groups[1]["lr"] = rate
        set_gradients([first, second], 0)  # equal ones: AdamW's steps then have the size of the rate
        before = second.detach().clone()
        assert moved(first, optimizer, 0).min() > 0.2
        assert torch.allclose((second - before).abs(), torch.tensor(rate), atol=1e-6)
    optimizer.close()


@pytest.mark.parametrize("change, text", [
    (dict(method="lion"), "group 1: method is lion now and was adamw"),
    (dict(method=None), "group 1: method is None now and was adamw"),
    (dict(options={"dense": "bf16"}), "group 1: options is {'dense': 'bf16'} now and was {}")], ids=str)
def test_a_groups_method_cannot_change(change, text):
    params, optimizer = pair_of(method="adamw")
    before = models.bits(params)
    kept = {key: optimizer.param_groups[1].get(key) for key in change}
    optimizer.param_groups[1].update(change)
    set_gradients(params, 0)
    with pytest.raises(pride.InvalidArgument, match=text):
        optimizer.step()
    assert models.bits(params) == before
    optimizer.param_groups[1].update(kept)
    optimizer.step()
    optimizer.close()


@pytest.mark.parametrize("group, text", [
    (dict(method="adam"), "adam"),
    (dict(method=3), "method of group 1 is a int, must be a str"),
    (dict(method="adamw", options=[1]), "options of group 1 is a list, must be a Mapping"),
    (dict(method="adamw", options={"ties": 1}), "ties"),
    (dict(options={"dense": "bf16"}), "group 1: the option dense is given without a method"),
    (dict(method="diloco", options={"h": 2}), "period"),
    (dict(method="adamw", betas=(0.9,)), "betas"),
    (dict(method="adamw", momentum=0.9), "adamw has no momentum: give betas"),
    (dict(method="dlion-vote", eps=0.1), "eps")], ids=str)
def test_a_method_that_cannot_be_is_refused(group, text):
    with pytest.raises(pride.InvalidArgument, match=text):
        pair_of(**group)


def differing(second, how):
    """Raises; after a refused group that was to be added training goes on."""
    params, group = [parameter(0, 40)], {"params": [parameter(1, 6)], **second[dist.get_rank()]}
    first = [{"params": params}]
    optimizer = pride.Optimizer(
        first + [group] * (how != "added"), method="dlion-vote", timeout=20,
        node_group="auto" if how == "in a node" else None)
    try:
        optimizer.add_param_group(group)
    except pride.InvalidArgument as error:
        set_gradients(params, 0, dist.get_rank())
        optimizer.step()
        optimizer.check_replicas()
        assert len(optimizer.param_groups) == 1
        raise error
    finally:
        optimizer.close()


@pytest.mark.parametrize("how", ["made", "added", "in a node"])
@pytest.mark.parametrize("second", [
    [{"method": "adamw"}, {"method": "lion"}], [{"method": "adamw"}, {}],
    [{"method": "adamw"}, {"method": "adamw", "options": {"dense": "bf16"}}],
    [{"method": "adamw"}, {"method": "diloco"}], [{"method": "adamw"}, {"method": "adam"}]], ids=str)
def test_ranks_have_the_same_methods(world, second, how):
    errors = world(2).errors(differing, second, how)
    assert all(error is not None and issubclass(error[0], pride.InvalidArgument) for error in errors), errors


def grown(apart):
    """A section that is added after two steps."""
    rank, params = dist.get_rank(), [parameter(0, 70), parameter(1, 9, 5)]
    optimizers = [pride.Optimizer(params[:1], 1e-2, method="dlion-avg")]
    for step in range(STEPS):
        if step == 2:
            group = {"params": params[1:], "weight_decay": 0.1}
            if apart:
                optimizers.append(pride.Optimizer([group], method="adamw"))
            else:
                optimizers[0].add_param_group({**group, "method": "adamw"})
        set_gradients(params[:1 + (step >= 2)], step, rank)
        for optimizer in optimizers:
            optimizer.step()
    state = [sorted((k, v.tolist()) for k, v in each.state[p].items() if k != "step")
             for each, p in zip(optimizers if apart else 2 * optimizers, params)]
    for optimizer in optimizers:
        optimizer.check_replicas()
        optimizer.close()
    return models.bits(params), state


@pytest.mark.parametrize("n", [1, 2])
def test_an_added_section_steps_as_an_optimizer_made_then(world, n):
    assert world(n).run(grown, False) == world(n).run(grown, True)


# --- State. ---------------------------------------------------------------------------------------


def resumed(name, how):
    """Steps before and after a state is loaded, or the optimizer copied."""
    model = model_of()
    (optimizer,) = made(model, PAIRS[name])
    train(model, [optimizer], 3)
    if how == "consolidated":
        optimizer.consolidate_state_dict()
        states = [optimizer.state_dict()]
        dist.broadcast_object_list(states, 0)
    elif how != "straight on":
        states = [optimizer.state_dict()]
    if how in ("copied", "pickled"):
        optimizer.to_common()  # a new optimizer begins with equal parameters
    if how == "copied":
        model, other = copy.deepcopy((model, optimizer))
    elif how == "pickled":
        model, other = pickle.loads(pickle.dumps((model, optimizer)))
    if how in ("copied", "pickled"):
        other.to_local()
    elif how != "straight on":
        weights = copy.deepcopy(model.state_dict())
        model = model_of()
        (other,) = made(model, PAIRS[name])
        train(model, [other], 1, 9)
        model.load_state_dict(weights)
        other.load_state_dict(states[0])
    if how != "straight on":
        optimizer.close()
        optimizer = other
    train(model, [optimizer], 3, 3)
    return ending(model, [optimizer])


@pytest.mark.parametrize("name", PAIRS)
def test_a_loaded_or_copied_optimizer_goes_on_with_the_same_bits(world, name):
    expected = world(2).run(resumed, name, "straight on")
    for how in ("own state", "consolidated", "copied", "pickled"):
        assert world(2).run(resumed, name, how) == expected, how


def state_of(name):
    model = model_of()
    (optimizer,) = made(model, PAIRS[name])
    train(model, [optimizer], 2)
    optimizer.consolidate_state_dict()
    saved = optimizer.state_dict()
    optimizer.close()
    return saved


@pytest.mark.parametrize("local", ["keep", "average", "reset"])
def test_each_sections_own_state_is_resharded_by_its_kind(world, local):
    saved = world(2).run(state_of, "a vote and AdamW")[0]
    model = model_of()
    (optimizer,) = made(model, PAIRS["a vote and AdamW"])
    optimizer.load_state_dict(saved, local=local)
    vectors, matrices = (group["params"] for group in optimizer.param_groups)
    for i, p in enumerate(vectors):
        own = [saved["state"][i][f"m.rank{r}"] for r in range(2)]
        wanted = {"keep": own[0], "average": (own[0] + own[1]) / 2, "reset": torch.zeros_like(own[0])}
        assert torch.allclose(optimizer.state[p]["m.rank0"], wanted[local], atol=1e-7)
    for i, p in enumerate(matrices, len(vectors)):
        for key in ("m", "v"):
            assert torch.equal(optimizer.state[p][key], saved["state"][i][key])
    optimizer.close()


def test_a_state_of_other_sections_is_refused(world):
    saved = world(2).run(state_of, "a vote and AdamW")[0]
    for name in ("with server state", "local steps"):
        (optimizer,) = made(model_of(), PAIRS[name])
        with pytest.raises(pride.Error, match="load_state_dict: group 1 has the method adamw"):
            optimizer.load_state_dict(saved)
        optimizer.close()
    model = model_of()
    optimizer = pride.Optimizer([{k: v for k, v in group.items() if k not in ("method", "options")}
                                 for group in groups_of(model, PAIRS["a vote and AdamW"])],
                                method="dlion-avg")
    with pytest.raises(pride.Error, match="load"):
        optimizer.load_state_dict(saved)
    optimizer.close()


def test_views_show_the_memory_of_their_section():
    (first, second), optimizer = pair_of(method="adamw")
    assert sorted(optimizer.state[first]) == ["m.rank0", "step"]
    assert sorted(optimizer.state[second]) == ["m", "step", "v"]
    set_gradients([first, second], 0)
    optimizer.step()
    for p, own, beta in ((first, "m.rank0", 0.75), (second, "m", 0.9)):
        assert torch.allclose(optimizer.state[p][own], (1 - beta) * p.grad)
    assert torch.allclose(optimizer.state[second]["v"], 0.001 * second.grad ** 2)
    optimizer.state[first]["m.rank0"].fill_(100.0)  # the sign of every later step
    before = first.detach().clone()
    optimizer.step()
    assert torch.all(first < before)
    del optimizer.state[first]["m.rank0"]  # reset
    optimizer.step()
    assert torch.allclose(optimizer.state[first]["m.rank0"], 0.25 * first.grad)
    del optimizer.state[second]["v"]
    with pytest.raises(pride.InvalidArgument, match="'v' of .* is gone: adamw cannot reset it"):
        optimizer.step()
    optimizer.close()
