# The value `momentum` of a group: Muon's own, or in place of betas.
# SPDX-License-Identifier: Apache-2.0
#
# Oracle: the same optimizer with betas.
import pytest
import torch
from torch.optim import lr_scheduler

import pride
from models import bits, numbers, set_gradients
from test_take_over import Muon


def named(p):
    return [("weight", p)]


def ends(change=lambda group, step: None, steps=4, **arguments):
    """The bits of a matrix after some steps; change(group, step) comes before each."""
    p = torch.nn.Parameter(numbers(0, 8, 12))
    optimizer = pride.Optimizer(named(p), 1e-2, **arguments)
    for step in range(steps):
        change(optimizer.param_groups[0], step)
        set_gradients([p], step)
        optimizer.step()
    optimizer.close()
    return bits([p])


BETAS = {"dlion-muon": lambda mu: (mu * mu, mu), "turn-muon": lambda mu: (mu * mu, mu),
         "sgdm": lambda mu: (mu,), "signum-vote": lambda mu: (mu,)}


@pytest.mark.parametrize("method", BETAS)
def test_it_stands_for_betas(method):
    assert ends(method=method, momentum=0.8) == ends(method=method, betas=BETAS[method](0.8))

    def by_momentum(group, step):
        group["momentum"] = 0.85 + 0.03 * step

    def by_betas(group, step):
        group["betas"] = BETAS[method](0.85 + 0.03 * step)

    moved = ends(by_momentum, method=method, momentum=0.5)
    assert moved == ends(by_betas, method=method)
    assert moved != ends(method=method, momentum=0.85)


@pytest.mark.parametrize("method, options", [("muon", {}), ("diloco", {"local": "muon", "h": 2})])
def test_a_method_with_muons_rule_has_its_own(method, options):
    def change(group, step):
        assert group["betas"] == (0.9, 0.999)
        group["momentum"] = 0.5

    usual = ends(method=method, options=options)
    assert usual == ends(method=method, options=options, momentum=0.95)
    assert ends(change, method=method, options=options) == (
        ends(method=method, options=options, momentum=0.5)) != usual
    info = pride.method_info(method, options=options)
    assert info.momentum == 0.95 and pride.method_info("lion").momentum == 0


def test_a_group_gives_it_in_place_of_betas():
    p, q = (torch.nn.Parameter(numbers(i, 4, 6)) for i in range(2))
    optimizer = pride.Optimizer([{"params": named(p), "momentum": 0.75}, {"params": [("other", q)]}],
                                method="dlion-muon")
    assert "betas" not in optimizer.param_groups[0] and "momentum" not in optimizer.param_groups[1]
    saved = optimizer.state_dict()
    assert saved["param_groups"][0]["momentum"] == 0.75
    set_gradients([p, q], 0)
    optimizer.step()
    again = pride.Optimizer([{"params": named(p), "momentum": 0.5}, {"params": [("other", q)]}],
                            method="dlion-muon")
    again.load_state_dict(optimizer.state_dict())
    assert again.param_groups[0]["momentum"] == 0.75
    set_gradients([p, q], 1)
    again.step()
    optimizer.close()
    again.close()


@pytest.mark.parametrize("method, group, text", [
    ("adamw", dict(momentum=0.9), "adamw has no momentum: give betas"),
    ("dlion-vote", dict(momentum=0.9), "dlion-vote has no momentum: give betas"),
    ("graddrop", dict(momentum=0.9), "graddrop has no momentum"),
    ("dlion-muon", dict(momentum=0.9, betas=(0.5, 0.5)), "both betas and momentum are given"),
    ("dlion-muon", dict(momentum=1.0), r"group 0: momentum = 1 is not in \[0, 1\)"),
    ("muon", dict(momentum=-0.5), "momentum of group 0 = -0.5, must be"),
    ("muon", dict(momentum="x"), "momentum of group 0 = 'x'")])
def test_a_wrong_one_is_refused_by_name(method, group, text):
    p = torch.nn.Parameter(numbers(0, 4, 6))
    with pytest.raises(pride.InvalidArgument, match=text):
        pride.Optimizer([{"params": named(p), **group}], method=method)


def test_one_that_appears_later_is_refused_by_name():
    with pytest.raises(pride.InvalidArgument, match="both betas and momentum are given"):
        ends(lambda group, step: group.update(momentum=0.9), method="dlion-muon")
    with pytest.raises(pride.InvalidArgument, match="lion has no momentum"):
        ends(lambda group, step: group.update(momentum=0.9) or group.pop("betas"), method="lion")


@pytest.mark.parametrize("method, arguments", [("sgdm", dict(momentum=0.9)), ("sgdm", {}),
                                               ("dlion-muon", dict(momentum=0.9)), ("muon", {})])
def test_one_cycle_cycles_it(method, arguments):
    p = torch.nn.Parameter(numbers(0, 8, 12))
    optimizer = pride.Optimizer(named(p), 1e-2, method=method, **arguments)
    scheduler = lr_scheduler.OneCycleLR(optimizer, 1e-2, 10)
    seen = []
    for step in range(3):
        set_gradients([p], step)
        optimizer.step()
        values = optimizer._groups.values(optimizer.param_groups[0])
        seen.append(values.momentum if "momentum" in arguments else values.beta1)
        scheduler.step()
    assert len(set(seen)) == 3 and seen[0] == pytest.approx(0.95), seen
    optimizer.close()


def test_taken_over_muon_gives_its_momentum_to_the_method_muon():
    model = torch.nn.Sequential(torch.nn.Linear(16, 9), torch.nn.Linear(9, 4))
    optimizer = pride.take_over(Muon(model), model, method="muon", lr_scale=1.0)
    group = optimizer.param_groups[0]
    assert optimizer._groups.values(group).momentum == 0.95
    group["momentum"] = 0.85  # a script's warm-up
    assert optimizer._groups.values(group).momentum == 0.85
    optimizer.close()


@pytest.mark.parametrize("first, then", [("momentum", "betas"), ("betas", "momentum")])
@pytest.mark.parametrize("method, betas", [("sgdm", (0.8,)), ("dlion-muon", (0.8 * 0.8, 0.8))])
def test_a_state_with_betas_loads_where_a_momentum_was_and_the_other_way(first, then, method, betas):
    given = {"momentum": dict(momentum=0.8), "betas": dict(betas=betas)}
    p = torch.nn.Parameter(numbers(0, 8, 12))
    saving = pride.Optimizer(named(p), 1e-2, method=method, **given[first])
    set_gradients([p], 0)
    saving.step()
    q = torch.nn.Parameter(p.detach().clone())
    loading = pride.Optimizer(named(q), 1e-2, method=method, **{
        key: [0.5 * b for b in value] if key == "betas" else 0.5 for key, value in given[then].items()})
    loading.load_state_dict(saving.state_dict())
    for optimizer, each in ((saving, p), (loading, q)):
        set_gradients([each], 1)
        optimizer.step()
        optimizer.close()
    assert bits([p]) == bits([q])


def test_take_over_takes_one_in_place_of_betas_and_for_groups_that_are_added():
    model = torch.nn.Sequential(torch.nn.Linear(16, 9), torch.nn.Linear(9, 4))
    given = torch.optim.AdamW(model.parameters(), lr=1e-3)
    optimizer = pride.take_over(given, model, method="dlion-muon", momentum=0.8)
    assert optimizer._groups.values(optimizer.param_groups[0]).momentum == 0.8
    model(torch.ones(2, 16)).sum().backward()
    optimizer.step()
    optimizer.close()
    optimizer = pride.take_over(Muon(model), model, method="muon", lr_scale=1.0, momentum=0.5)
    assert optimizer._groups.values(optimizer.param_groups[0]).momentum == 0.5
    optimizer.close()
    model = torch.nn.Sequential(torch.nn.Linear(16, 9), torch.nn.Linear(9, 4))
    given = Muon(model[:1])
    given.param_groups[0]["nesterov"] = False
    optimizer = pride.take_over(given, model[:1], method="muon", lr_scale=1.0)
    optimizer.add_param_group({"params": list(model[1].named_parameters()), "lr": 0.02, "momentum": 0.75})
    momenta = [optimizer._groups.values(group).momentum for group in optimizer.param_groups]
    assert momenta[0] == 0.95 and momenta[-1] == 0.75, momenta
    optimizer.close()
