# The methods of groups of parameters: their facts, and a group's values in libpride's form.
# SPDX-License-Identifier: Apache-2.0
#
# A group has the optimizer's method, or one of its own with its own options. Groups with the same
# method and options are a section of the optimizer.
import collections.abc
import ctypes as c
import functools
import weakref

from . import _library as library
from . import _units
from ._ranks import working
from ._world import listed
from .errors import InvalidArgument, flag, number, of_type
from .methods import method_info
from ._units import MOMENTUM

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


def rates_of(info, lr=None, betas=None, eps=None, weight_decay=None, momentum=None):
    """The values of a method's group, with the method's defaults. A method without betas has no such
    key, so that schedulers refuse to cycle them."""
    made = dict(lr=info.lr if lr is None else lr,
                weight_decay=info.weight_decay if weight_decay is None else weight_decay)
    if info.momentum or momentum is not None:
        made[MOMENTUM] = info.momentum if momentum is None else momentum
    if info.momentum or momentum is None or betas is not None:
        made["betas"] = betas_of(info, betas)
    if not made.get("betas"):
        made.pop("betas", None)
    if info.eps or eps is not None:
        made["eps"] = info.eps if eps is None else eps
    return made


def has_own(group):
    """True if the group has a method of its own."""
    return group.get("method") is not None


def with_method(values, group):
    """The values with the group's own method and options, for a native optimizer to be made."""
    made = library.Group.from_buffer_copy(values)
    library.set_method(made, group.get("method"), group.get("options") or {})
    return made


def names_of(methods):
    """The names in Groups.methods()'s result, as one text."""
    return ", ".join(dict.fromkeys(name for name, *_ in methods))


class Groups:
    """The groups of an optimizer: its param_groups, which callers read and change."""

    def __init__(self, owner, ranks, settings):
        """settings: the optimizer's arguments."""
        self._owner, self._ranks, self.settings = weakref.ref(owner), ranks, settings
        self.sent = []            # the bytes of the values that libpride has
        self._first_rates = []    # for warnings
        self._members = []        # ids of the parameters that the optimizer was made with
        self._fixed = []          # keys that cannot change

    @property
    def every(self):
        return self._owner().param_groups

    @property
    def _defaults(self):
        return self._owner().defaults

    def parameters(self):
        return [p for group in self.every for p in group["params"]]

    def begin_with_first(self, groups, values):
        """Without a method of the optimizer torch's defaults are those of the first group's. values:
        for groups without a method of their own."""
        if not groups or not isinstance(groups[0], dict) or not has_own(groups[0]):
            raise InvalidArgument("pride: method is missing: give method=, or each group a 'method'")
        if any(value is not None for value in values):
            raise InvalidArgument("pride: lr, betas, eps, weight_decay, momentum and options are of groups "
                                  "without a method of their own: give method=, too, or the values "
                                  "in the groups")
        self.settings.update(method=groups[0]["method"], options=groups[0].get("options") or {},
                             all_have_own=True)

    def method_of(self, group):
        """The group's method and that method's options."""
        if has_own(group):
            return group["method"], group.get("options") or {}
        return self.settings["method"], self.settings["options"]

    def info_of(self, group):
        """The MethodInfo of the group's method."""
        return info_of(*self.method_of(group))

    def methods(self):
        """[(method, options, indices of its groups)]."""
        made = {}
        for g, group in enumerate(self.every):
            name, options = self.method_of(group)
            key = name, *sorted(library.texts_of(options).items())
            made.setdefault(key, (name, options, []))[2].append(g)
        return list(made.values())

    def defaults_of(self, group):
        """What the group has where it gives nothing: its own method's values, or the optimizer's
        defaults."""
        if not has_own(group):
            return {**self.settings.get("betas", {}), **self._defaults}
        return {**{key: self._defaults[key] for key in _OF_ALL}, **rates_of(self.info_of(group))}

    def lacking(self, group):
        """defaults_of() what the group does not give. A momentum in place of betas gives them, too."""
        same = {} if self.info_of(group).momentum else {"betas": MOMENTUM, MOMENTUM: "betas"}
        return {key: value for key, value in self.defaults_of(group).items()
                if key not in group and same.get(key) not in group}

    def append(self, add, group):
        """torch's add_param_group(), ``add``, with the group's own defaults."""
        index, defaults = len(self.every), self._defaults
        if has_own(group):
            of_type(f"method of group {index}", group["method"], str)
        elif self.settings.get("all_have_own"):
            raise InvalidArgument(f"pride: group {index} has no 'method': without method= each group "
                                  "needs its own")
        if group.get("options") is not None:
            of_type(f"options of group {index}", group["options"], collections.abc.Mapping)
        group.update(self.lacking(group))
        foreign = set(defaults) - set(group)
        add(group)
        for key in foreign:
            del group[key]
        if "betas" not in group:  # schedulers look there, and refuse to cycle any
            defaults.pop("betas", None)

    def values(self, group, index=None):
        """The group's values as a pride_group without a method; NaN: a value that its method
        lacks."""
        where = "of a group" if index is None else f"of group {index}"
        given, info = _units.in_method_units(group, where), self.info_of(group)
        betas = given.pop("betas", ())
        if betas != () or MOMENTUM not in given:
            betas = betas_of(info, betas)
        values = library.Group(*[float("nan")] * 6)
        for name, value in given.items():
            setattr(values, name, number(f"{name} {where}", value, 0))
        for i, value in enumerate(betas, 1):
            setattr(values, f"beta{i}", number(f"betas: beta{i} {where}", value, 0, 1))
        return values

    def of_all(self):
        """values() of all groups."""
        return [self.values(group, g) for g, group in enumerate(self.every)]

    def check(self):
        """Raises InvalidArgument for keys that no step would follow."""
        groups = self.every
        _units.check_keys(groups, [(self.method_of(group)[0], self.defaults_of(group))
                                   for group in groups], self.settings, self._ranks.warn_once)
        if len({flag(f"maximize of group {g}", group["maximize"]) for g, group in enumerate(groups)}) > 1:
            raise InvalidArgument("pride: maximize differs between groups")

    def check_rates(self, slots):
        """Warns of a rate far above the one that a group began with."""
        _units.check_rates(self.every, [self.defaults_of(group)["lr"] for group in self.every],
                           self._first_rates, slots, self._ranks.warn_once)

    def given(self, values):
        """libpride has been made with, or got, more groups of these values."""
        self.sent += map(bytes, values)
        self._first_rates += map(self._rate, self.every[len(self._first_rates):], values)

    def begin_rates(self):
        """Rates are far above, or not, from the present ones on."""
        self._first_rates = list(map(self._rate, self.every, self.of_all()))

    def _rate(self, group, values):
        return max(values.lr, self.info_of(group).lr)

    def keep(self):
        """The present parameters and fixed keys are those of the native optimizer."""
        self._members = self._ids()
        self._fixed = list(map(_fixed_of, self.every))

    def _ids(self):
        return [[id(p) for p in group["params"]] for group in self.every]

    def send(self, handle):
        """Passes changed values to libpride."""
        if self._ids() != self._members:
            raise InvalidArgument("pride: the parameters in optimizer.param_groups are not those "
                                  "that the optimizer was made with; use add_param_group(), or "
                                  "make a new optimizer")
        for g, (group, before) in enumerate(zip(self.every, self._fixed)):
            now = _fixed_of(group)
            for key in FIXED:
                if now[key] != before[key]:
                    raise InvalidArgument(
                        f"pride: group {g}: {key} is {now[key]} now and was {before[key]} when the "
                        "optimizer was made; make a new optimizer")
        self.check()
        for g, values in enumerate(self.of_all()):
            if bytes(values) != self.sent[g]:
                self._set(handle, g, values)

    def check_equal(self, rows, column, values, factor=1.0):
        """Raises InvalidArgument if the column differs between ranks, with the first value that does.
        values: of this rank's groups, as bytes; factor: on gradients."""
        if not self._ranks.others(rows, column):
            return
        every = self._ranks.world.exchange(b"".join(values) + bytes(c.c_double(factor)))
        for pairs in zip(*(self._named(every[r], len(values)) for r in working(rows) if every)):
            ranks = {}
            for r, pair in zip(working(rows), pairs):
                given = "not given" if pair[1] != pair[1] else repr(pair[1])
                ranks.setdefault(given, []).append(r)
            if len(ranks) > 1:
                (value, some), (other, those) = list(ranks.items())[:2]
                raise InvalidArgument(
                    f"pride: {pairs[0][0]} is {value} on rank(s) {listed(some)} and {other} on rank(s) "
                    f"{listed(those)}: it must be equal on all ranks")
        self._ranks.same(rows, column, "hyper-parameters (lr, betas, eps, weight_decay, momentum, maximize)")

    def _named(self, values, n):
        """(name, value) of all values of n groups, and of the factor."""
        size = c.sizeof(library.Group)
        for g in range(n):
            group = library.Group.from_buffer_copy(values, g * size)
            for name, kind in library.Group._fields_:
                if kind is c.c_double:
                    factor = {"lr": _units.LR, "weight_decay": _units.DECAY}.get(name)
                    times = f" (times '{factor}')" if factor in self.every[g] else ""
                    yield f"{name} of group {g}{times}", getattr(group, name)
        factor = c.c_double.from_buffer_copy(values, n * size).value
        yield "maximize", factor < 0
        yield "the factor on gradients (1 / the GradScaler's scale)", abs(factor)

    def adopt(self, handle, sent):
        """Takes another rank's `sent`."""
        for g, values in enumerate(sent):
            if values != self.sent[g]:
                made = library.Group.from_buffer_copy(values)
                self._set(handle, g, made)
                _units.adopt(self.every[g], made)

    def _set(self, handle, g, values):
        library.call("pride_optimizer_set_group", handle, g, c.byref(values))
        self.sent[g] = bytes(values)


def _fixed_of(group):
    made = {key: group.get(key) for key in FIXED}
    return {**made, "options": dict(made["options"] or {})}


def section_of(handle, group, step=0):
    """library.Section of a native optimizer's group."""
    found = library.Section()
    library.call("pride_optimizer_section", handle, group, step, c.byref(found))
    return found


def sections_of(handle, methods, slots, step):
    """The sections with their bytes, for traffic(). methods: Groups.methods()'s result."""
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
