# pride.take_over(): a loop of torch's optimizer goes on with one of pride's.
# SPDX-License-Identifier: Apache-2.0
#
# Oracle: pride's optimizer made by hand, with rates and decays in its own units.
import contextlib
import copy
import io
import warnings

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim import lr_scheduler

import pride
from models import backward, bits, mlp, own_rank, parameter


def groups_of(model):
    """Two groups of a model, one without decay."""
    named = list(model.named_parameters())
    return [{"params": [p for _, p in named if p.dim() > 1]},
            {"params": [p for _, p in named if p.dim() < 2], "weight_decay": 0.0}]


def adamw(model, lr=3e-2, **more):
    return torch.optim.AdamW(groups_of(model), lr=lr, weight_decay=0.1, **more)


def warm_up(optimizer):
    return lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 4))


def loop(model, optimizer, after_step, steps=7, first=0):
    for step in range(first, first + steps):
        optimizer.zero_grad()
        backward(model, step)
        optimizer.step()
        after_step(step)


def by_hand(method="dlion-vote", lr=1e-2, decay=0.3, **more):
    """Parameters after the oracle's steps, of which the first has rate 0."""
    model = mlp()
    groups = groups_of(model)
    groups[0]["weight_decay"] = decay
    own = pride.Optimizer(groups, lr=lr, method=method, bucket_size=64, **more)
    scheduler = warm_up(own)
    loop(model, own, lambda _: scheduler.step())
    return bits(model.parameters())


def taken_over(where, rate):
    """Parameters after the same steps. where: of DDP. rate: who changes it."""
    model = mlp(seed=1 + own_rank() * (where != "none"))  # else take_over broadcasts
    if dist.get_rank() == 0 or where == "none":
        model = mlp()
    wrapped = DistributedDataParallel(model) if where == "before" else model
    given = adamw(model)
    scheduler = warm_up(given) if rate == "scheduler" else None
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # of schedulers that find no step of theirs
        optimizer = pride.take_over(given, wrapped, scheduler=scheduler, bucket_size=64)
        assert [slot.name for slot in optimizer._parameters.slots][:2] == ["0.weight", "2.weight"]
        if where == "later":
            wrapped = DistributedDataParallel(model)

        def after_step(step):
            if scheduler is not None:
                scheduler.step()
                return
            for group in optimizer.param_groups:
                group["lr"] = 3e-2 * min(1.0, (step + 1) / 4)

        for group in optimizer.param_groups:
            group["lr"] = 0.0
        loop(wrapped, optimizer, after_step)
    optimizer.check_replicas()
    return bits(model.parameters())


@pytest.mark.parametrize("rate", ["scheduler", "loop"])
@pytest.mark.parametrize("where", ["before", "later", "none"])
def test_takes_the_steps_of_an_optimizer_made_by_hand(world, where, rate):
    expected = world(2).run(by_hand)
    got = world(2).run(taken_over, where, rate)
    a, b = (torch.frombuffer(bytearray(each[0]), dtype=torch.float32) for each in (got, expected))
    assert got[0] == got[1]
    assert torch.allclose(a, b, atol=2e-6)  # the last bits of a rate that a factor makes


DERIVED = {
    "a third for votes": (dict(lr=3e-3), "dlion-vote", 1e-3),
    "its own for dlion-muon": (dict(lr=6e-4), "dlion-muon", 1e-3),
    "Adam's for Adam's": (dict(lr=3e-3), "onebit-adam", 3e-3),
}


@pytest.mark.parametrize("case", DERIVED)
def test_rates_follow_from_the_method(case, capfd):
    arguments, method, rate = DERIVED[case]
    model = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.Linear(6, 4))
    optimizer = pride.take_over(torch.optim.AdamW(model.parameters(), weight_decay=0.1, **arguments),
                                model, method=method)
    group = optimizer._groups.values(optimizer.param_groups[0])
    assert group.lr == pytest.approx(rate)
    assert group.lr * group.weight_decay == pytest.approx(0.1 * arguments["lr"])
    assert f"pride: {method} takes over AdamW: lr {rate:.4g} (" in capfd.readouterr().err


def said(method):
    model = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.Linear(6, 4))
    with contextlib.redirect_stderr(io.StringIO()) as err:
        pride.take_over(torch.optim.AdamW(model.parameters()), model, method=method)
    return [line for line in err.getvalue().splitlines() if "network" not in line]


@pytest.mark.parametrize("method, about_matrices", [("dlion-vote", False), ("dlion-muon", True)])
def test_rank_0_prints_one_line_with_matrices_and_route(world, method, about_matrices):
    lines, others = world(2).run(said, method)
    assert len(lines) == 1 and not others, (lines, others)
    assert "; one-shot (1 bucket)" in lines[0]
    assert ("matri" in lines[0]) == about_matrices


class Muon(torch.optim.Optimizer):
    """Groups as in scripts: matrices by Muon, the rest by Adam."""

    def __init__(self, model):
        groups = groups_of(model)
        groups[0].update(use_muon=True, lr=0.02, momentum=0.95, weight_decay=0.0)
        groups[1].update(use_muon=False, lr=3e-3, betas=(0.9, 0.95), eps=1e-10)
        super().__init__(groups, {})


def test_the_line_has_the_rate_of_a_scheduler(capfd):
    model = torch.nn.Linear(6, 4)
    given = torch.optim.Adam(model.parameters(), lr=1.0)
    scheduler = lr_scheduler.LambdaLR(given, lambda step: 3e-3)
    pride.take_over(given, model, scheduler=scheduler)
    assert "lr 0.3333 (a third of Adam's: 0.3333 times the Adam's), 0.001 now, " in capfd.readouterr().err


def test_a_warm_up_from_0_leaves_the_rate_of_dlion_muon():
    model = torch.nn.Linear(6, 4)
    given = torch.optim.AdamW(model.parameters(), lr=6e-4)
    given.param_groups[0]["lr"] = 0.0  # by a warm-up that is not torch's
    optimizer = pride.take_over(given, model, method="dlion-muon")
    optimizer.param_groups[0]["lr"] = 6e-4
    assert optimizer._groups.values(optimizer.param_groups[0]).lr == pytest.approx(1e-3)


def test_a_group_that_is_added_later_has_the_units_of_the_first():
    model = torch.nn.ModuleList([torch.nn.Linear(3, 2), torch.nn.Linear(2, 1)])
    given = torch.optim.AdamW(model[0].parameters(), lr=3e-3)
    for p in model[1].parameters():
        p.requires_grad = False
    optimizer = pride.take_over(given, model)
    model[1].requires_grad_(True)
    optimizer.add_param_group({"params": list(model[1].parameters()), "lr": 6e-3})
    assert optimizer._groups.values(optimizer.param_groups[1]).lr == pytest.approx(2e-3)
    model[1](model[0](torch.ones(1, 3))).sum().backward()
    optimizer.step()


def test_muon_gives_its_rate_and_momentum():
    model = torch.nn.Sequential(torch.nn.Linear(16, 9), torch.nn.Linear(9, 4))
    optimizer = pride.take_over(Muon(model), model, method="dlion-muon")
    matrices, rest = map(optimizer._groups.values, optimizer.param_groups)
    mean_of_sides = (144 / 4 + 36 / 3) / 180  # 1 / sqrt(16) and 1 / sqrt(9), by coordinates
    assert matrices.lr == pytest.approx(0.02 * mean_of_sides) and rest.lr == pytest.approx(1e-3)
    assert (matrices.beta1, matrices.beta2) == pytest.approx((0.95 ** 2, 0.95))
    optimizer.param_groups[0]["momentum"] = 0.85  # a script's warm-up
    assert optimizer._groups.values(optimizer.param_groups[0]).beta2 == 0.85
    assert (rest.beta1, rest.beta2) == (0.9, 0.95)
    assert [group["matrix"] for group in optimizer.param_groups] == [True, False]


def test_types_of_modules_tell_matrices_of_a_plain_model(capfd):
    model = torch.nn.ModuleDict({"a": torch.nn.Embedding(9, 4), "b": torch.nn.ModuleList(
        [torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)]), "c": torch.nn.Linear(4, 9)})
    pride.take_over(torch.optim.AdamW(model.parameters()), model, method="dlion-muon")
    assert "matrices: b.*.weight (2)" in capfd.readouterr().err


REFUSED = {
    "an orphan": (lambda m: torch.optim.AdamW([m[0].weight], lr=1e-3), {},
                  "'0.bias' and 2 more: requires a gradient and is in no group"),
    "a stranger": (lambda m: torch.optim.AdamW([*m.parameters(), parameter(0, 3)], lr=1e-3), {},
                   "group 0 parameter 4 of the AdamW is not the model's"),
    "SGD's rate for a vote": (lambda m: torch.optim.SGD(m.parameters(), lr=0.1), {},
                              "no rate of dlion-vote follows from that of a SGD: give lr_scale="),
    "a rate that a scheduler gives": (lambda m: torch.optim.Adam(m.parameters(), lr=1.0), {
        "method": "dlion-muon"}, "are the rates?): give lr_scale=, 0.001 / the peak rate"),
    "decay in the gradient": (lambda m: torch.optim.Adam(m.parameters(), lr=1e-3, weight_decay=0.1),
                              {}, "Adam adds weight_decay to the gradient"),
    "no rate": (lambda m: _with(torch.optim.AdamW(m.parameters()), lr=None), {},
                "lr of group 0 = None, must be a finite number"),
    "a text": (lambda m: _with(torch.optim.AdamW(m.parameters()), lr="1e-3"), {},
               "lr of group 0 = '1e-3', must be a finite number"),
    "a rate": (lambda m: torch.optim.AdamW(m.parameters()), {"lr": 1e-3}, "give lr_scale="),
    "a graph's optimizer": (lambda m: _with(torch.optim.AdamW(m.parameters()), capturable=True), {},
                            "capturable=True"),
    "another's scheduler": (lambda m: torch.optim.AdamW(m.parameters()), {"scheduler": (
        lr_scheduler.StepLR(torch.optim.SGD([parameter(0, 2)], lr=1.0), 1))},
                            "the StepLR belongs to another optimizer, a SGD"),
    "one of pride's": (lambda m: pride.Lion(m.parameters()), {}, "is one of pride's already"),
    "no optimizer": (lambda m: None, {}, "is not a torch.optim.Optimizer"),
    "a state": (lambda m: _stepped(m), {}, "the AdamW has a state"),
    "delayed exchanges": (lambda m: torch.optim.AdamW(m.parameters()), dict(
        method="local-vote", options={"h": 4, "delay": 2}), "option delay=2"),
}


def _with(optimizer, **values):
    optimizer.param_groups[0].update(values)
    return optimizer


def _stepped(model):
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return optimizer


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_taken_over_is_refused(case):
    make, arguments, text = REFUSED[case]
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    given = make(model)
    before = [list(group) for group in given.param_groups] if given is not None else None
    with pytest.raises(pride.InvalidArgument) as error:
        pride.take_over(given, model, **arguments)
    assert text in str(error.value)
    assert given is None or [list(group) for group in given.param_groups] == before


def refused_on_one_rank():
    model = mlp()
    groups = groups_of(model)
    if own_rank() == 1:
        groups.pop()
    pride.take_over(torch.optim.AdamW(groups), model, timeout=30)


def test_a_refusal_on_one_rank_is_raised_on_all(world):
    errors = world(2).errors(refused_on_one_rank)
    assert all("'0.bias'" in text for _, text in errors)


def test_the_given_optimizer_takes_no_step():
    model = torch.nn.Linear(3, 2)
    given = torch.optim.AdamW(model.parameters())
    pride.take_over(given, model)
    for use in (given.step, given.state_dict, lambda: given.load_state_dict({}),
                lambda: pride.take_over(given, model)):
        with pytest.raises(pride.InvalidArgument, match="was taken over"):
            use()


@pytest.mark.skipif(not hasattr(torch.optim.Optimizer, "register_step_post_hook"), reason="torch 2")
def test_hooks_of_the_given_optimizer_go_on():
    model = torch.nn.Linear(3, 2)
    given = torch.optim.AdamW(model.parameters())
    called = []
    handles = [given.register_step_pre_hook(lambda own, *_: called.append(own)),
               given.register_step_post_hook(lambda own, *_: called.append(own))]
    optimizer = pride.take_over(given, model)
    for _ in range(2):
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        for handle in handles:
            handle.remove()
    assert len(called) == 2 and all(own is optimizer for own in called)


def test_several_optimizers_are_taken_over_together():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    given = [torch.optim.AdamW(layer.parameters(), lr=lr, weight_decay=0.0)
             for layer, lr in zip(model, (3e-2, 3e-1))]
    first, second = pride.take_over(given, model)
    before = [p.detach().clone() for p in model.parameters()]
    model(torch.ones(1, 3)).sum().backward()
    first.step()
    second.step()
    moved = [float((p - q).detach().abs().max()) for p, q in zip(model.parameters(), before)]
    assert moved == pytest.approx([0.01, 0.01, 0.1, 0.1], rel=1e-3)


def resumed(break_at):
    """Parameters after 8 steps, with a checkpoint of all ranks after `break_at` of them."""
    model = mlp()
    given = adamw(model)
    scheduler = warm_up(given)
    optimizer = pride.take_over(given, model, scheduler=scheduler, bucket_size=64)
    loop(model, optimizer, lambda _: scheduler.step(), break_at)
    if break_at < 8:
        saved = copy.deepcopy([model.state_dict(), optimizer.state_dict(), scheduler.state_dict()])
        optimizer.close()
        model = mlp(seed=5)
        given = adamw(model)
        scheduler = warm_up(given)
        for each, state in zip((model, given, scheduler), saved):  # as in a script, before the line
            each.load_state_dict(state)
        optimizer = pride.take_over(given, model, scheduler=scheduler, bucket_size=64)
        loop(model, optimizer, lambda _: scheduler.step(), 8 - break_at, break_at)
    return bits(model.parameters()), bits([v for p in model.parameters() for k, v in sorted(
        optimizer.state[p].items())]), scheduler.get_last_lr()


def test_a_script_that_loads_before_the_line_resumes_bit_for_bit(world):
    whole = world(2).run(resumed, 8)
    assert world(2).run(resumed, 5) == whole and whole[0][0] == whole[1][0] != whole[0][1]


def test_a_state_in_other_units_is_refused():
    model = torch.nn.Linear(3, 2)
    state = pride.DistributedLion(model.parameters(), 1e-3).state_dict()
    taken = pride.take_over(torch.optim.AdamW(model.parameters(), lr=3e-3), model)
    with pytest.raises(pride.InvalidArgument, match="multiplies rates by 0.3333"):
        taken.load_state_dict(state)
    by_hand = pride.DistributedLion(model.parameters(), 1e-2)
    by_hand.load_state_dict(taken.state_dict())  # with the factors
    assert by_hand._groups.values(by_hand.param_groups[0]).lr == pytest.approx(1e-3)


def test_a_state_of_adamw_is_refused_as_such():
    model = torch.nn.Sequential(torch.nn.Linear(3, 1))
    state = _stepped(model).state_dict()
    optimizer = pride.take_over(torch.optim.AdamW(model.parameters()), model)
    with pytest.raises(pride.DataError, match="not saved by pride .*it has those of AdamW"):
        optimizer.load_state_dict(state)


def test_the_maximum_is_sought_where_the_given_optimizer_did():
    model = torch.nn.Linear(3, 1, bias=False)
    optimizer = pride.take_over(torch.optim.AdamW(model.parameters(), maximize=True), model)
    before = model(torch.ones(1, 3)).item()
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    assert model(torch.ones(1, 3)).item() > before
