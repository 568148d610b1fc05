# The parameters of an optimizer on this rank, and the native optimizer over them.
# SPDX-License-Identifier: Apache-2.0
import collections
import ctypes as c
import weakref

import torch

from . import _hooks
from . import _library as library
from ._assembled import deal_out
from ._device import place_of
from ._matrices import Matrices
from ._tensors import Slot, Table, aligned, check_memory, check_parameter, check_shards, parts_of
from ._views import Views
from .errors import InvalidArgument, of_type


class Parameters:
    """What libpride steps: slots and their memory, frozen flags, the factor on gradients."""

    def __init__(self, owner, groups, ranks):
        self._owner, self.groups, self.ranks = weakref.ref(owner), groups, ranks
        self.handle = self.layout = self.table = None
        self.slots = []           # of the tensors that this rank steps
        self.names = {}           # that the caller gave, by id of the parameter
        self.hooks = _hooks.Hooks()
        self.views = Views(ranks)
        self.matrices = Matrices()  # of a method such as dlion-muon
        self.assemblies = []      # for sharded matrices that the method needs whole
        self.shard_groups = []    # process groups over which parameters are sharded
        self.bucket_size = None   # that of all ranks; the setting is what this one gave
        self.frozen = None        # indices of parameters that steps do not change
        self.factor = 1.0         # the factor on gradients that libpride has
        self.holds_common = False  # with local steps: the model has the common parameters
        self.between = None       # switches the model between steps, see keep_common()

    @property
    def place(self):
        """Where the methods run."""
        return self.slots[0].place

    @property
    def of_node(self):
        """All slots of the node, or of this rank without nodes."""
        return self.ranks.nodes.slots if self.ranks.nodes else self.slots

    def steps_done(self):
        return library.lib.pride_optimizer_steps_done(self.handle)

    def has_local_steps(self):
        return library.lib.pride_optimizer_period(self.handle) > 1

    def without_names(self, params):
        """The parameters or groups that a constructor takes; keeps the names of (name, parameter)
        pairs, and those in "param_names", as torch 2.6 has them."""
        if isinstance(params, torch.Tensor):
            return params  # torch's own error
        if not isinstance(params, (set, frozenset)):
            params = list(params)
            if params and isinstance(params[0], dict):
                for g, group in enumerate(params):
                    of_type(f"group {g}", group, dict)
                    if "params" not in group:
                        raise InvalidArgument(f"pride: group {g} has no 'params', only "
                                              f"{', '.join(map(repr, group)) or 'nothing'}")
                return list(map(self._without_names, params))
        return self._plain(params)

    def _without_names(self, group):
        made = {**group, "params": self._plain(group["params"])}
        names = made.pop("param_names", None)
        if names is not None and len(names) != len(made["params"]):
            raise InvalidArgument(f"pride: a group has {len(made['params'])} parameters and "
                                  f"{len(names)} 'param_names'")
        self.names.update((id(p), str(name)) for p, name in zip(made["params"], names or ()))
        return made

    def _plain(self, entries):
        if isinstance(entries, (set, frozenset)):
            raise TypeError("optimizer parameters need to be organized in ordered collections, "
                            "but the ordering of tensors in sets differs between ranks and "
                            "runs. Please use a list instead.")
        kept = []
        for entry in [entries] if isinstance(entries, torch.Tensor) else entries:
            if isinstance(entry, tuple):
                name, entry = entry
                self.names[id(entry)] = str(name)
            kept.append(entry)
        return kept

    def name(self, p, group, index):
        return self.names.get(id(p)) or _hooks.name_of(p) or f"group {group} parameter {index}"

    def all_names(self):
        """The names of the parameters in all groups."""
        return [self.name(p, g, i) for g, group in enumerate(self.groups.every)
                for i, p in enumerate(group["params"])]

    def _is_named(self, p):
        return id(p) in self.names or _hooks.name_of(p) is not None

    def new_slots(self, first_group):
        """Slots of the groups from `first_group` on. A tied parameter has one slot, under its first
        name."""
        slots, seen, first = [], set(), 0
        groups, settings, nodes = self.groups, self.groups.settings, self.ranks.nodes
        groups.check()
        for g, group in enumerate(groups.every):
            for i, p in enumerate(group["params"]):
                name = self.name(p, g, i)
                check_parameter(name, p)
                if id(p) in seen:
                    continue
                seen.add(id(p))
                if g >= first_group:
                    slots.append(Slot(name, p, g, first))
                first += aligned(p.numel())
        counts = collections.Counter(slot.name for slot in self.slots + slots)
        for name, count in counts.items():
            if count > 1:
                raise InvalidArgument(f"pride: two parameters are named '{name}'")
        check_memory(self.slots + slots)
        methods = groups.methods()
        self.matrices.choose(self.slots, slots, methods, groups.every, self._is_named)
        self.shard_groups = check_shards(self.slots + slots, settings, self.ranks.world)
        if nodes and self.slots:
            raise InvalidArgument("pride: add_param_group() with node_group: make a new optimizer")
        slots = nodes.deal_out(slots, methods) if nodes else slots
        slots, assemblies = deal_out(slots, groups)
        if self.slots and assemblies:
            raise InvalidArgument("pride: add_param_group() of sharded matrices, with a method that "
                                  "needs them whole: make a new optimizer")
        self.assemblies += assemblies
        # later groups run where the first ones do
        place = self.place if self.slots else place_of(
            [slot.tensor for slot in slots], settings, methods)
        for slot in slots:
            slot.place = place
        return slots

    def adopt(self, new):
        """Passes the parameters' addresses to libpride and makes the views of the state."""
        self.slots = self.slots + new
        self.layout = library.make_layout(*parts_of(self.slots))
        self.frozen = None
        self.table = Table(self.handle, self.slots, self.assemblies, self.ranks.nodes)
        self.table.fill()
        self.hooks.follow(self.of_node)
        self.groups.keep()
        self.views.make(self._owner().state, self.slots, self.of_node, self.handle,
                        self.groups.methods())

    def follow_state(self):
        """Takes what the caller wrote into optimizer.state."""
        self.views.follow(self._owner().state)

    def prepare(self, scale=None):
        """Passes addresses, groups, frozen flags and the factor to libpride before a step."""
        if self.holds_common:
            raise InvalidArgument("pride: a step while the model has the common parameters: call "
                                  "to_local() before the next gradient" + (
                                      ", or the model or its modules, with gradients enabled: no such "
                                      "forward pass was seen since the last step"
                                      if self.between is not None else ""))
        self.table.fill()
        self.follow_state()
        self.groups.send(self.handle)
        self.groups.check_rates(self.slots)
        self.send_frozen(self.frozen_now())
        factor = (1.0 if scale is None else scale) * (
            -1 if self.groups.every[0]["maximize"] else 1)
        if factor != self.factor:
            library.call("pride_optimizer_set_gradient_factor", self.handle, factor)
            self.factor = factor

    def frozen_now(self):
        """Indices of frozen parameters, which steps do not change, as in torch. An unused parameter
        still decays."""
        if self.ranks.nodes:
            self.ranks.nodes.frozen = {id(slot.param) for slot in self.of_node if _is_frozen(slot)}
        return {i for i, slot in enumerate(self.slots) if _is_frozen(slot)}

    def frozen_names(self):
        return sorted(self.frozen) if not self.ranks.nodes else [
            slot.name for slot in self.of_node if _is_frozen(slot)]

    def send_frozen(self, frozen):
        if frozen != self.frozen:
            library.call("pride_optimizer_set_frozen", self.handle, (c.c_uint8 * len(self.slots))(
                *(i in frozen for i in range(len(self.slots)))))
            self.frozen = frozen

    def gradients(self, unused, handed=()):
        """Slot.gradient() of each parameter; None if it is unused, or handed over already."""
        return [None if missing or i in handed else slot.gradient()
                for i, (slot, missing) in enumerate(zip(self.slots, unused))]

    def with_copies(self, values, unused):
        """gradients() with copies of those that libpride cannot read."""
        return [slot.place.copy(slot.grad) if value is None and not missing else value
                for slot, value, missing in zip(self.slots, values, unused)]

    def set_to(self, which):
        """With local steps: gives the model the "common" or this rank's own "local" parameters."""
        if self.has_local_steps():
            self.table.fill()
            self.send_frozen(self.frozen_now())
            self.ranks.call(f"pride_optimizer_to_{which}", self.handle, None)
            self.table.written(self.frozen)
            self.holds_common = which == "common"

    def hashes(self):
        """Hashes of this rank's parameters, with local steps of the common ones, and of its node's
        (0 without nodes)."""
        self.table.fill()
        out = c.c_uint64()
        library.call("pride_optimizer_hash", self.handle, c.byref(out))
        return [out.value, self.ranks.nodes.hash() if self.ranks.nodes else 0]


def _is_frozen(slot):
    return not slot.param.requires_grad and slot.param.grad is None
