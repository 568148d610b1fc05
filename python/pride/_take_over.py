"""pride.take_over(): one line gives a training loop one of pride's optimizers instead of its own."""
# SPDX-License-Identifier: Apache-2.0
import ctypes as c
import functools
import sys
import weakref
from typing import Any, List, Optional, Sequence, Union

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from . import _library as library
from . import _units as units
from ._between import keep_common
from ._groups import FIXED, betas_of, has_own
from ._matrices import remember
from ._replica import Replica
from ._tensors import is_sharded
from .errors import InvalidArgument, number, of_type
from .gradients import local_gradients
from .optimizer import Optimizer
from .run_worker import RunWorker
from .virtual_workers import VirtualWorkers

# torch's optimizers that add weight decay to the gradient
_COUPLED = ("ASGD", "Adadelta", "Adagrad", "Adam", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD")


def take_over(optimizer: Union[torch.optim.Optimizer, Sequence[torch.optim.Optimizer]],
              model: torch.nn.Module, method: str = "dlion-vote", *, scheduler: Any = None,
              lr_scale: Optional[float] = None, weight_decay_scale: Optional[float] = None,
              **arguments: Any) -> Union[Replica, List[Replica]]:
    """Makes one of pride's optimizers over the groups of a loop's own, which takes no further step.

        optimizer = pride.take_over(optimizer, model, method="dlion-muon", scheduler=scheduler)

    Both optimizers share the dicts of ``param_groups``, in the units of the given one: schedulers
    made before, and loops that write ``group["lr"]`` in every step, go on. pride multiplies rates
    and decays by factors of each group, ``group["pride_lr_scale"]`` and
    ``group["pride_weight_decay_scale"]``. It follows ``lr``, ``weight_decay`` and ``maximize``;
    betas are the method's own, but those of a group of Muon's, or the momentum of the method ``muon``,
    follow its ``momentum``.

    Call it before the first step, with the model in DistributedDataParallel, which then leaves
    gradients local, or plain, which gets rank 0's parameters. DDP may also wrap the model later.
    A group with ``"method"``, and ``"options"``, steps by that method.
    With local steps the model has the common parameters between a step and the next forward pass
    with gradients enabled, for whatever saves it or evaluates it in ``no_grad()``. Rank 0 prints a
    line with method, rate, bytes, matrices and route. If the optimizer holds a state of pride's, which its
    ``load_state_dict()`` read, this call loads it.

    Args:
        optimizer: with groups over all parameters of the model that require a gradient. Or a list
            of optimizers, which have them together; then a list is returned.
        model: gives parameters their names, and the method the types of layers.
        method: a name of :func:`pride.methods`.
        scheduler: a scheduler, or a list, made over the optimizer: checked, and left as it is.
        lr_scale: factor on rates, of groups without a method of their own. Default: for methods of signs a third from AdamW, 1 from Lion;
            for ``dlion-muon`` what makes the optimizer's default rate the method's own, 1e-3 (if
            no group has the default: the rate of most of the model), or from
            Muon 1 / sqrt(longer side of its matrices).
        weight_decay_scale: factor on decays. Default: 1 / lr_scale, which leaves
            ``lr * weight_decay`` unchanged.
        arguments: of :class:`pride.Optimizer`, e.g. ``options=`` or ``betas=``; with
            ``coordinator=`` those of :class:`pride.RunWorker`, and with ``workers=`` those of
            :class:`pride.VirtualWorkers`, which is then returned.

    Raises:
        InvalidArgument: on all ranks: a parameter requires a gradient and is in no group; the
            scheduler is of another optimizer; no rate follows from the given optimizer's; or a
            refusal of :class:`pride.Optimizer`.
    """
    for name in ("lr", "weight_decay"):
        if name in arguments:
            raise InvalidArgument(f"pride: take_over: {name}=: rates stay in the units of the given "
                                  f"optimizer; give {name}_scale=, the factor on them")
    of_type("take_over: model", model, torch.nn.Module)
    several = isinstance(optimizer, (list, tuple))
    every = list(optimizer) if several else [optimizer]
    if not every:
        raise InvalidArgument("pride: take_over: the list of optimizers is empty")
    leave_gradients_local(model)
    schedulers = list(scheduler) if isinstance(scheduler, (list, tuple)) else [scheduler]
    arguments = {key: value for key, value in arguments.items() if key not in (
        "coordinator", "workers") or value is not None}
    make = functools.partial(RunWorker if "coordinator" in arguments else VirtualWorkers
                             if "workers" in arguments else Optimizer, method=method)
    factors = tuple(None if value is None else number(f"take_over: {name}", value, 0) for name, value in (
        ("lr_scale", lr_scale), ("weight_decay_scale", weight_decay_scale)))
    made = [take(given, model, make, arguments, factors=factors,
                 schedulers=[s for s in schedulers if s is not None], every=every)
            for given in every]
    return made if several else made[0]


def take(given, model, make, arguments, *, values=(None, None), factors=(None, None), schedulers=(),
         every=()):
    """An optimizer of `make` over the groups of `given`. values: a rate and a decay in the method's
    units; groups and schedulers are then changed to these units, if all schedulers are known."""
    every = every or [given]
    wrong = [type(each).__name__ for each in every if not isinstance(each, torch.optim.Optimizer)]
    if wrong:
        raise InvalidArgument(f"pride: take_over: a {wrong[0]} is not a torch.optim.Optimizer")
    groups = Groups(given, model, values, factors, schedulers, every)
    remember(unwrapped(model))
    # ranks that each seed alone get rank 0's values, as from DDP; shards have no common ones
    groups.gives_momentum = "momentum" in arguments
    groups.broadcasts = "broadcast_parameters" not in arguments and not any(
        is_sharded(p) for p in model.parameters())
    before = [dict(group) for group in given.param_groups]
    try:
        return _made(make, groups, arguments, given, model)
    except BaseException:
        for group, values in zip(given.param_groups, before):
            for key in set(group) - set(values):
                del group[key]
        raise


def _made(make, groups, arguments, given, model):
    made = make(groups, **arguments)
    if made.param_groups is not given.param_groups:
        raise InvalidArgument("pride: optimizer= changed the groups that it was called with: it has "
                              "to pass them on to one of pride's optimizers")
    if groups.loaded is not None:
        made.load_state_dict(groups.loaded)
    keep_common(made, model)
    groups.end_given()
    carry_hooks(given, made)
    if made._ranks.world.rank == 0:
        print(groups.line(made), file=sys.stderr, flush=True)
    return made


def carry_hooks(given, made):
    """Hooks of steps and of states go on, and the handles that registered them remove them."""
    for name in ("step_pre", "step_post", "state_dict_pre", "state_dict_post", "load_state_dict_pre",
                 "load_state_dict_post"):
        name = f"_optimizer_{name}_hooks"
        if getattr(given, name, None) and hasattr(made, name):
            getattr(given, name).update(getattr(made, name))
            setattr(made, name, getattr(given, name))


class Groups(list):
    """Groups of (name, parameter) pairs, from which one of pride's optimizers is made. Its constructor
    calls share(), where a refusal of one rank is raised on all."""

    broadcasts = False  # ranks get rank 0's parameters

    def __init__(self, given, model, values, factors, schedulers, every):
        self.given, self._model, self._values, self._factors = given, model, values, factors
        self._schedulers, self._every, self.loaded = schedulers, every, None
        self._kind = type(given).__name__
        self._names = {id(p): name for name, p in names_of(model)}
        super().__init__({**{key: group[key] for key in FIXED if key in group},
                          "params": [(self._names.get(id(p)), p) for p in group["params"]]}
                         for group in given.param_groups)

    def share(self, own):
        """Gives the groups to pride's optimizer, which torch's constructor has made."""
        self._check()
        groups, made = self.given.param_groups, own.param_groups
        self._scales, self._why = zip(*(self._scale(own, g) for g in range(len(groups))))
        usual = units.usual_rate(self.given) * self._scales[0]
        decays = any(group.get("weight_decay") for group in groups)
        kinds = {self._kind_of(group) for group in groups}
        for group, scale, pattern in zip(groups, self._scales, made):
            group.setdefault("weight_decay", 0.0)
            group.setdefault("maximize", False)
            if "muon" in kinds:
                group.setdefault("matrix", self._kind_of(group) == "muon")
            if units.ABOUT in group:
                group[units.ABOUT] = None
            self._set(group, scale, decays, own._groups.info_of(group), pattern)
        if self._values[0] is not None and self._known():
            for scheduler in self._schedulers:
                units.rescale_scheduler(scheduler, self._scales)
        # a group that is added later has the units of the first with its method
        first = next((group for group in groups if not has_own(group)), groups[0])
        own.defaults = {**own.defaults, **{
            k: v for k, v in self.given.defaults.items() if _is_value(v)}, **{
            k: first[k] for k in (units.LR, units.DECAY, units.BETAS, units.EPS, units.MU) if k in first}}
        own.defaults["lr"] = usual / groups[0][units.LR]
        own._groups.settings["taken"] = [units.foreign(group) for group in groups]
        own.param_groups = groups
        own._parameters.matrices.is_said = True  # in line()
        own._model = weakref.ref(self._model)

    def _set(self, group, scale, decays, info, pattern):
        """Writes the factors, betas and eps of a group. pattern: the group as pride made it."""
        betas = pattern.get("betas", ())
        (_, factor), (_, decay) = self._given(group)
        given = decay is not None and (group["weight_decay"] or not decays)
        factor = 1 / scale if factor is None else factor
        if given:
            group["weight_decay"], factor = decay, 1.0
        if self._values[0] is not None and self._known():
            units.rescale(group, scale)
            group["weight_decay"] *= factor
            scale = factor = 1.0
        group[units.LR], group[units.DECAY] = scale, factor
        given_betas = betas != betas_of(info, None)
        is_muon = self._kind_of(group) == "muon" and "momentum" in group
        if "momentum" in pattern:  # of the method, or given in place of betas
            follows = is_muon and info.momentum and not self.gives_momentum
            group[units.MU] = units.MOMENTUM if follows else pattern["momentum"]
        if info.eps and self._kind_of(group) == "adam" and not given_betas:
            group.pop(units.BETAS, None)  # the group's betas and eps have the method's meaning
            return
        follows = is_muon and len(betas) == 2 and not info.eps and not given_betas
        group[units.BETAS] = units.MOMENTUM if follows else betas
        group[units.EPS] = pattern.get("eps") if info.eps else None

    def _known(self):
        """True if every scheduler of the groups is given, and of torch's, whose rates can be
        changed."""
        if any("initial_lr" in group for group in self.given.param_groups) and not self._schedulers:
            return False
        return all(units.is_known(scheduler) for scheduler in self._schedulers)

    def _check(self):
        given, kind = self.given, self._kind
        if isinstance(given, Replica):
            raise InvalidArgument(f"pride: take_over: the optimizer is one of pride's already, a {kind}")
        if hasattr(given, "accelerator_state"):
            raise InvalidArgument("pride: take_over: Accelerate has wrapped the optimizer: use "
                                  "pride.accelerate.prepare() in place of accelerator.prepare()")
        if getattr(given, "pride_took_over", False):
            raise InvalidArgument(f"pride: take_over: the {kind} was taken over already: use the "
                                  "optimizer that was returned")
        self._check_parameters()
        for scheduler in self._schedulers:
            owners = units.owners(scheduler)
            if not owners:
                raise InvalidArgument(f"pride: take_over: scheduler: a {type(scheduler).__name__} has no "
                                      "optimizer: give the scheduler itself")
            for owner in owners:
                if not any(owner is each for each in self._every):
                    raise InvalidArgument(
                        f"pride: take_over: the {type(scheduler).__name__} belongs to another "
                        f"optimizer, a {type(owner).__name__}: make it over the optimizer given")
        for g, group in enumerate(given.param_groups):
            for name in ("capturable", "differentiable"):
                if group.get(name):
                    raise InvalidArgument(f"pride: take_over: group {g} of the {kind} has {name}=True, "
                                          "which pride refuses")
            for name in ("lr", "weight_decay"):
                number(f"take_over: {name} of group {g}", group.get(name, 0.0), 0)
            units.peak(group)
        self._check_state()

    def _check_state(self):
        given = self.given
        if given.param_groups[0].get(units.ABOUT) is not None:
            self.loaded = given.state_dict()
        elif any(float(entry.get("step", 1)) > 0 for entry in given.state.values() if entry):
            raise InvalidArgument(f"pride: the {self._kind} has a state, which pride's optimizer "
                                  "cannot take: give it before its first step")

    def _check_parameters(self):
        held = {id(p) for each in self._every for group in each.param_groups for p in group["params"]}
        orphans = [name for name, p in names_of(self._model) if p.requires_grad and id(p) not in held]
        if orphans:
            more = f" and {len(orphans) - 1} more" if len(orphans) > 1 else ""
            raise InvalidArgument(
                f"pride: '{orphans[0]}'{more}: requires a gradient and is in no group of the "
                f"{self._kind}, so ranks would step apart: give a list of all optimizers of the "
                "model, or set requires_grad=False")
        for g, group in enumerate(self.given.param_groups):
            for i, p in enumerate(group["params"]):
                if id(p) not in self._names:
                    raise InvalidArgument(
                        f"pride: group {g} parameter {i} of the {self._kind} is not the model's: "
                        "give the model that has all of them, e.g. torch.nn.ModuleList([a, b])")

    def _kind_of(self, group):
        return units.kind_of(self.given, group)

    def _scale(self, own, g):
        """The factor on group g's rate, and how it was derived."""
        group = self.given.param_groups[g]
        if self.loaded is not None and units.LR in group:
            return group[units.LR], "as saved"
        factors, values = self._given(group)
        if values[0] is not None:
            base = units.usual_rate(self.given)
            if not (base and number("lr", values[0], 0) > 0):
                raise InvalidArgument(f"pride: lr = {values[0]}, and the rate of the {self._kind} is "
                                      f"{base}: no ratio follows; both must be above 0")
            return values[0] / base, "given"
        if factors[0] is not None:
            if factors[0] == 0:
                raise InvalidArgument("pride: take_over: lr_scale = 0, must be above 0")
            scale, why = factors[0], "lr_scale"
        else:
            scale, why = units.derived(self.given, group, own._groups.info_of(group),
                                       own._groups.method_of(group)[1])
        if factors[1] is None and values[1] is None:
            self._check_decay(group)
        return scale, why

    def _given(self, group):
        """The factors on rate and decay, and the values, that the caller gives for a group."""
        if not has_own(group):
            return self._factors, self._values
        return tuple(None if group.get(key) is None else number(f"{key} of a group", group[key], 0)
                     for key in (units.LR, units.DECAY)), (None, None)

    def _check_decay(self, group):
        if group.get("weight_decay") and (
                self._kind in _COUPLED and not group.get("decoupled_weight_decay")):
            raise InvalidArgument(
                f"pride: the {self._kind} adds weight_decay to the gradient, pride takes lr * "
                "weight_decay off the parameter: give weight_decay_scale=, e.g. 1 (to a group with "
                f"a method of its own '{units.DECAY}'), or groups weight_decay=0")

    def end_given(self):
        """The given optimizer takes no step from now on; its schedulers go on."""
        given, kind = self.given, self._kind

        def refuse(*_, **__):
            raise InvalidArgument(f"pride: this {kind} was taken over: use the optimizer that "
                                  "pride returned")

        # schedulers look for these marks of a step before their own
        refuse._with_counter = refuse._wrapped_by_lr_sched = True
        given._step_count, given._opt_called = 1, True
        given.pride_took_over = True
        for name in ("step", "state_dict", "load_state_dict", "add_param_group"):
            setattr(given, name, refuse)
        given.state.clear()

    def line(self, own):
        """What was taken over, in one line."""
        traffic, routes = own.traffic(), c.c_char_p()
        texts = [f"{section['method']}{'' if i else f' takes over {self._kind}'}: " + self._rates(
            own, section["groups"]) for i, section in enumerate(traffic["sections"])]
        library.call("pride_optimizer_routes", own._parameters.handle, c.byref(routes))
        more = [text for text in (own._parameters.matrices.text, routes.value.decode()) if text]
        return (f"pride: {'; '.join(texts)}, {traffic['mean_cost_bytes']:,.0f} bytes a step instead of "
                f"{traffic['fp32_bytes']:,} in float32, {own._ranks.played or own._ranks.world.size} {'virtual worker' if own._ranks.played else 'rank'}(s)" +
                "".join(f"; {text}" for text in more))

    def _rates(self, own, numbers):
        """Rates and decays of some groups."""
        groups = [own.param_groups[g] for g in numbers]
        rates = sorted({units.peak(group) * group[units.LR] for group in groups})
        now = sorted({float(group["lr"]) * group[units.LR] for group in groups})
        decays = sorted({units.in_method_units(group)["weight_decay"] for group in groups})
        scale, why = groups[0][units.LR], self._why[numbers[0]]
        why = why if scale == 1 else f"{why}: {scale:.4g} times the {self._kind}'s"
        return (f"lr {_span(rates)} ({why}){'' if now == rates else f', {_span(now)} now'}, "
                f"weight decay {_span(decays)}")


def _span(values):
    values = [f"{value:.4g}" for value in (values[0], values[-1])]
    return values[0] if values[0] == values[1] else " to ".join(values)


def _is_value(value):
    return value is None or isinstance(value, (bool, int, float, str, tuple, torch.Tensor))


def unwrapped(model):
    """The model inside wrappers of DDP and torch.compile."""
    while hasattr(model, "_orig_mod") or isinstance(model, DistributedDataParallel):
        model = model._orig_mod if hasattr(model, "_orig_mod") else model.module
    return model


def names_of(model):
    """Parameters with their names in the unwrapped model."""
    model = unwrapped(model)
    return [(name.replace("_orig_mod.", ""), p) for name, p in model.named_parameters()]


def wrapper_of(model):
    """The DistributedDataParallel of a model, or None."""
    model = getattr(model, "_orig_mod", model)  # torch.compile's wrapper
    return model if isinstance(model, DistributedDataParallel) else None


def leave_gradients_local(model):
    """Under DDP now, or from the first forward pass in which DDP has wrapped the model."""
    wrapped = wrapper_of(model)
    if wrapped is not None and not hasattr(wrapped, "pride_watches"):
        local_gradients(wrapped)
    elif wrapped is None and dist.is_available() and dist.is_initialized() and (
            dist.get_world_size() > 1):
        model.register_forward_pre_hook(_LocalUnderDdp())


class _LocalUnderDdp:
    def __call__(self, module, _):
        wrapped = getattr(DistributedDataParallel, "_active_ddp_module", None)
        if wrapped is not None and not hasattr(wrapped, "pride_watches"):
            local_gradients(wrapped)
