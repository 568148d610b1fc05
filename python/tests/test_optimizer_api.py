# The optimizers as torch.optim.Optimizer: signatures, options and closures.
# SPDX-License-Identifier: Apache-2.0
#
# Oracle: torch's own signatures.
import importlib
import inspect
import pkgutil

import pytest
import torch

import pride
from models import NEW_TORCH, parameter, set_gradients


def optimizer_classes():
    """All classes of the package that derive from torch's."""
    found = set()
    for module in pkgutil.iter_modules(pride.__path__):
        if module.name in pride._LATER:  # they need what may not be installed
            continue
        made = importlib.import_module(f"pride.{module.name}")
        for _, member in inspect.getmembers(made, inspect.isclass):
            if issubclass(member, torch.optim.Optimizer) and member.__module__.startswith("pride"):
                found.add(member)
    return sorted(found, key=lambda each: each.__name__)


def torchs(name):
    """What torch's users call under that name. The base class's step() has no default."""
    if name != "step":
        return getattr(torch.optim.Optimizer, name, None)
    function = inspect.unwrap(torch.optim.Adam.step)
    if "closure" in inspect.signature(function).parameters:
        return function
    return function.__closure__[0].cell_contents  # torch 1.13 wraps it without functools.wraps


OVERRIDES = [(cls, name) for cls in optimizer_classes() for name, member in vars(cls).items()
             if inspect.isfunction(member) and name != "__init__" and torchs(name) is not None]


def test_all_overrides_are_found():
    assert {c.__name__ for c in optimizer_classes()} >= {
        "Optimizer", "VirtualWorkers", "RunWorker", "DistributedLion", "Lion", "LionCub"}
    assert {n for c, n in OVERRIDES if issubclass(pride.Optimizer, c)} >= {
        "step", "zero_grad", "add_param_group", "state_dict", "load_state_dict"}


@pytest.mark.parametrize("cls, name", OVERRIDES, ids=lambda v: getattr(v, "__name__", v))
def test_overrides_have_the_signatures_of_torch(cls, name):
    ours = dict(inspect.signature(getattr(cls, name)).parameters)
    theirs = inspect.signature(torchs(name)).parameters
    if name == "step" and not NEW_TORCH:
        assert theirs["grad_scaler"].kind == inspect.Parameter.KEYWORD_ONLY
    for key, value in theirs.items():
        assert key in ours, f"{cls.__name__}.{name}() has no parameter {key}"
        mine = ours.pop(key)
        assert (mine.kind, mine.default) == (value.kind, value.default), (cls, name, key)
    for key, mine in ours.items():
        assert mine.kind == inspect.Parameter.KEYWORD_ONLY, f"{cls.__name__}.{name}({key})"
        assert mine.default is not inspect.Parameter.empty, f"{cls.__name__}.{name}({key})"
    kept = [k for k in inspect.signature(getattr(cls, name)).parameters if k in theirs]
    assert kept == list(theirs), "the order of parameters"


@pytest.mark.parametrize("cls", [pride.DistributedLion, pride.LionCub, pride.Lion])
def test_lion_pytorchs_positional_arguments(cls):
    given = list(inspect.signature(cls.__init__).parameters.values())[1:5]
    assert [(p.name, p.default) for p in given] == [
        ("params", inspect.Parameter.empty), ("lr", 1e-4), ("betas", (0.9, 0.99)),
        ("weight_decay", 0.0)]
    assert {p.kind for p in given} == {inspect.Parameter.POSITIONAL_OR_KEYWORD}
    optimizer = cls([parameter(0, 3)], 0.5, (0.8, 0.7), 0.25)
    group = optimizer.param_groups[0]
    assert (group["lr"], group["betas"], group["weight_decay"]) == (0.5, (0.8, 0.7), 0.25)


def test_it_is_an_optimizer_with_a_readable_repr():
    optimizer = pride.DistributedLion([{"params": [parameter(0, 3)]},
                                       {"params": [parameter(1, 3)], "lr": 0.25}])
    assert isinstance(optimizer, torch.optim.Optimizer)
    text = repr(optimizer)
    assert text.startswith("DistributedLion (\nParameter Group 0\n")
    assert "lr: 0.25" in text and "betas: (0.9, 0.99)" in text and "weight_decay: 0.0" in text
    assert set(optimizer.defaults) >= {"lr", "betas", "weight_decay", "maximize"}


def test_a_closure_runs_with_gradients_enabled_and_its_loss_is_returned():
    p = parameter(0, 5)
    optimizer = pride.DistributedLion([p], lr=0.5)
    calls = []

    def closure():
        assert torch.is_grad_enabled()
        optimizer.zero_grad()
        loss = (p * p).sum()
        loss.backward()
        calls.append(loss)
        return loss

    before = p.detach().clone()
    with torch.no_grad():
        assert optimizer.step(closure) is calls[0]
        assert not torch.is_grad_enabled()
    assert torch.equal(p, before - 0.5 * before.sign())
    assert optimizer.step(closure=lambda: 3.0) == 3.0 and len(calls) == 1
    assert optimizer.step() is None


def test_options_of_torchs_optimizers():
    p = parameter(0, 3)
    for taken in (dict(foreach=True), dict(fused=True), dict(foreach=False, fused=False),
                  dict(foreach=None, fused=None, capturable=False, differentiable=False)):
        optimizer = pride.DistributedLion([p], **taken)
        set_gradients([p], 0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        assert not p.grad.any()
    for refused in ("capturable", "differentiable"):
        with pytest.raises(pride.InvalidArgument, match=f"{refused}=True"):
            pride.DistributedLion([p], **{refused: True})
    with pytest.raises(TypeError, match="amsgrad"):
        pride.DistributedLion([p], amsgrad=True)
    with pytest.raises(pride.InvalidArgument, match="aggregation = 'mean', must be one of vote"):
        pride.DistributedLion([p], aggregation="mean")
    with pytest.raises(pride.InvalidArgument, match="dlion-vote"):  # the list of names
        pride.Optimizer([p], method="dlion")


def test_counts_of_weighted_votes_have_their_own_bytes():
    plain = pride.step_bytes("dlion-avg", 10_000_000, 4)
    assert pride.step_bytes("dlion-avg", 10_000_000, 4, vote_weights=[3] * 4) == plain
    assert pride.step_bytes("dlion-avg", 10_000_000, 4, vote_weights=[5, 1, 1, 1]) > plain
    with pytest.raises(pride.InvalidArgument, match="3 vote weights for 4 ranks"):
        pride.step_bytes("dlion-avg", 10_000_000, 4, vote_weights=[5, 1, 1])
