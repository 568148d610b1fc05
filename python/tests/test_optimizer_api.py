# The optimizers as torch.optim.Optimizer: groups, schedulers, gradients, parameters of all kinds.
# SPDX-License-Identifier: Apache-2.0
#
# Oracles: torch's own signatures; steps of signs written in torch (one rank: x - lr * sign); and
# optimizers over parts of the parameters. With one or three ranks no vote is tied.
import importlib
import inspect
import pkgutil
import warnings

import pytest
import torch
import torch.distributed as dist
from torch.optim import lr_scheduler

import models
import pride
from pride import _library as library
from test_steps import algorithm_1

NEW_TORCH = int(torch.__version__.split(".")[0]) >= 2


def numbers(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def parameter(seed, *shape, dtype=torch.float32):
    return torch.nn.Parameter(numbers(seed, *shape).to(dtype))


def set_gradients(params, step, rank=0):
    for i, p in enumerate(params):
        p.grad = numbers(1000 * step + 100 * rank + i, *p.shape).to(p.dtype)


# --- Signatures. ----------------------------------------------------------------------------------


def optimizer_classes():
    """All classes of the package that derive from torch's."""
    found = set()
    for module in pkgutil.iter_modules(pride.__path__, "pride."):
        for _, member in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
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
    assert {c.__name__ for c in optimizer_classes()} >= {"Optimizer", "DistributedLion", "Lion",
                                                         "LionCub"}
    assert {n for c, n in OVERRIDES if c is pride.Optimizer} >= {
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


# --- Groups and schedulers. -----------------------------------------------------------------------

VALUES = [dict(lr=1e-2, weight_decay=0.1), dict(lr=3e-3, weight_decay=0.0, betas=(0.5, 0.75)),
          dict(lr=1e-4)]


def by_groups(apart):
    """Three groups in one optimizer, or three optimizers."""
    params = [parameter(i, 50 + i) for i in range(3)]
    groups = [{"params": [p], **v} for p, v in zip(params, VALUES)]
    lists = [[g] for g in groups] if apart else [groups]
    rank = dist.get_rank()
    optimizers = [pride.DistributedLion(each, weight_decay=0.01) for each in lists]
    for step in range(5):
        set_gradients(params, step, rank)
        for optimizer in optimizers:
            optimizer.step()
    for optimizer in optimizers:
        optimizer.close()
    return [models.bits([p]) for p in params]


@pytest.mark.parametrize("n", [1, 3])
def test_groups_step_as_optimizers_of_their_own(world, n):
    together, apart = world(n).run(by_groups, False), world(n).run(by_groups, True)
    assert together == apart
    assert all(each == together[0] for each in together)


def moved(p, optimizer, step):
    """Distance of the step, with random signs."""
    before = p.detach().clone()
    set_gradients([p], step)
    optimizer.step()
    return (p.detach() - before).abs()


SCHEDULERS = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2, 0.5),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 8),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1.0 / (step + 1)),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.5, 8),
    "warm-up, then cosine": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, 1.0, 3), lr_scheduler.CosineAnnealingLR(o, 5)], [3]),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_acts_on_the_next_step(name):
    p, other = torch.nn.Parameter(torch.zeros(40)), torch.nn.Parameter(torch.zeros(1))
    optimizer = pride.DistributedLion([p], lr=0.25)
    oracle = torch.optim.AdamW([other], lr=0.25, betas=(0.9, 0.99))
    scheduler, expected = SCHEDULERS[name](optimizer), SCHEDULERS[name](oracle)
    rates, x, momentum = set(), torch.zeros(40), torch.zeros(40)
    for step in range(8):
        group = oracle.param_groups[0]
        rates.add(round(group["lr"], 6))
        distance = moved(p, optimizer, step)
        assert torch.allclose(distance, torch.tensor(float(group["lr"])), atol=1e-6, rtol=1e-5)
        x, (momentum,), _ = algorithm_1(x, [numbers(1000 * step, 40)], [momentum], group["lr"],
                                        *group["betas"], 0.0)
        assert torch.allclose(p.detach(), x, atol=1e-5), f"step {step}, betas {group['betas']}"
        assert torch.allclose(optimizer.state[p]["m.rank0"], momentum, atol=1e-6)
        oracle.step()
        scheduler.step()
        expected.step()
        assert scheduler.get_last_lr() == expected.get_last_lr()
    assert len(rates) > 2


@pytest.mark.parametrize("method", ["graddrop", "signsgd-ef"])
def test_a_method_without_betas_refuses_a_cycled_momentum_as_torch_does(method):
    optimizer = pride.Optimizer([parameter(0, 3)], 0.1, method=method)
    with pytest.raises(ValueError, match="must support momentum"):
        lr_scheduler.OneCycleLR(optimizer, 0.5, 8)
    lr_scheduler.OneCycleLR(optimizer, 0.5, 8, cycle_momentum=False)


def test_a_tensor_as_rate():
    p, rate = torch.nn.Parameter(torch.zeros(9)), torch.tensor(0.5)
    optimizer = pride.DistributedLion([p], lr=rate)
    assert set(moved(p, optimizer, 0).tolist()) == {0.5}
    rate.fill_(0.25)
    assert set(moved(p, optimizer, 1).tolist()) == {0.25}
    optimizer.param_groups[0]["lr"] = torch.tensor([0.125], dtype=torch.float64)
    assert set(moved(p, optimizer, 2).tolist()) == {0.125}


@pytest.mark.parametrize("bad", [dict(lr=float("nan")), dict(lr=-1.0), dict(lr=float("inf")),
                                 dict(betas=(0.9,)), dict(betas=(0.9, 0.99, 0.999)),
                                 dict(betas=(0.9, float("nan"))), dict(betas=(1.5, 0.9)),
                                 dict(weight_decay=float("nan")), dict(weight_decay=-0.1)],
                         ids=str)
def test_unusable_values_are_refused_by_name_and_never_replaced_by_defaults(bad):
    key = next(iter(bad))
    word = {"lr": "lr|learning rate", "betas": "beta", "weight_decay": "weight.decay"}[key]
    with pytest.raises(ValueError, match=word):
        pride.DistributedLion([parameter(0, 3)], **bad)
    with pytest.raises(ValueError, match=word):
        pride.DistributedLion([{"params": [parameter(0, 3)], **bad}])
    p = parameter(0, 3)
    optimizer = pride.DistributedLion([p], lr=0.5)
    good = optimizer.param_groups[0][key]
    optimizer.param_groups[0].update(bad)  # as a scheduler would
    before = p.detach().clone()
    set_gradients([p], 0)
    with pytest.raises(ValueError, match=word):
        optimizer.step()
    assert torch.equal(p, before)
    with pytest.raises(ValueError, match=word):
        optimizer.add_param_group({"params": [parameter(1, 3)], **bad})
    assert len(optimizer.param_groups) == 1
    optimizer.param_groups[0][key] = good
    assert set(moved(p, optimizer, 0).tolist()) <= {0.5, 0.49999994, 0.50000006}


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


# --- add_param_group. -----------------------------------------------------------------------------


def grown(at_once, zero, method="dlion-vote", dtype=torch.float32):
    """Five steps, with the second group from the third on: added then, or unused before."""
    rank = dist.get_rank()
    old = [parameter(0, 70), parameter(1, 3, 5, dtype=dtype)]
    new = [parameter(2, 64), parameter(3), parameter(4, 0), parameter(5, 9, dtype=dtype)]
    # decay of parameters that no rank uses goes on: none, for as long as the group is not there
    groups = [{"params": old}, {"params": new, "lr": 1e-3, "weight_decay": 0.0}]
    optimizer = pride.Optimizer(groups if at_once else groups[:1], 1e-2, method=method,
                                weight_decay=0.1, bucket_size=64)
    for step in range(5):
        if step == 2 and not at_once:
            kept = {k: v.clone() for k, v in optimizer.state[old[0]].items()}
            assert any(v.any() for k, v in kept.items() if k != "step")
            optimizer.add_param_group(groups[1])
            for key, value in kept.items():
                assert torch.equal(optimizer.state[old[0]][key], value), key
            assert len(optimizer.param_groups) == 2 and optimizer.param_groups[1]["lr"] == 1e-3
        if step == 2:
            optimizer.param_groups[1]["weight_decay"] = 0.1
        live = old + (new if step >= 2 else [])
        if zero:
            optimizer.zero_grad(set_to_none=False)
            for i, p in enumerate(live):
                g = numbers(1000 * step + 100 * rank + i, *p.shape).to(p.dtype)
                p.grad = g if p.grad is None else p.grad.add_(g)
        else:
            set_gradients(live, step, rank)
        optimizer.step()
        for slot in optimizer._slots:
            assert torch.equal(slot.view.to(slot.param.dtype), slot.param), slot.name
            if slot.direct:
                assert slot.param.data_ptr() == slot.view.data_ptr()
    assert [p.data_ptr() == v.view.data_ptr() for p, v in zip(old, optimizer._slots)][0]
    optimizer.check_replicas()
    state = {k: v.numpy().tobytes() for k, v in optimizer.state[new[0]].items() if k != "step"}
    optimizer.close()
    return models.bits(old + new), state


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("zero", [False, True])
def test_an_added_group_steps_as_one_that_was_there_and_unused(world, n, zero):
    expected = world(n).run(grown, True, zero)
    assert world(n).run(grown, False, zero) == expected
    assert len({bits for bits, _ in expected}) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_masters_are_kept_when_a_group_is_added(world, dtype):
    expected = world(2).run(grown, True, False, "dlion-avg", dtype)
    assert world(2).run(grown, False, False, "dlion-avg", dtype) == expected


def bad_group(kind):
    """Rank 1 adds another group than rank 0: an error everywhere, and training goes on."""
    rank = dist.get_rank()
    p = parameter(0, 20)
    optimizer = pride.DistributedLion([p], lr=0.5, timeout=20)
    set_gradients([p], 0, rank)
    optimizer.step()
    group = {"params": [parameter(1, 6)]}
    if rank == 1:
        group = {"shape": {"params": [parameter(1, 2, 3)]},
                 "values": {"params": [parameter(2, 6)]},
                 "rate": {"params": [parameter(1, 6)], "lr": 0.25},
                 "twice": {"params": [p]},
                 "complex": {"params": [torch.zeros(6, dtype=torch.complex64)]},
                 "type": {"params": ["weights"]},
                 "set": {"params": {parameter(1, 6)}},
                 "no parameters": {"lr": 1.0}}[kind]
    problem = None
    try:
        optimizer.add_param_group(group)
    except Exception as error:  # pylint: disable=broad-except
        problem = str(error)
    assert problem is not None
    assert len(optimizer.param_groups) == 1
    set_gradients([p], 1, rank)
    before = p.detach().clone()
    optimizer.step()
    assert not torch.equal(p, before)
    optimizer.check_replicas()
    optimizer.add_param_group({"params": [parameter(1, 6)]})
    set_gradients([p], 2, rank)
    optimizer.step()
    optimizer.close()
    return problem


@pytest.mark.parametrize("kind", ["shape", "values", "rate", "twice", "complex", "type", "set",
                                  "no parameters"])
def test_a_group_that_one_rank_alone_has_is_refused_on_all_and_training_goes_on(world, kind):
    for text in world(2).run(bad_group, kind):
        assert text


# --- Gradients: None, zeros, views. ---------------------------------------------------------------


def accumulated(method, overlap=False):
    """Bits after steps of two backwards each; `method` says how gradients are reset."""
    rank = dist.get_rank()
    model = models.mlp()
    optimizer = pride.DistributedLion(model.parameters(), 1e-2, weight_decay=0.1, bucket_size=64,
                                      overlap=overlap)
    for step in range(5):
        if method == "none":
            optimizer.zero_grad(set_to_none=True)
        elif method == "zero":
            optimizer.zero_grad(set_to_none=False)
        elif method == "module":
            model.zero_grad()
        else:
            for p in model.parameters():
                p.grad = None
        with optimizer.no_sync():
            models.backward(model, rank, 2 * step)
        models.backward(model, rank, 2 * step + 1)
        optimizer.step()
    optimizer.close()
    return models.bits(model.parameters())


@pytest.mark.parametrize("n", [1, 3])
def test_bits_do_not_depend_on_how_gradients_are_reset(world, n):
    expected = world(n).run(accumulated, "by hand")
    assert len(set(expected)) == 1
    for method in ("none", "zero", "module"):
        assert world(n).run(accumulated, method) == expected, method
    assert world(n).run(accumulated, "zero", True) == expected, "with overlap"


def test_zeroed_gradients_are_views_into_which_backward_writes():
    model = models.mlp()
    optimizer = pride.DistributedLion(model.parameters(), 1e-2)
    models.backward(model, 0, 0)
    optimizer.zero_grad(set_to_none=False)
    pointers = [slot.grad_view.data_ptr() for slot in optimizer._slots]
    for step in range(3):
        assert [p.grad.data_ptr() for p in model.parameters()] == pointers
        assert not any(p.grad.any() for p in model.parameters())
        models.backward(model, 0, step)
        assert [p.grad.data_ptr() for p in model.parameters()] == pointers
        held = [p.grad.clone() for p in model.parameters()]
        optimizer.step()
        assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), held))
        optimizer.zero_grad(set_to_none=False)
    optimizer.zero_grad(set_to_none=True)
    assert all(p.grad is None for p in model.parameters())
    optimizer.zero_grad(set_to_none=False)
    assert all(p.grad is None for p in model.parameters()), "as torch: what is None stays None"
    assert (inspect.signature(optimizer.zero_grad).parameters["set_to_none"].default ==
            inspect.signature(torch.optim.SGD.zero_grad).parameters["set_to_none"].default)


def test_a_zero_gradient_steps_and_no_gradient_does_not():
    used, unused = torch.nn.Parameter(torch.ones(4)), torch.nn.Parameter(torch.ones(4))
    optimizer = pride.DistributedLion([used, unused], 0.5)
    set_gradients([used, unused], 0)
    optimizer.step()
    before = used.detach().clone(), unused.detach().clone()
    momentum = optimizer.state[unused]["m.rank0"].clone()
    used.grad, unused.grad = torch.zeros(4), None
    optimizer.step()
    assert not torch.equal(used, before[0])
    assert torch.equal(unused, before[1])
    assert torch.equal(optimizer.state[unused]["m.rank0"], momentum)


def test_a_gradient_with_the_views_address_and_other_strides_is_copied():
    p = torch.nn.Parameter(torch.zeros(3, 3))
    optimizer = pride.DistributedLion([p], 1.0)
    p.grad = torch.zeros(3, 3)
    optimizer.zero_grad(set_to_none=False)
    g = numbers(3, 3, 3)
    p.grad.copy_(g)
    p.grad = p.grad.t()
    optimizer.step()
    assert torch.equal(p, -g.t().sign())


def test_maximize_is_the_step_of_negated_gradients():
    for zero in (False, True):
        up, down = parameter(0, 30), parameter(0, 30)
        climber = pride.DistributedLion([up], 1e-2, weight_decay=0.1, maximize=True)
        faller = pride.DistributedLion([down], 1e-2, weight_decay=0.1)
        for step in range(4):
            climber.zero_grad(set_to_none=not zero)
            g = numbers(step, 30)
            up.grad = g.clone() if up.grad is None else up.grad.add_(g)
            down.grad = -g
            climber.step()
            faller.step()
            assert torch.equal(up.grad, g), "the step leaves the gradient as it is"
        assert torch.equal(up, down)
        assert not torch.equal(up, parameter(0, 30))


def test_maximize_may_be_changed_but_not_for_one_group_alone():
    a, b = torch.nn.Parameter(torch.zeros(6)), torch.nn.Parameter(torch.zeros(6))
    optimizer = pride.DistributedLion([{"params": [a]}, {"params": [b]}], 1.0)
    for p in (a, b):
        p.grad = torch.ones(6)
    optimizer.zero_grad(set_to_none=False)  # views from here on
    for group in optimizer.param_groups:
        group["maximize"] = True
    for p in (a, b):
        p.grad.add_(1.0)
    optimizer.step()
    assert torch.equal(a, torch.ones(6)) and torch.equal(b, torch.ones(6))
    assert torch.equal(a.grad, torch.ones(6)), "the step leaves the gradient as it is"
    optimizer.param_groups[1]["maximize"] = False
    with pytest.raises(ValueError, match="maximize"):
        optimizer.step()
    with pytest.raises(ValueError, match="maximize"):
        pride.DistributedLion([{"params": [a]}, {"params": [b], "maximize": True}])


def other_maximize():
    p = parameter(0, 6)
    optimizer = pride.DistributedLion([p], 1.0, maximize=dist.get_rank() == 1, timeout=20)
    set_gradients([p], 0, dist.get_rank())
    optimizer.step()


def test_ranks_that_climb_while_others_descend_are_an_error(world):
    for kind, text in world(2).errors(other_maximize):
        assert issubclass(kind, ValueError) and "maximize" in text


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


# --- Parameters. ----------------------------------------------------------------------------------


def test_a_tied_parameter_has_one_state_and_the_sum_of_its_gradients():
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(5, 4)
            self.head = torch.nn.Linear(4, 5, bias=False)
            self.head.weight = self.embedding.weight

    model = Tied()
    start = model.embedding.weight.detach().clone()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of the list below
        lists = [list(model.parameters()), [model.embedding.weight, model.head.weight]]
        for params in lists:
            with torch.no_grad():
                model.head.weight.copy_(start)
            optimizer = pride.DistributedLion(params, 0.5)
            assert len(optimizer._slots) == 1
            model.zero_grad()
            model.head(model.embedding(torch.tensor([1, 2]))).pow(2).sum().backward()
            gradient = model.head.weight.grad.clone()
            optimizer.step()
            moved_ = gradient != 0
            assert torch.equal(model.embedding.weight[moved_],
                               (start - 0.5 * gradient.sign())[moved_])
            assert model.embedding.weight is model.head.weight
            optimizer.close()


def test_unusual_dense_parameters():
    flat = numbers(9, 20)
    shared = torch.nn.Parameter(numbers(8, 6))
    shared.share_memory_()
    params = {
        "empty": parameter(0, 0, 3),
        "scalar": parameter(1),
        "channels last": torch.nn.Parameter(
            numbers(2, 2, 3, 4, 5).contiguous(memory_format=torch.channels_last)),
        "transposed": torch.nn.Parameter(numbers(3, 4, 6).t()),
        "first half": torch.nn.Parameter(flat[:10]),
        "second half": torch.nn.Parameter(flat[10:]),
        "shared memory": shared,
        "frozen": parameter(5, 7).requires_grad_(False),
        "plain": parameter(6, 7),
        "expanded later": parameter(7, 1, 4),
        "tensor": numbers(10, 3).requires_grad_(),
    }
    assert not params["transposed"].is_contiguous()
    layout = {name: p.stride() for name, p in params.items()}
    before = {name: p.detach().clone() for name, p in params.items()}
    optimizer = pride.DistributedLion(params.items(), 0.5)
    gradients = {name: numbers(50 + i, *p.shape) for i, (name, p) in enumerate(params.items())}
    loss = sum((gradients[name] * p).sum() for name, p in params.items() if p.requires_grad)
    for way in range(2):
        if way:
            optimizer.zero_grad(set_to_none=False)
            before = {name: p.detach().clone() for name, p in params.items()}
            loss = sum((-gradients[n] * p).sum() * 1e6 for n, p in params.items()
                       if p.requires_grad)
        loss.backward()
        optimizer.step()
        for name, p in params.items():
            g = gradients[name] * (0 if name == "frozen" else -1 if way else 1)
            assert torch.equal(p, before[name] - 0.5 * g.sign()), name
            assert p.stride() == layout[name], name
    assert torch.equal(torch.cat([params["first half"], params["second half"]]), flat)
    assert params["shared memory"].is_shared()
    assert params["frozen"].grad is None


@pytest.mark.parametrize("kind", ["same", "overlapping"])
def test_different_parameters_over_the_same_memory_are_refused(kind):
    whole = numbers(0, 10)
    first = torch.nn.Parameter(whole if kind == "same" else whole[:6])
    second = torch.nn.Parameter(whole if kind == "same" else whole[5:])
    with pytest.raises(pride.InvalidArgument, match="'?head'? .*memory.*'?embedding'?|"
                                                    "'?embedding'? .*'?head'? .*memory"):
        pride.DistributedLion([("embedding", first), ("head", second)])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_tiny_updates_of_half_precision_add_up_in_the_master(dtype):
    p = torch.nn.Parameter(torch.ones(64, dtype=dtype))
    wide = torch.nn.Parameter(torch.ones(64))
    lr = 2.0 ** -14
    assert torch.ones(1, dtype=dtype) - lr == 1  # below the resolution at 1
    optimizer, oracle = pride.DistributedLion([p], lr), pride.DistributedLion([wide], lr)
    for step in range(100):
        set_gradients([p], 0)
        p.grad.abs_()
        wide.grad = p.grad.float()
        optimizer.step()
        oracle.step()
        assert torch.equal(p, wide.to(dtype)), step
        optimizer.zero_grad(set_to_none=step % 2 == 0)
    assert torch.allclose(p.float(), torch.tensor(1 - 100 * lr), atol=2 ** -8)
    assert (p < 1).all()
    assert p.dtype == dtype and optimizer.state[p]["m.rank0"].dtype == torch.float32


REFUSED = {
    "complex": (lambda: torch.nn.Parameter(torch.zeros(3, dtype=torch.complex64)), "complex"),
    "sparse": (lambda: torch.zeros(3, 3).to_sparse().requires_grad_(), "not a dense tensor"),
    "float64": (lambda: torch.nn.Parameter(torch.zeros(3, dtype=torch.float64)), "float64"),
    "integer": (lambda: torch.nn.Parameter(torch.zeros(3, dtype=torch.int64), False), "int64"),
    "meta": (lambda: torch.nn.Parameter(torch.zeros(3, device="meta")), "meta"),
    "lazy": (lambda: torch.nn.LazyLinear(3).weight, "initiali"),
}


@pytest.mark.filterwarnings("ignore:Lazy")
@pytest.mark.parametrize("kind", REFUSED)
def test_parameters_that_cannot_be_optimized_are_refused_by_name(kind):
    make, word = REFUSED[kind]
    with pytest.raises((pride.InvalidArgument, TypeError), match=word) as caught:
        pride.DistributedLion([("first", parameter(0, 3)), ("the.other", make())])
    assert "the.other" in str(caught.value)
    with pytest.raises((pride.InvalidArgument, TypeError), match="group 0 parameter 1"):
        pride.DistributedLion([parameter(0, 3), make()])


def test_lists_that_torch_refuses():
    p = parameter(0, 3)
    with pytest.raises(ValueError, match="empty parameter list"):
        pride.DistributedLion([])
    with pytest.raises(ValueError, match="empty parameter list"):
        pride.DistributedLion(iter(()))
    with pytest.raises(TypeError, match="iterable of Tensors"):
        pride.DistributedLion(p)
    with pytest.raises(TypeError, match="can only optimize Tensors"):
        pride.DistributedLion(["weights"])
    with pytest.raises(ValueError, match="non-leaf"):
        pride.DistributedLion([p * 2])
    with pytest.raises(ValueError, match="more than one parameter group"):
        pride.DistributedLion([{"params": [p]}, {"params": [p]}])
    for unordered in ({p}, [{"params": {p}}]):
        with pytest.raises(TypeError, match="order"):
            pride.DistributedLion(unordered)
    with pytest.warns(UserWarning, match="duplicate parameters"):
        optimizer = pride.DistributedLion([p, p], 0.5)
    assert set(moved(p, optimizer, 0).tolist()) <= {0.5, 0.49999994, 0.50000006}
    with pytest.raises(pride.InvalidArgument, match="two parameters are named 'w'"):
        pride.DistributedLion([("w", p), ("w", parameter(1, 3))])


def test_empty_groups_and_parameters_without_elements_alone():
    a = parameter(0, 3)
    optimizer = pride.DistributedLion([{"params": []}, {"params": [a]}], 0.5)
    assert (moved(a, optimizer, 0) > 0).all()
    nothing = parameter(0, 0)
    optimizer = pride.DistributedLion([nothing], 0.5)
    nothing.grad = torch.zeros(0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    optimizer.step()
    with pytest.raises(ValueError, match="no parameters"):
        pride.DistributedLion([{"params": []}])


def test_names_are_taken_from_named_parameters():
    model = models.mlp()
    optimizer = pride.DistributedLion(model.named_parameters())
    assert [slot.name for slot in optimizer._slots] == [n for n, _ in model.named_parameters()]
    optimizer = pride.DistributedLion([{"params": model[0].named_parameters()},
                                       {"params": [("last", model[2].weight)]}])
    assert [slot.name for slot in optimizer._slots] == ["weight", "bias", "last"]
    assert all(isinstance(p, torch.Tensor) for g in optimizer.param_groups for p in g["params"])


def bad_gradient(kind):
    """One rank's gradient cannot be used: an error on all, parameters unchanged, and on it goes."""
    rank = dist.get_rank()
    params = [("emb.weight", parameter(0, 5, 4)), ("fc.weight", parameter(1, 6))]
    optimizer = pride.DistributedLion(params, 0.5, timeout=20)
    plain = [p for _, p in params]
    texts = []
    for step in range(4):
        set_gradients(plain, step, rank)
        before = models.bits(plain)
        if rank == dist.get_world_size() - 1 and step in (1, 3):
            plain[0].grad = {"sparse": torch.eye(5, 4).to_sparse(),
                             }[kind]
        try:
            optimizer.step()
            assert step in (0, 2)
            assert models.bits(plain) != before
        except pride.InvalidArgument as error:
            texts.append(str(error))
            assert models.bits(plain) == before
    optimizer.check_replicas()
    optimizer.close()
    return texts


@pytest.mark.parametrize("n", [1, 2])
def test_a_sparse_gradient_on_one_rank_is_refused_on_all(world, n):
    for texts in world(n).run(bad_gradient, "sparse"):
        assert len(texts) == 2
        for text in texts:
            assert "emb.weight" in text and "sparse" in text


# --- Edits of parameters between steps. -----------------------------------------------------------


def edit_load(model, values):
    model.load_state_dict({"weight": values})


def edit_data(model, values):
    model.weight.data = values.clone()


def edit_data_in_place(model, values):
    model.weight.data.copy_(values)


def edit_data_twice(model, values):
    for factor in (3.0, 1.0):
        model.weight.data = factor * values


def edit_in_place(model, values):
    with torch.no_grad():
        model.weight.copy_(values)


def edit_numpy(model, values):
    if model.weight.dtype == torch.bfloat16:
        return edit_data_in_place(model, values)
    model.weight.detach().numpy()[...] = values.numpy()


EDITS = [edit_load, edit_data, edit_data_in_place, edit_data_twice, edit_in_place, edit_numpy]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("edit", EDITS, ids=lambda e: e.__name__)
def test_edits_between_steps_are_honoured(edit, dtype):
    model = torch.nn.Linear(6, 5, bias=False).to(dtype)
    optimizer = pride.DistributedLion(model.parameters(), 0.25)
    for step in range(3):
        set_gradients([model.weight], step)
        optimizer.step()
        values = numbers(70 + step, 5, 6).to(dtype)
        edit(model, values)
        assert torch.equal(model.weight, values)
        g = torch.ones(5, 6, dtype=dtype) * 1e6 ** 0.5 * 40
        model.weight.grad = g
        optimizer.step()
        assert torch.equal(model.weight, (values.float() - 0.25).to(dtype)), step
    optimizer.check_replicas()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_an_edit_of_one_row_keeps_the_masters_of_the_others(dtype):
    p = torch.nn.Parameter(torch.ones(4, 3, dtype=dtype))
    lr = 2.0 ** -14
    optimizer = pride.DistributedLion([p], lr)
    for step in range(100):
        p.grad = torch.ones(4, 3, dtype=dtype)
        optimizer.step()
        if step == 50:
            p.data[2] = 3.0
    assert torch.equal(p[0], torch.full((3,), 1 - 100 * lr).to(dtype)) and (p[0] < 1).all()
    assert torch.equal(p[2], torch.full((3,), 3 - 49 * lr).to(dtype))


def test_a_model_that_becomes_half_or_changes_its_memory_format():
    model = torch.nn.Conv2d(3, 3, 3, bias=False)
    optimizer = pride.DistributedLion(model.parameters(), 0.25)
    for change in (lambda: model.to(memory_format=torch.channels_last), model.half, model.float,
                   lambda: setattr(model.weight, "data", model.weight.data.transpose(0, 1))):
        change()
        before = model.weight.detach().clone()
        model.weight.grad = 1000 * torch.ones_like(model.weight)
        optimizer.step()
        assert torch.allclose(model.weight.float(), before.float() - 0.25, atol=2.0 ** -11)
        assert model.weight.stride() == before.stride()
        optimizer.zero_grad(set_to_none=True)


def test_data_of_another_shape_is_refused_by_name():
    p = parameter(0, 3, 4)
    optimizer = pride.DistributedLion([("fc.weight", p)], 0.25)
    p.data = torch.zeros(4)
    p.grad = torch.ones(4)
    with pytest.raises(pride.InvalidArgument, match=r"fc.weight .*\(4,\).*\(3, 4\)"):
        optimizer.step()
    p.grad = None
    p.data = torch.zeros(3, 4)
    p.grad = torch.ones(3, 4)
    optimizer.step()
    assert torch.equal(p, torch.full((3, 4), -0.25))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_backward_through_values_from_before_the_step_raises_as_with_torch(dtype):
    for make in (lambda p: torch.optim.SGD(p, 0.1), lambda p: pride.DistributedLion(p, 0.1)):
        p = parameter(0, 4, dtype=dtype)
        optimizer = make([p])
        for _ in range(2):
            loss = (p * p).sum()
            loss.backward(retain_graph=True)
            optimizer.step()
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                loss.backward()
            p.grad = None
            (p * p).sum().backward()  # a new forward pass is fine
            p.grad = None


def test_forward_values_of_the_new_parameters():
    """No operation keeps the old memory: the module computes with what the step has written."""
    model = torch.nn.LSTM(3, 4)
    x = numbers(0, 5, 2, 3)
    optimizer = pride.DistributedLion(model.parameters(), 0.25)
    for _ in range(2):
        model.zero_grad()
        model(x)[0].sum().backward()
        optimizer.step()
        copy = torch.nn.LSTM(3, 4)
        copy.load_state_dict(model.state_dict())
        assert torch.equal(model(x)[0], copy(x)[0])


def test_the_buffers_of_the_library_are_untouched_by_a_second_optimizer():
    p = parameter(0, 8)
    first = pride.DistributedLion([p], 0.5)
    second = pride.DistributedLion([p], 0.25)  # takes the memory over
    x = p.detach().clone()
    for optimizer, lr in ((first, 0.5), (second, 0.25), (first, 0.5)):
        p.grad = torch.ones(8)
        optimizer.step()
        x -= lr
        assert torch.equal(p, x)
    assert library.lib.pride_layout_flat_size(first._layout) >= 8


def test_parameters_put_into_groups_by_hand_are_refused():
    a, b = parameter(0, 4), parameter(1, 4)
    for change in (lambda g: g[0]["params"].append(b), lambda g: g[0].update(params=[b]),
                   lambda g: g.append(dict(g[0], params=[b])), lambda g: g.clear()):
        optimizer = pride.DistributedLion([a], 0.25)
        set_gradients([a, b], 0)
        change(optimizer.param_groups)
        with pytest.raises(pride.InvalidArgument, match="add_param_group"):
            optimizer.step()


def test_a_gradient_from_before_a_group_was_added_counts_in_the_next_step():
    for way in ("view", "copy", "half"):
        p = parameter(0, 6, dtype=torch.bfloat16 if way == "half" else torch.float32)
        optimizer = pride.DistributedLion([p], 0.25)
        set_gradients([p], 0)
        if way == "view":
            optimizer.zero_grad(set_to_none=False)
            p.grad.add_(numbers(1, 6))
        g, before = p.grad.clone(), p.detach().clone()
        optimizer.add_param_group({"params": [parameter(1, 90)]})
        assert torch.equal(p.grad, g) and torch.equal(p, before)
        optimizer.zero_grad(set_to_none=True)  # which leaves the old buffer alone
        p.grad = g
        optimizer.step()
        assert torch.equal(p, (before.float() - 0.25 * g.float().sign()).to(p.dtype))


# --- Frozen parameters. ---------------------------------------------------------------------------


def freezing(overlap):
    """One parameter is frozen from the start, one from step 3 on; all are released at step 5."""
    rank = dist.get_rank()
    params = [parameter(i, 40) for i in range(3)] + [parameter(3, 9, dtype=torch.bfloat16)]
    for p in params[1:2] + params[3:]:
        p.requires_grad_(False)
    optimizer = pride.DistributedLion(params, 0.125, weight_decay=0.5, overlap=overlap)
    moved_, shrunk = [], []
    for step in range(8):
        if step == 3 and not overlap:
            params[2].requires_grad_(False)
        if step == 5:
            for p in params:
                p.requires_grad_(True)
        optimizer.zero_grad(set_to_none=True)
        before = [p.detach().clone() for p in params]
        live = [p for p in params if p.requires_grad and not (step == 7 and p is params[0])]
        sum((p.float() * numbers(10 * step + rank, *p.shape)).sum() for p in live).backward()
        optimizer.step()
        moved_.append([not torch.equal(p, b) for p, b in zip(params, before)])
        shrunk.append(torch.equal(params[0], before[0] * (1 - 0.125 * 0.5)))
    optimizer.check_replicas()
    optimizer.close()
    return moved_, shrunk, models.bits(params)


def test_counts_of_weighted_votes_have_their_own_bytes():
    plain = pride.step_bytes("dlion-avg", 10_000_000, 4)
    assert pride.step_bytes("dlion-avg", 10_000_000, 4, vote_weights=[3] * 4) == plain
    assert pride.step_bytes("dlion-avg", 10_000_000, 4, vote_weights=[5, 1, 1, 1]) > plain
    with pytest.raises(pride.InvalidArgument, match="3 vote weights for 4 ranks"):
        pride.step_bytes("dlion-avg", 10_000_000, 4, vote_weights=[5, 1, 1])


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("n", [1, 2])
def test_frozen_parameters_are_not_decayed(world, n, overlap):
    results = world(n).run(freezing, overlap)
    late = overlap  # this one is not frozen in the run with overlap
    for moved_, shrunk, _ in results:
        assert moved_ == 3 * [[True, False, True, False]] + 2 * [[True, False, late, False]] + (
            3 * [[True] * 4])
        assert shrunk[-1], "one that is unused, and not frozen, is decayed"
    assert len({bits for _, _, bits in results}) == 1


def frozen_on_one():
    params = [parameter(0, 5), parameter(1, 5)]
    params[1].requires_grad_(dist.get_rank() == 0)
    optimizer = pride.DistributedLion(params, 0.125, weight_decay=0.5, timeout=20)
    set_gradients(params[:1], 0, dist.get_rank())
    optimizer.step()


def test_a_parameter_frozen_on_one_rank_alone_is_an_error(world):
    for kind, text in world(2).errors(frozen_on_one):
        assert issubclass(kind, ValueError) and "requires_grad=False of rank(s) 1" in text


# --- Construction on several ranks. ---------------------------------------------------------------


def constructed(kind):
    """Rank 1 makes another optimizer than rank 0; both make a good one afterwards."""
    odd = dist.get_rank() == 1
    p = parameter(0, 8)
    wrong = {"empty": dict(params=[]), "tensor": dict(params=p),
             "capturable": dict(capturable=True), "rate": dict(lr=0.125),
             "NaN": dict(weight_decay=float("nan")), "method": dict(method="dlion-vot"),
             "overlap": dict(overlap=True), "lanes": dict(lanes=1),
             "equal_gradients": dict(equal_gradients="allow"),
             "on_non_finite": dict(on_non_finite="skip"), "broadcast": dict(
                 broadcast_parameters=True), "values": dict(params=[("w", parameter(1, 8))]),
             "names": dict(params=[("other", p)]), "groups": dict(
                 params=[{"params": [p]}, {"params": [parameter(2, 1)]}])}[kind]
    arguments = dict(params=[("w", p)], lr=0.25, method="dlion-vote", timeout=20)
    if odd:
        arguments.update(wrong)
    problem = None
    try:
        pride.Optimizer(**arguments)
    except (ValueError, TypeError) as error:
        problem = str(error)
    optimizer = pride.DistributedLion([p], 0.25, timeout=20)
    set_gradients([p], 0, dist.get_rank())
    optimizer.step()
    optimizer.close()
    return problem


@pytest.mark.parametrize("kind, word", [
    ("empty", "empty parameter list"), ("tensor", "iterable of Tensors"),
    ("capturable", "capturable=True"), ("rate", ""), ("NaN", "weight_decay of group 0 is NaN"),
    ("method", "dlion-vot"), ("overlap", "'overlap'"), ("lanes", "'lanes'"),
    ("equal_gradients", "'equal_gradients'"), ("on_non_finite", "'on_non_finite'"),
    ("broadcast", "broadcast_parameters()"), ("values", "'w' of shape (8,)"), ("names", ""),
    ("groups", "")])
def test_what_one_rank_makes_differently_is_an_error_on_all(world, kind, word):
    for text in world(2).run(constructed, kind):
        assert text is not None and word in text, text
