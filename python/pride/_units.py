# The units of a group of parameters: those of the method, or of the optimizer that pride took over.
# SPDX-License-Identifier: Apache-2.0
#
# A group that was taken over keeps its first optimizer's rate and decay, and has up to five keys
# more: factors on both, and the method's betas, eps and momentum.
import re

import torch

from .errors import InvalidArgument, number

ABOUT = "pride"  # the key of a saved state's texts, see _state
LR, DECAY, BETAS, EPS = "pride_lr_scale", "pride_weight_decay_scale", "pride_betas", "pride_eps"
MU = "pride_momentum"
MOMENTUM = "momentum"  # as BETAS or MU: from the group's momentum
FOLLOWED = ("lr", "weight_decay", "maximize")
# Keys without effect on a step: labels, and those of schedulers.
_NAMES = ("name", "group_name", "param_group", "tag", "label")
_LABELS = (*_NAMES, "params", "param_names", "foreach", "fused", "capturable", "differentiable",
           "matrix", "method", "options", ABOUT, LR, DECAY, BETAS, EPS, MU)
_OF_SCHEDULERS = re.compile(r"(initial|base|max|min|swa|peak|last)_|(.*_)?lr(_.*)?$")
_RATES = ("lr", "initial_lr", "max_lr", "min_lr", "swa_lr")  # rates in a group,
_OF_TORCH = ("base_lrs", "max_lrs", "min_lrs", "eta_min", "_last_lr")  # and in torch's schedulers
_HIGH = 0.1  # no rate of Adam or Lion is above: a scheduler gives the rate itself, times 1
_FAR = 10  # times the rate that a group began with: a warning


def in_method_units(group, where="of a group"):
    """lr, weight_decay, betas, eps and momentum of the group as the method takes them."""
    made = {name: group[name] for name in ("lr", "weight_decay", "betas", "eps", MOMENTUM)
            if name in group}
    if LR not in group:
        return made
    made.pop(MOMENTUM, None)
    if MU in group:
        made[MOMENTUM] = group[MOMENTUM] if group[MU] == MOMENTUM else group[MU]
    for name, factor in (("lr", LR), ("weight_decay", DECAY)):
        made[name] = number(f"{name} {where}", made[name], 0) * number(f"{factor} {where}", group[factor], 0)
    if BETAS in group:
        made.pop("eps", None)
        made["betas"] = group[BETAS]
        if group[BETAS] == MOMENTUM:
            mu = number(f"{MOMENTUM} {where}", group[MOMENTUM], 0, 1)
            made["betas"] = (mu * mu if group.get("nesterov", True) else mu, mu)
        if group.get(EPS) is not None:
            made["eps"] = group[EPS]
    return made


def adopt(group, values):
    """Writes values of the method into a group, in the group's units."""
    betas = tuple(b for b in (values.beta1, values.beta2) if b == b)
    for name, factor in (("lr", LR), ("weight_decay", DECAY)):
        if name in group:
            group[name] = getattr(values, name) / (group.get(factor) or 1.0)
    eps = EPS if BETAS in group else "eps"
    if group.get(eps) is not None:
        group[eps] = values.eps
    if values.momentum == values.momentum:
        group[MU if group.get(MU, MOMENTUM) != MOMENTUM else MOMENTUM] = values.momentum
    if group.get(BETAS) == MOMENTUM:
        group[MOMENTUM] = betas[1]
    elif BETAS in group:
        group[BETAS] = betas
    elif "betas" in group:
        group["betas"] = betas[0] if isinstance(group["betas"], float) else betas


def peak(group):
    """The highest rate that the group or a scheduler of torch's names."""
    return max(number(f"{name} of a group", group[name]) for name in ("lr", "initial_lr", "max_lr")
               if group.get(name) is not None)


def usual_rate(optimizer):
    """The optimizer's default rate if a group has it, otherwise that of the most coordinates. A
    warm-up may have set groups to 0."""
    default = optimizer.defaults.get("lr")
    default = float(default) if isinstance(default, (int, float, torch.Tensor)) else 0.0
    rates = {}
    for group in optimizer.param_groups:
        rate = peak(group) or default
        rates[rate] = rates.get(rate, 0) + sum(p.numel() for p in group["params"])
    return default if default in rates else max(rates, key=rates.get)


def kind_of(optimizer, group):
    """The family of the rule that the optimizer applies to the group; None: not known."""
    name = type(optimizer).__name__.lower()
    if "use_muon" in group:
        word = "muon" if group["use_muon"] else "sgd" if "sgd" in name else "adam"
    else:
        word = str(group.get("kind", group.get("algorithm", name))).lower()
    if "lion" in word:
        return "lion"
    found = {kind for kind, words in (("muon", ("muon", "dion")), ("adam", ("adam",)),
                                      ("sgd", ("sgd",))) if any(each in word for each in words)}
    return found.pop() if len(found) == 1 else None


def derived(optimizer, group, info, options):
    """The factor from the optimizer's rate to that of the method, and how it was derived."""
    kind = kind_of(optimizer, group)
    if "muon" in info.name and not info.eps:  # votes on orthogonalised momenta
        kinds = {kind_of(optimizer, each) for each in optimizer.param_groups}
        if kind == "muon":
            root = _mean_root(group["params"])
            if group.get("adjust_lr_fn") == "match_rms_adamw":
                return 0.2, "0.2 of Muon's, whose matrices move as AdamW's"
            return 1 / root, "Muon's / sqrt(longer side)"
        if "muon" not in kinds:
            rate = usual_rate(optimizer)
            if not rate:
                raise InvalidArgument("pride: take_over: the optimizer's rate is 0: give it its peak "
                                      "rate, or lr_scale=")
            if rate > _HIGH and kind in ("adam", "lion"):
                raise InvalidArgument(
                    f"pride: take_over: the {type(optimizer).__name__} was made with lr = {rate:.4g}, which "
                    f"is no rate that {info.name}'s own, {info.lr:.4g}, can replace (a scheduler whose "
                    f"factors are the rates?): give lr_scale=, {info.lr:.4g} / the peak rate")
            return info.lr / rate, f"{info.name}'s own"
    rule = options.get("local", "adamw") if info.name.startswith(("local-", "dsm", "diloco")) else (
        "adamw" if info.eps else "sgdm" if info.lr >= 0.1 else "lion")
    factor = {("adam", "lion"): (1 / 3, "a third of Adam's"), ("lion", "lion"): (1.0, "Lion's"),
              ("adam", "adamw"): (1.0, "Adam's"), ("sgd", "sgdm"): (1.0, "SGD's")}.get((kind, rule))
    if "muon" in info.name and kind == "adam":  # the rest of a model whose matrices had Muon
        factor = 1 / 3, "a third of Adam's"
    if factor is None:
        raise InvalidArgument(
            f"pride: take_over: no rate of {info.name} follows from that of a "
            f"{type(optimizer).__name__}: give " + (
                f"the group '{LR}'" if group.get("method") is not None else "lr_scale=") +
            ", the factor on its rates")
    return factor


def _mean_root(params):
    """The root of the matrices' longer side, a mean over their coordinates."""
    pairs = [(max(p.shape[0], p[0].numel()), p.numel()) for p in params if p.dim() > 1]
    n = sum(n for _, n in pairs)
    return n / sum(n * side ** -0.5 for side, n in pairs) if n else 1.0


def rescale(group, factor):
    """Changes the unit of the rates in a group."""
    for name in _RATES:
        if isinstance(group.get(name), torch.Tensor):
            group[name].mul_(factor)
        elif group.get(name) is not None:
            group[name] *= factor


def is_known(scheduler):
    """True for schedulers whose rates rescale_scheduler() changes."""
    return type(scheduler).__module__ == "torch.optim.lr_scheduler" and all(
        map(is_known, getattr(scheduler, "_schedulers", ())))


def rescale_scheduler(scheduler, factors):
    """As rescale(), for one of torch's schedulers; a factor for each group."""
    for each in getattr(scheduler, "_schedulers", ()):
        rescale_scheduler(each, factors)
    for name in _OF_TORCH:
        value = getattr(scheduler, name, None)
        if isinstance(value, (list, tuple)):
            setattr(scheduler, name, [v * f for v, f in zip(value, factors)])
        elif value is not None:
            setattr(scheduler, name, value * factors[0])


def owners(scheduler):
    """The optimizers to which a scheduler writes rates."""
    inner = [owner for each in getattr(scheduler, "_schedulers", ()) for owner in owners(each)]
    own = getattr(scheduler, "optimizer", None)
    return inner + ([own] if own is not None else [])


def foreign(group):
    """What the group has for its first optimizer alone, to see changes that no step follows."""
    followed = (*FOLLOWED, *_LABELS, *(("betas", "eps") if BETAS not in group else ()),
                *((MOMENTUM, "nesterov") if _follows_momentum(group) else ()))
    return {k: repr(v) for k, v in group.items() if k not in followed and not _of_scheduler(k)}


def _follows_momentum(group):
    return MOMENTUM in (group.get(BETAS), group.get(MU))


def _of_scheduler(key):
    return _OF_SCHEDULERS.match(key) is not None


def check_keys(groups, known, settings, warn_once):
    """Raises InvalidArgument for a key of a group that steps would not follow, or that is gone.
    Warns if one changes that belonged to an optimizer that was taken over. known: for each group the
    name of its method, and the keys that it has by default."""
    taken = settings.setdefault("taken", [])
    for g, (group, (method, keys)) in enumerate(zip(groups, known)):
        both = "betas" in keys and MOMENTUM in keys
        for key in (*FOLLOWED, "betas", "eps", MOMENTUM):
            if not both and key in ("betas", MOMENTUM) and ("betas" in group or MOMENTUM in group):
                continue  # one in place of the other
            if key in keys and key not in group and not (taken and key in ("betas", "eps", MOMENTUM)):
                raise InvalidArgument(f"pride: group {g} has no '{key}' any more: {method} needs it")
        for key in ("capturable", "differentiable"):
            if group.get(key):
                raise InvalidArgument(f"pride: group {g} has {key}=True, which pride refuses")
        if LR in group and g == len(taken):  # added later, or loaded
            taken.append(foreign(group))
        first = taken[g] if g < len(taken) else {}
        for key in group:
            if key in keys or key in _LABELS or key in first or _of_scheduler(key):
                continue
            if key in (MOMENTUM, "nesterov") and _follows_momentum(group):
                continue
            if LR not in group and (key == MOMENTUM or key == "betas" and MOMENTUM in keys):
                continue
            raise InvalidArgument(
                f"pride: group {g} has '{key}', which {method} does not read" + (
                    ": it is an argument of the optimizer" if key in settings else
                    ": leave it out, or keep it elsewhere"))
        for key, before in first.items():
            if key in group and repr(group[key]) != before:
                warn_once(f"'{key}' of group {g} has changed, which {method} does not follow: it "
                          "belongs to the optimizer that was taken over. Schedulers take "
                          "cycle_momentum=False", ("changed", g, key))


def check_units(saved, groups):
    """Refuses saved groups in the method's units if the optimizer's have factors on others."""
    for g, (group, ours) in enumerate(zip(saved, groups)):
        if LR not in group and (ours.get(LR, 1.0), ours.get(DECAY, 1.0)) != (1.0, 1.0):
            raise InvalidArgument(
                f"pride: load_state_dict: group {g} has a rate of an optimizer that took over none, and "
                f"this one multiplies rates by {ours[LR]:.4g}: make it by hand, or give take_over() "
                "lr_scale=1, weight_decay_scale=1")


def check_rates(groups, usual, first, slots, warn_once):
    """Warns of a rate far above the one that the group began with. usual, first: by group, the
    default rate and the highest rate at the beginning."""
    for g, group in enumerate(groups):
        rate = number("lr", group["lr"]) * group.get(LR, 1.0)
        known = max(first[g], max(float(usual[g]), peak({**group, "lr": 0.0})) * group.get(LR, 1.0))
        if _FAR * known < rate:
            names = [f"'{group[key]}'" for key in _NAMES if group.get(key)][:1] + [
                f"('{slot.name}' ...)" for slot in slots if slot.group == g][:1]
            warn_once(
                f"the rate of group {g} {' '.join(names)} is {rate:.4g}, {rate / known:.0f} times the "
                f"{known:.4g} that it began with: with signs every parameter of the group moves by it "
                "in each step", ("rate", g))
