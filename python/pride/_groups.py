# The methods of groups of parameters: their facts, and a group's values in libpride's form.
# SPDX-License-Identifier: Apache-2.0
#
# A group has the optimizer's method, or one of its own with its own options. Groups with the same
# method and options are a section of the optimizer.
import collections.abc
import ctypes as c
import functools

from . import _library as library
from . import _units
from .errors import InvalidArgument, number, of_type
from .methods import method_info

FIXED = ("matrix", "method", "options")  # keys that cannot change
_OF_ALL = ("maximize", "foreach", "fused", "capturable", "differentiable")


@functools.lru_cache(maxsize=None)
def _info(name, options):
    return method_info(name, options={key.decode(): value.decode() for key, value in options})


def info_of(name, options):
    """The MethodInfo of the method with these options of its own."""
    return _info(name, tuple(sorted(library.texts_of(options).items())))


def betas_of(info, betas):
    """The betas, or the defaults, as a tuple. Raises if the method has another number of betas."""
    own = tuple(b for b in (info.beta1, info.beta2) if b)
    if betas is None:
        return own
    several = isinstance(betas, collections.abc.Iterable) and getattr(betas, "ndim", 1) > 0
    given = tuple(betas) if several and not isinstance(betas, str) else (betas,)
    if len(given) != len(own):
        raise InvalidArgument(f"pride: betas = {betas}; {info.name} has {len(own)}")
    return given


def rates_of(info, lr=None, betas=None, eps=None, weight_decay=None):
    """The values of a method's group, with the method's defaults. A method without betas has no such
    key, so that schedulers refuse to cycle them."""
    made = dict(lr=info.lr if lr is None else lr, betas=betas_of(info, betas),
                weight_decay=info.weight_decay if weight_decay is None else weight_decay)
    if not made["betas"]:
        del made["betas"]
    if info.eps or eps is not None:
        made["eps"] = info.eps if eps is None else eps
    return made


def has_own(group):
    """True if the group has a method of its own."""
    return group.get("method") is not None


def method_of(settings, group):
    """The group's method and that method's options."""
    if has_own(group):
        return group["method"], group.get("options") or {}
    return settings["method"], settings["options"]


def info_in(settings, group):
    """The MethodInfo of the group's method."""
    return info_of(*method_of(settings, group))


def by_method(settings, groups):
    """[(method, options, indices of its groups)]."""
    made = {}
    for g, group in enumerate(groups):
        name, options = method_of(settings, group)
        key = name, *sorted(library.texts_of(options).items())
        made.setdefault(key, (name, options, []))[2].append(g)
    return list(made.values())


def names_of(methods):
    """The names in by_method()'s result, as one text."""
    return ", ".join(dict.fromkeys(name for name, *_ in methods))


def defaults_of(settings, group, defaults):
    """What the group has where it gives nothing: its own method's values, or the optimizer's
    defaults."""
    if not has_own(group):
        return {**settings.get("betas", {}), **defaults}
    return {**{key: defaults[key] for key in _OF_ALL}, **rates_of(info_of(*method_of(settings, group)))}


def append(add, settings, group, index, defaults):
    """torch's add_param_group(), ``add``, with the group's own defaults."""
    if has_own(group):
        of_type(f"method of group {index}", group["method"], str)
    if group.get("options") is not None:
        of_type(f"options of group {index}", group["options"], collections.abc.Mapping)
    for key, value in defaults_of(settings, group, defaults).items():
        group.setdefault(key, value)
    foreign = set(defaults) - set(group)
    add(group)
    for key in foreign:
        del group[key]
    if "betas" not in group:  # schedulers look there, and refuse to cycle any
        defaults.pop("betas", None)


def values_of(settings, group, index=None):
    """The group's values as a pride_group without a method; NaN: a value that its method lacks."""
    where = "of a group" if index is None else f"of group {index}"
    given = _units.in_method_units(group, where)
    betas = betas_of(info_in(settings, group), given.pop("betas", ()))
    values = library.Group(*[float("nan")] * 5)
    for name, value in given.items():
        setattr(values, name, number(f"{name} {where}", value, 0))
    for i, value in enumerate(betas, 1):
        setattr(values, f"beta{i}", number(f"betas: beta{i} {where}", value, 0, 1))
    return values


def with_method(values, group):
    """The values with the group's own method and options, for a native optimizer to be made."""
    made = library.Group.from_buffer_copy(values)
    library.set_method(made, group.get("method"), group.get("options") or {})
    return made


def fixed_of(group):
    """What of the group cannot change."""
    made = {key: group.get(key) for key in FIXED}
    return {**made, "options": dict(made["options"] or {})}


def check_fixed(group, before, index):
    now = fixed_of(group)
    for key in FIXED:
        if now[key] != before[key]:
            raise InvalidArgument(
                f"pride: group {index}: {key} is {now[key]} now and was {before[key]} when the "
                "optimizer was made; make a new optimizer")


def section_of(handle, group, step=0):
    """library.Section of a native optimizer's group."""
    found = library.Section()
    library.call("pride_optimizer_section", handle, group, step, c.byref(found))
    return found


def sections_of(handle, methods, slots, step):
    """The sections with their bytes, for Optimizer.traffic(). methods: by_method()'s result."""
    made = {}
    for _, _, groups in methods:
        own = set(groups)
        found = section_of(handle, groups[0], step)
        options = (word.partition("=") for word in found.options.decode().split())
        section = made.setdefault(found.index, dict(
            method=found.method.decode(), options={name: value for name, _, value in options},
            groups=[], parameters=0, bytes_sent=found.bytes_sent,
            bytes_received=found.bytes_received, messages_sent=found.messages_sent,
            cost_bytes=found.cost.bytes_up + found.cost.bytes_down,
            mean_cost_bytes=found.mean_cost.bytes_up + found.mean_cost.bytes_down,
            state=found.state))
        section["groups"] = sorted(section["groups"] + groups)
        section["parameters"] += sum(slot.n for slot in slots if slot.group in own)
    return list(made.values())
