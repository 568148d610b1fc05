# pride.muon_groups(): matrices for one method and the rest for another.
# SPDX-License-Identifier: Apache-2.0
#
# Oracle: an optimizer of its own for each method, over groups that are written by hand. The matrices
# come first, so that ties of votes have the same keys in both.
import contextlib
import copy
import io

import pytest
import torch
import torch.distributed as dist
from torch import nn

import models
import pride
import sharded
from models import parameter
from test_matrices import BLOCKS, gpt, model_of

pytestmark = pytest.mark.skipif("dlion-muon" not in [m.name for m in pride.methods()],
                                reason="this build has no CBLAS")
BIASES = ("*.bias", dict(weight_decay=0.0))
VALUES = dict(matrices=dict(lr=2e-3, weight_decay=0.1),
              rest=dict(lr=3e-3, betas=(0.8, 0.9), weight_decay=0.2, options={"dense": "bf16"}),
              overrides=[("tok.weight", dict(lr=0.3, name="table")), BIASES])
TABLES = [name for name, _ in model_of().named_parameters() if name not in BLOCKS]
LINE = ("pride: dlion-muon: matrices: blocks.*.multihead.weight (2), blocks.*.proj.weight (2); "
        "adamw: at.weight, proj.weight, tok.weight and 9 of one dimension\n")


def names_in(groups):
    return [group["param_names"] for group in groups]


def told(make):
    """What make() returns, and what it printed."""
    with contextlib.redirect_stderr(io.StringIO()) as printed:
        made = make()
    return made, printed.getvalue()


# --- The groups. ----------------------------------------------------------------------------------


def test_matrices_are_in_one_group_and_the_rest_in_another():
    model = model_of()
    first, second = pride.muon_groups(model)
    assert {key: first[key] for key in first if key != "params"} == {
        "method": "dlion-muon", "matrix": True, "param_names": list(BLOCKS)}
    assert {key: second[key] for key in second if key != "params"} == {
        "method": "adamw", "matrix": False, "param_names": TABLES}
    for group in (first, second):
        assert all(p is model.get_parameter(n) for n, p in zip(group["param_names"], group["params"]))


def test_values_are_those_of_the_kind_and_of_the_first_pattern_that_matches():
    groups = pride.muon_groups(model_of(), **VALUES)
    every = [{key: group[key] for key in group if key not in ("params", "param_names")}
             for group in groups]
    rest = dict(method="adamw", matrix=False, lr=3e-3, betas=(0.8, 0.9), weight_decay=0.2,
                options={"dense": "bf16"})
    assert every == [dict(method="dlion-muon", matrix=True, lr=2e-3, weight_decay=0.1), rest,
                     {**rest, "lr": 0.3, "name": "table"}, {**rest, "weight_decay": 0.0}]
    assert names_in(groups)[2:] == [["tok.weight"], [n for n in TABLES if n.endswith(".bias")]]
    groups = pride.muon_groups(model_of(), overrides=[
        ("blocks.1.*", dict(lr=0.5)), ("blocks.*", dict(lr=0.25)), ("proj.*", dict(method="lion"))],
        rest=dict(eps=1e-6))
    assert [(group["matrix"], group["method"], group.get("lr"), group.get("eps"), len(group["params"]))
            for group in groups] == [
        (True, "dlion-muon", 0.5, None, 2), (True, "dlion-muon", 0.25, None, 2),
        (False, "adamw", None, 1e-6, 2), (False, "adamw", 0.5, 1e-6, 4),
        (False, "adamw", 0.25, 1e-6, 4),
        (False, "lion", None, None, 2)]


def test_an_override_moves_a_tensor_to_the_other_kind():
    groups = pride.muon_groups(model_of(), matrices=dict(lr=0.5), rest=dict(lr=0.25), overrides=[
        ("*.multihead.weight", dict(matrix=False)), ("at.weight", dict(matrix=True))])
    matrices = [n for n in BLOCKS if "proj" in n]
    assert names_in(groups) == [matrices, ["at.weight"],
                                [n for n in TABLES if n != "at.weight"],
                                [n for n in BLOCKS if "multi" in n]]
    assert [(group["lr"], group["matrix"]) for group in groups] == [
        (0.5, True), (0.5, True), (0.25, False), (0.25, False)]
    optimizer, line = told(lambda: pride.Optimizer(groups))
    assert line == ("pride: dlion-muon: matrices: blocks.*.proj.weight (2), at.weight; adamw: "
                    "tok.weight, proj.weight, blocks.*.multihead.weight (2) and 9 of one dimension\n")
    optimizer.close()


class Convolutions(nn.Module):
    """A model without embeddings whose kernels have three and more dimensions."""

    def __init__(self):
        super().__init__()
        self.stem, self.mix = nn.Conv2d(3, 8, 3), nn.Conv1d(8, 8, 5)
        self.experts = nn.Parameter(torch.ones(4, 6, 6))
        self.inner, self.head = nn.Linear(8, 8), nn.Linear(8, 4)
        self.scale = nn.Parameter(torch.ones(()))


def test_kernels_of_convolutions_are_matrices_on_request():
    first, second = names_in(pride.muon_groups(Convolutions()))
    assert first == ["inner.weight"]
    first, second = names_in(pride.muon_groups(Convolutions(), conv=True))
    assert first == ["experts", "stem.weight", "mix.weight", "inner.weight"]
    assert second == ["scale", "stem.bias", "mix.bias", "inner.bias", "head.weight", "head.bias"]


def test_words_decide_if_they_are_given_and_are_no_options_of_the_groups():
    """They are of all names: in the groups they would name no tensor."""
    groups = pride.muon_groups(model_of(), matrices=dict(options={
        "not_matrices": "tok,multihead,proj", "iterations": 3}))
    assert names_in(groups)[0] == ["at.weight"] and groups[0]["options"] == {"iterations": 3}
    pride.Optimizer(groups).close()
    with pytest.raises(pride.InvalidArgument, match="no tensor's name contains 'logits'"):
        pride.muon_groups(model_of(), matrices=dict(options={"not_matrices": "logits"}))


def test_a_tied_weight_is_in_one_group():
    groups = pride.muon_groups(gpt("proj", tied=True))
    assert names_in(groups)[1].count("tok.weight") == 1 and "proj.weight" not in names_in(groups)[1]
    with pytest.raises(pride.InvalidArgument, match="the pattern 'proj.weight' matches no parameter"):
        pride.muon_groups(gpt("proj", tied=True), overrides=[("proj.weight", {})])


def test_groups_without_parameters_are_left_out():
    class Square(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(2))

    (matrices,) = pride.muon_groups(Square())
    assert matrices["matrix"] and len(matrices["params"]) == 2
    (rest,) = pride.muon_groups(nn.LayerNorm(4))
    assert not rest["matrix"] and rest["method"] == "adamw"
    optimizer, line = told(lambda: pride.Optimizer([rest]))
    assert line == "" and "betas" in optimizer.defaults
    optimizer.close()
    assert pride.muon_groups(nn.ReLU()) == []


def test_frozen_parameters_are_in_the_groups_and_stay():
    model = model_of()
    for name in ("tok.weight", "blocks.0.proj.weight"):
        model.get_parameter(name).requires_grad_(False)
    before = copy.deepcopy(model)
    optimizer, _ = told(lambda: pride.Optimizer(pride.muon_groups(model, **VALUES)))
    model(0).backward()
    optimizer.step()
    for (name, p), q in zip(model.named_parameters(), before.parameters()):
        assert torch.equal(p, q) == (not p.requires_grad), name
    optimizer.close()


class Wrapper(nn.Module):
    """As torch.compile's: the model is in _orig_mod."""

    def __init__(self, model):
        super().__init__()
        self._orig_mod = model


@pytest.mark.parametrize("part", [False, True])
def test_names_are_those_of_the_model_that_was_compiled(part):
    model = wrapped = model_of()
    compiled = torch.compile if models.NEW_TORCH else Wrapper
    if part:
        model.blocks[1] = compiled(model.blocks[1])
        assert any("_orig_mod" in name for name, _ in model.named_parameters())
    else:
        wrapped = compiled(model)
    groups = pride.muon_groups(wrapped, overrides=[("blocks.1.*.bias", dict(lr=1.0))])
    assert names_in(groups)[0] == list(BLOCKS)
    assert names_in(groups)[2] == [
        "blocks.1.multihead.bias", "blocks.1.norm.bias", "blocks.1.proj.bias"]


@pytest.mark.parametrize("call, text", [
    (lambda m: pride.muon_groups(m.parameters()), "model is a generator, must be a Module"),
    (lambda m: pride.muon_groups(m, matrices=[1]), "matrices is a list, must be a Mapping"),
    (lambda m: pride.muon_groups(m, rest=dict(params=[])), "rest has 'params'"),
    (lambda m: pride.muon_groups(m, rest=dict(param_names=[])), "rest has 'param_names'"),
    (lambda m: pride.muon_groups(m, matrices=dict(matrix=False)), "matrices has 'matrix'"),
    (lambda m: pride.muon_groups(m, matrices=dict(method=None)), "method of matrices is a NoneType"),
    (lambda m: pride.muon_groups(m, overrides=[("*.bias", dict(matrix=True))]),
     r"'\*.bias' makes '.*bias' of shape \(.*,\) a matrix"),
    (lambda m: pride.muon_groups(m, conv="yes"), "conv = 'yes', must be True or False"),
    (lambda m: pride.muon_groups(m, overrides=3), "overrides is a int, must be a Sequence"),
    (lambda m: pride.muon_groups(m, overrides=["*"]), r"overrides has '\*', must be pairs"),
    (lambda m: pride.muon_groups(m, overrides=[(3, {})]), r"overrides has \(3, {}\), must be pairs"),
    (lambda m: pride.muon_groups(m, overrides=[("*", 3)]), r"the values of '\*' is a int"),
    (lambda m: pride.muon_groups(m, overrides=[("*", dict(matrix=3))]), r"matrix of '\*' = 3, must"),
    (lambda m: pride.muon_groups(m, overrides=[("*.wte", {})]),
     r"the pattern '\*.wte' matches no parameter of tok.weight, at.weight, blocks"),
    (lambda m: pride.muon_groups(m, overrides=[("*", {}), BIASES]),
     r"the pattern '\*.bias' matches no parameter that an earlier one leaves"),
    (lambda m: pride.muon_groups(m, matrices=dict(method="lion")), "lion .* orthogonalises no"),
    (lambda m: pride.muon_groups(m, matrices=dict(method="dion")), "dion"),
    (lambda m: pride.muon_groups(nn.Sequential(m, nn.LazyLinear(3))), "1.weight is not initialized"),
    (lambda m: pride.Optimizer(pride.muon_groups(m, rest=dict(rate=1))), "group 1 has 'rate', which"),
    (lambda m: pride.Optimizer(pride.muon_groups(m, matrices=dict(eps=1.0))), "eps"),
    (lambda m: pride.Optimizer([{"params": [parameter(1, 3)], "param_names": ["a", "b"]}],
                               method="lion"),
     "1 parameters and 2 'param_names'")])
def test_what_cannot_be_is_refused(call, text):
    with pytest.raises(pride.InvalidArgument, match=text):
        call(gpt())


# --- Steps. ---------------------------------------------------------------------------------------


def by_hand(model):
    """An optimizer for each method, with the groups of VALUES."""
    named = dict(model.named_parameters())
    rest = {k: v for k, v in VALUES["rest"].items() if k != "options"}
    biases = [n for n in TABLES if n.endswith(".bias")]
    others = [n for n in TABLES if n not in biases and n != "tok.weight"]
    return [
        pride.Optimizer([{"params": [(n, named[n]) for n in BLOCKS], "matrix": True}],
                        method="dlion-muon", timeout=30, **VALUES["matrices"]),
        pride.Optimizer([{"params": [named[n] for n in others]},
                         {"params": [named["tok.weight"]], "lr": 0.3},
                         {"params": [named[n] for n in biases], "weight_decay": 0.0}],
                        method="adamw", options={"dense": "bf16"}, timeout=30, **rest)]


def stepped(model, optimizers, steps=4, first=0, forward=None):
    for step in range(first, first + steps):
        for optimizer in optimizers:
            optimizer.zero_grad()
        (forward or model)(step).backward()
        for optimizer in optimizers:
            optimizer.step()


def ended(model, optimizers):
    for optimizer in optimizers:
        optimizer.check_replicas()
        optimizer.close()
    return models.bits(model.parameters())


def apart():
    model = model_of()
    optimizers = by_hand(model)
    stepped(model, optimizers)
    return ended(model, optimizers)


def together(how):
    model = model_of()
    wrapped, more = model, {"overlap": how == "overlap"}
    if how == "DDP":
        wrapped = pride.local_gradients(nn.parallel.DistributedDataParallel(model))
    groups = pride.muon_groups(wrapped, **VALUES)
    optimizer, line = told(lambda: pride.Optimizer(groups, timeout=30, **more))
    assert line == (LINE if models.own_rank() == 0 else ""), line
    if how == "loaded":
        stepped(model, [optimizer], 2)
        saved, weights = optimizer.state_dict(), copy.deepcopy(model.state_dict())
        optimizer.close()
        model = wrapped = model_of("proj")
        optimizer, _ = told(lambda: pride.Optimizer(pride.muon_groups(model, **VALUES), timeout=30))
        stepped(model, [optimizer], 1, 9)
        model.load_state_dict(weights)
        optimizer.load_state_dict(saved)
        stepped(model, [optimizer], 2, 2)
    elif how == "copied":
        stepped(model, [optimizer], 2)
        copied = copy.deepcopy((model, optimizer))
        optimizer.close()
        model, optimizer = copied
        stepped(model, [optimizer], 2, 2)
    else:
        stepped(model, [optimizer], forward=wrapped)
    assert [each["method"] for each in optimizer.traffic()["sections"]] == ["dlion-muon", "adamw"]
    return ended(model, [optimizer])


@pytest.mark.parametrize("how", ["plain", "overlap", "DDP", "loaded", "copied"])
def test_two_ranks_step_as_two_optimizers_do(world, how):
    expected = world(2).run(apart)
    assert world(2).run(together, how) == expected
    assert expected[0] == expected[1] != models.bits(model_of().parameters())


def test_virtual_workers_step_as_ranks_do(world):
    model = model_of()
    optimizer, line = told(lambda: pride.VirtualWorkers(pride.muon_groups(model, **VALUES), workers=2))
    assert line == LINE
    for step in range(4):
        for worker in range(2):
            with optimizer.worker(worker):
                sum((p * models.numbers(1000 * step + 100 * worker + i, *p.shape)).sum()
                    for i, p in enumerate(model.parameters())).backward()
        optimizer.step()
    assert ended(model, [optimizer]) == world(2).run(apart)[0]


def of_shards(shape):
    """FSDP2; without a shape its oracle on as many ranks as there are replicas."""
    mesh = shape and sharded.mesh_of(*shape)
    model = sharded.sharded(mesh) if shape else sharded.model()
    groups = pride.muon_groups(model, overrides=[("2.*", dict(weight_decay=0.5))])
    optimizer, line = told(lambda: pride.Optimizer(
        groups, timeout=30, replicate_mesh=mesh and mesh["dp"]))
    for step in range(3):
        if shape:
            sharded.train(mesh, model, optimizer, 1, step)
        else:
            sharded.backward(model, dist.get_rank(), 2, step)
            optimizer.step()
    weights = models.bits([sharded.full(p) for p in model.parameters()])
    optimizer.check_replicas()
    optimizer.close()
    return weights, names_in(groups), line


@pytest.mark.skipif(sharded.fully_shard is None, reason=sharded.WHY_NOT)
def test_a_sharded_model_has_the_groups_of_the_whole_one(world):
    expected = world(2).run(of_shards, None)
    results = world(4).run(of_shards, (2, 2))
    assert [each[:2] for each in results] == [each[:2] for each in expected for _ in range(2)]
    assert results[0][2] == expected[0][2]
    assert "pride: dlion-muon: matrices: *.weight (2); adamw: 4 of one dimension" in results[0][2]


def grown(apart):
    """The output layer is added after two steps, or has an optimizer of its own from then on."""
    model = model_of()
    overrides = [("proj.*", dict(weight_decay=0.0))]
    *groups, late = pride.muon_groups(model, **{**VALUES, "overrides": overrides})
    optimizers = [told(lambda: pride.Optimizer(groups, timeout=30))[0]]
    stepped(model, optimizers, 2)
    if apart:
        optimizers.append(pride.Optimizer([late], timeout=30))
    else:
        optimizers[0].add_param_group(late)
        assert optimizers[0]._parameters.all_names()[-2:] == ["proj.weight", "proj.bias"]
        with pytest.raises(pride.InvalidArgument, match="group 3 has no 'method'"):
            optimizers[0].add_param_group({"params": [parameter(1, 3)]})
    stepped(model, optimizers, 2, 2)
    return ended(model, optimizers)


def test_a_group_is_added_later(world):
    assert world(2).run(grown, False) == world(2).run(grown, True)


def taken_over(method):
    model = model_of()
    overrides = [("tok.weight", dict(lr=3e-2))]
    groups = pride.muon_groups(model, rest=dict(method=method), overrides=overrides)
    given = torch.optim.AdamW(groups, lr=2e-3, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(given, lambda step: 1 / (1 + step))
    optimizer, line = told(lambda: pride.take_over(given, model, scheduler=scheduler, timeout=30))
    for step in range(3):
        stepped(model, [optimizer], 1, step)
        scheduler.step()
    names = [tuple(group["param_names"]) for group in optimizer.param_groups]
    return line, names, ended(model, [optimizer])


def in_own_units():
    model = model_of()
    groups = pride.muon_groups(model, matrices=dict(lr=1e-3, weight_decay=0.2), rest=dict(
        lr=2e-3, weight_decay=0.1), overrides=[("tok.weight", dict(lr=3e-2))])
    optimizer, _ = told(lambda: pride.Optimizer(groups, timeout=30))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    for step in range(3):
        stepped(model, [optimizer], 1, step)
        scheduler.step()
    return ended(model, [optimizer])


def test_torchs_optimizer_over_the_groups_is_taken_over(world):
    results = world(2).run(taken_over, "adamw")
    line, names, bits = results[0]
    assert line.startswith(
        "pride: dlion-muon takes over AdamW: lr 0.001 (dlion-muon's own: 0.5 times the AdamW's), "
        "weight decay 0.2; adamw: lr 0.002 to 0.03 (Adam's), weight decay 0.1, "), line
    assert "(2), blocks.*.proj.weight (2); adamw: at.weight, " in line
    assert names == [tuple(group["param_names"]) for group in pride.muon_groups(
        model_of(), overrides=[("tok.weight", {})])]
    assert bits == results[1][2] == world(2).run(in_own_units)[0]
