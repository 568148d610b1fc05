# Construction of an optimizer: all ranks make the same one.
# SPDX-License-Identifier: Apache-2.0
import atexit
import collections
import copy
import ctypes as c
import functools
import os
import socket
import threading
import uuid
import warnings
import weakref
from typing import Any, Dict, List, Optional

import torch

from . import _groups, _hooks, _load
from . import _library as library
from ._assembled import deal_out
from ._device import HOST, place_of, place_with_memory
from ._hashes import digest, hash_as_float32
from ._state import ABOUT, stepped
from ._steps import CHECKED_STEPS, Steps
from ._tensors import Slot, Table, aligned, check_memory, check_parameter, check_shards, parts_of
from ._views import Views
from ._virtual import VirtualWorkers
from ._ranks import Ranks
from ._matrices import Matrices
from ._nodes import find_nodes
from ._outside import Outside, digests, hashes, listed_names, named
from ._network import report_network
from ._native_step import NativeStep
from ._parts import SumOfParts
from ._world import Coordinated, World, listed, make_world
from .errors import InvalidArgument, duration, of_type, text


@library.NOTICE
def _warn(_, text):
    warnings.warn(f"pride: {text.decode()}")


_ALL = weakref.WeakSet()  # optimizers whose threads must end before the interpreter


class Construction(VirtualWorkers, Steps):
    """A mixin of Optimizer."""

    def _reset(self):
        self._ranks = Ranks()
        self._native = self._ranks.step = NativeStep(self._ranks)
        self._handle = self._layout = self._table = None
        self._slots: List[Slot] = []
        self._names: Dict[int, str] = {}  # that the caller gave, by id of the parameter
        self._hooks = _hooks.Hooks()
        self._lock = threading.RLock()  # around all that reads or changes the state
        self._in_backward = False     # with overlap: backward has begun the step, and has not ended
        self._thread = None           # the thread that calls step()
        self._holds_common = False    # the model has the common parameters, see to_common()
        self._between = None          # switches the model between steps, see keep_common()
        self._warned = set()          # warnings that are given once
        self._first_rates = []        # of each group, for warnings
        self._handed_workers = set()  # virtual workers whose gradients libpride has
        self._bucket_size = None      # that of all ranks; the setting is what this one gave
        self._sent_groups = None
        self._views = Views(self._ranks)
        self._built = self._fixed = None  # by group: ids of the parameters; keys that cannot change
        self._assemblies = []         # for sharded matrices that the method needs whole
        self._shard_groups = []       # process groups over which parameters are sharded
        self._model = None            # a weak reference, if the caller named it
        self._outside: Optional[Outside] = None  # the model's other parameters, with several ranks
        self._sum_of_parts = None     # sums over the ranks that have the model's other parts
        self._matrices = Matrices()   # of a method such as dlion-muon
        self._frozen = None           # indices of parameters that steps do not change
        self._factor = 1.0            # the factor on gradients that was last given to libpride
        self._rows_first = True       # in the next step rows come before encode: it may be refused
        self._scalers = set()         # what the rows of the last step say of GradScalers
        self._scaled = False          # in this step some rank's frames carry found_inf
        self.scaler = None            # GradScaler of torch 2.x whose found_inf all ranks share
        self._saved = None            # the state that a copied optimizer loads when it is built
        self._saved_alone = False     # since the last step: a state_dict() with this rank's part
        self._gathered = None         # states of all ranks, by consolidate_state_dict()
        self._consolidated = None     # the version of that state, on all ranks
        self._checks_left = CHECKED_STEPS
        self._have_differed = False   # ranks' gradients, in some step
        self._equal_steps = 0         # in how many steps in a row they were equal
        self._totals = dict(steps=0, skipped=0, bytes_sent=0, bytes_received=0, messages_sent=0)
        self._last: Dict[str, Any] = {}
        self._pid = os.getpid()

    def _unnamed(self, params):
        """Removes the names from (name, parameter) pairs."""
        if isinstance(params, torch.Tensor):
            return params  # torch's own error

        def plain(entries):
            if isinstance(entries, (set, frozenset)):
                raise TypeError("optimizer parameters need to be organized in ordered collections, "
                                "but the ordering of tensors in sets differs between ranks and "
                                "runs. Please use a list instead.")
            kept = []
            for entry in [entries] if isinstance(entries, torch.Tensor) else entries:
                if isinstance(entry, tuple):
                    name, entry = entry
                    self._names[id(entry)] = str(name)
                kept.append(entry)
            return kept

        if not isinstance(params, (set, frozenset)):
            params = list(params)
            if params and isinstance(params[0], dict):
                for g, group in enumerate(params):
                    of_type(f"group {g}", group, dict)
                    if "params" not in group:
                        raise InvalidArgument(f"pride: group {g} has no 'params', only "
                                              f"{', '.join(map(repr, group)) or 'nothing'}")
                return [{**group, "params": plain(group["params"])} for group in params]
        return plain(params)

    def _name(self, p, group, index):
        return self._names.get(id(p)) or _hooks.name_of(p) or f"group {group} parameter {index}"

    def _is_named(self, p):
        return id(p) in self._names or _hooks.name_of(p) is not None

    def _new_slots(self, first_group):
        """Slots of the groups from `first_group` on. A tied parameter has one slot, under its first
        name."""
        slots, seen, first = [], set(), 0
        self._check_maximize()
        for g, group in enumerate(self.param_groups):
            for i, p in enumerate(group["params"]):
                name = self._name(p, g, i)
                check_parameter(name, p)
                if id(p) in seen:
                    continue
                seen.add(id(p))
                if g >= first_group:
                    slots.append(Slot(name, p, g, first))
                first += aligned(p.numel())
        counts = collections.Counter(slot.name for slot in self._slots + slots)
        for name, count in counts.items():
            if count > 1:
                raise InvalidArgument(f"pride: two parameters are named '{name}'")
        check_memory(self._slots + slots)
        methods = self._methods()
        self._matrices.choose(self._slots, slots, methods, self.param_groups, self._is_named)
        self._shard_groups = check_shards(self._slots + slots, self._settings, self._ranks.world)
        if self._ranks.nodes and self._slots:
            raise InvalidArgument("pride: add_param_group() with node_group: make a new optimizer")
        slots = self._ranks.nodes.deal_out(slots, methods) if self._ranks.nodes else slots
        slots, assemblies = deal_out(slots, self._settings, self.param_groups)
        if self._slots and assemblies:
            raise InvalidArgument("pride: add_param_group() of sharded matrices, with a method that "
                                  "needs them whole: make a new optimizer")
        self._assemblies += assemblies
        # later groups run where the first ones do
        place = self._slots[0].place if self._slots else place_of(
            [slot.tensor for slot in slots], self._settings, methods)
        for slot in slots:
            slot.place = place
        return slots

    def _append(self, group):
        _groups.append(functools.partial(torch.optim.Optimizer.add_param_group, self),
                       self._settings, group, len(self.param_groups), self.defaults)

    def _warn_once(self, text, key):
        if key not in self._warned and self._ranks.world.rank == 0:
            self._warned.add(key)
            warnings.warn(f"pride: {text}", stacklevel=2)

    def _build(self, broadcast, take=None):
        """Makes the native optimizer. ``take`` checks and adopts the constructor's arguments. It
        runs here so that an error of one rank is raised on all."""
        s = self._settings
        timeout = duration(s["timeout"])
        coordinator = s["coordinator"]
        if coordinator is not None:
            text("coordinator", coordinator)
        if coordinator is not None and s["process_group"] is not None:
            raise InvalidArgument("pride: coordinator and process_group: give one of them")
        if s["coordinator_secret"] is not None and (coordinator is None or s["worker_name"] is None):
            raise InvalidArgument("pride: coordinator_secret: the file is of a worker with a name; give "
                                  "coordinator and worker_name, too")
        for name in ("worker_name", "certificates"):
            if coordinator is None and s[name] is not None:
                raise InvalidArgument(f"pride: {name} is a coordinator's: give coordinator, too")
        self._ranks.world = Coordinated(timeout) if coordinator is not None else make_world(
            s["process_group"], timeout)
        self._ranks.voters = self._ranks.world
        if s.get("node_group") is not None:
            self._totals.update(node_bytes_sent=0, node_bytes_received=0)
            self._ranks.nodes = find_nodes(s, self._ranks)
            self._ranks.voters = self._ranks.nodes.voters if self._ranks.nodes else self._ranks.world
        made = {}

        def bucket_size(place):
            return (HOST if coordinator else place).bucket_size

        def prepare():
            if take is not None:
                take()
            nodes = s["node_of_rank"]
            if nodes is not None and len(nodes) != self._n_ranks():
                raise InvalidArgument(f"pride: node_of_rank has {len(nodes)} entries, there are "
                                      f"{self._n_ranks()} ranks")
            slots = self._new_slots(0)
            if not slots:
                raise InvalidArgument("pride: no parameters")
            made["slots"] = slots
            made["groups"] = [self._group_values(g, i) for i, g in enumerate(self.param_groups)]
            made["layout"] = library.make_layout(*parts_of(slots))
            made["own"] = [_groups.with_method(*pair) for pair in zip(made["groups"], self.param_groups)]
            place = place_with_memory(
                slots[0].place, made["layout"], slots, s, made["own"],
                s["bucket_size"] or bucket_size(slots[0].place), self._methods())
            for slot in slots:
                slot.place = place
            made["bucket_size"] = bucket_size(place)

        compared = ("overlap", "lanes", "on_non_finite", "equal_gradients")
        rows = self._ranks.agree("construct", prepare, lambda: [
            *(digest(repr(s[k]).encode()) for k in (*compared, "vote_weight")),
            self._ranks.nodes.digest_of(s["seed"], self._methods()) if self._ranks.nodes else 0,
            s["bucket_size"] or 0,
            made["bucket_size"]])
        for column, name in enumerate(compared):
            self._ranks.same(rows, column, f"argument '{name}'")
        given = [row[8] for row in rows]  # a value wins over the defaults of other ranks
        self._ranks.same(rows, len(compared) + 2, "argument 'bucket_size'", lambda rank: given[rank] > 0)
        self._bucket_size = max(given) or max(row[9] for row in rows)
        if self._ranks.nodes:
            self._ranks.same(rows, len(compared), "argument 'vote_weight'", self._ranks.node_of)
            self._ranks.same(rows, len(compared) + 1, "method, options, seed or parameters",
                       self._ranks.node_of)
        nodes = s["node_of_rank"]
        options = library.make_options(
            s["method"], s["options"], made["own"],
            bucket_coords=self._bucket_size, seed=s["seed"], vote_weight=int(s["vote_weight"]),
            virtual_workers=self._n_workers,
            overlap=int(s["lanes"] > 0),
            exchange_threads=max(1, s["lanes"]), clip_global_norm=s["clip_global_norm"],
            skip_non_finite=int(s["on_non_finite"] == "skip"))
        made["slots"][0].place.set_options(options)
        groups = [self._ranks.nodes.group] if self._ranks.nodes else self._shard_groups
        shards = self._shard_groups and not self._n_workers  # found_inf needs the sum
        if groups and (shards or s["clip_global_norm"] or s["on_non_finite"] == "skip"):
            self._sum_of_parts = SumOfParts(self._ranks.world, groups, self._ranks.nodes)
            options.sum_of_parts = self._sum_of_parts.function
        if isinstance(self._ranks.world, World) and not self._ranks.nodes:
            self._native.ask_permission(options)
        if nodes is not None:
            options.node_of_rank = (c.c_int32 * len(nodes))(*nodes)
        with self._ranks.failures():
            self._handle = self._new_worker(made["layout"], options) if coordinator else (
                library.Handle(
                    "optimizer", "pride_optimizer_create", self._ranks.voters.handle, made["layout"],
                    c.byref(options), parents=(self._ranks.voters,)))
        self._layout = made["layout"]
        self._native.set_optimizer(self._handle, made["slots"][0].place)
        self._adopt(made["slots"])
        if self._ranks.nodes:
            self._ranks.nodes.follow(self._handle, self._slots[0].place)
        self._sent_groups = list(map(bytes, made["groups"]))
        self._first_rates = list(map(self._first_rate, self.param_groups, made["groups"]))
        self.param_groups[0].setdefault(ABOUT)  # torch's flattened states keep only known entries
        if take is not None:  # no copy
            self._matrices.say(self._ranks.world)
            with self._ranks.failures(self._ranks.world):
                report_network(self._ranks.world)
        _ALL.add(self)
        if broadcast or coordinator is not None:
            self.broadcast_parameters()
        elif self._ranks.world.size > 1:
            self._check_start()
        if self._ranks.world.size > 1:
            self._find_outside(self._model() if self._model else None)

    def _new_worker(self, layout, options):
        s = self._settings
        name = s["worker_name"]
        if name is None and s["certificates"] is None:
            name = f"{socket.gethostname()[:40]}-{os.getpid()}-{uuid.uuid4().hex[:8]}"

        def given(name, value, path=True):
            return None if value is None else text(name, value, path)

        address = library.CoordinatorAddress(
            host_port=text("coordinator", s["coordinator"]), notice=_warn,
            name=given("worker_name", name, False),
            certificates=given("certificates", s["certificates"]),
            secret_file=given("coordinator_secret", s["coordinator_secret"]),
            patience_ms=int(1000 * self._ranks.world.timeout.total_seconds()))
        self._ranks.world.line = library.Handle("coordinator", "pride_coordinator_connect", c.byref(address))
        return library.Handle("optimizer", "pride_optimizer_create_worker", self._ranks.world.line, layout,
                              c.byref(options), None, parents=(self._ranks.world, self._ranks.world.line))

    def _adopt(self, new):
        """Passes the parameters' addresses to libpride and makes the views of the state."""
        self._slots = self._slots + new
        self._frozen = None
        self._table = Table(self._handle, self._slots, self._assemblies, self._ranks.nodes)
        self._table.fill()
        self._hooks.follow(self._of_node())
        if self._settings["overlap"] and self._ranks.world.size > 1:
            self._hooks.watch(new, len(self._slots) - len(new), self._gradient_complete)
        self._built = self._members()
        self._fixed = list(map(_groups.fixed_of, self.param_groups))
        self._views.make(self.state, self._slots, self._of_node(), self._handle, self._methods())
        stepped(self)

    def _check_start(self):
        """Compares the ranks' initial values now; libpride would do so in the first step."""
        rows = self._ranks.agree("check_replicas", None, self._hashes)
        others = [r for r, row in enumerate(rows) if row[3 if self._ranks.nodes else 2] != (
            rows[0][3 if self._ranks.nodes else 2])]
        if not others:
            return
        slots = self._of_node()
        differing = self._ranks.differing([hash_as_float32(slot.tensor) for slot in slots])
        name = next((f"'{slots[i].name}' of shape {tuple(slots[i].shape)}" for i in differing),
                    "unknown")
        # where most differ they may be pieces of one model, which a broadcast would destroy
        advice = ("Seed all ranks alike, wrap the model in DistributedDataParallel first, or give "
                  "broadcast_parameters=True") if 10 * len(differing) <= len(slots) else (
                      "The ranks hold different models, or pieces of one. If each rank builds the whole model: seed all ranks alike. If each has a "
                      "piece of it (tensor or pipeline parallelism): give process_group=, the ranks "
                      "with the same piece")
        raise InvalidArgument(
            f"pride: initial parameters of rank(s) {listed(others)} are not those of rank 0; the "
            f"first of {len(differing)} (of {len(slots)}) that differ is {name}. {advice}")

    def _begin_copy(self):
        _load.begin_copy(self)

    def __getstate__(self):
        return _load.pickled(self)

    def __setstate__(self, state):
        _load.unpickle(self, state)

    def __deepcopy__(self, memo):
        made = self.__class__.__new__(self.__class__)
        memo[id(self)] = made
        _load.unpickle(made, copy.deepcopy(_load.pickled(self, False), memo))
        made._settings.update({name: self._settings.get(name) for name in _load._GROUPS})
        return made

    def _own_ids(self):
        """Ids of the parameters that this optimizer keeps equal."""
        if self._handle is None and self._saved is None:
            return set()
        return {id(p) for group in self.param_groups for p in group["params"]}

    def _find_outside(self, model=None):
        """Finds the model's other parameters, and which of them are equal on all ranks."""
        self._outside = Outside(self, _ALL, model)
        pairs = self._outside.pairs()
        rows = self._ranks.agree("check_replicas", None, lambda: digests(pairs))
        if len({row[2] for row in rows}) > 1:
            self._outside.leave(pairs)
        elif len({row[3] for row in rows}) > 1:
            self._outside.leave([pairs[i] for i in self._ranks.differing(hashes(pairs))])

    def _check_model(self, model):
        """Compares the model's parameters that no optimizer of pride's has."""
        owned = set().union(*(optimizer._own_ids() for optimizer in list(_ALL)))
        pairs = [] if model is None else [
            (name, p) for name, p in named(model) if id(p) not in owned]
        rows = self._ranks.agree("check_replicas", None, lambda: digests(pairs))
        self._ranks.same(rows, 0, "names and shapes of the model's other parameters")
        if len({row[3] for row in rows}) > 1:
            names = [pairs[i][0] for i in self._ranks.differing(hashes(pairs))]
            raise InvalidArgument(
                f"pride: the model's parameters differ between ranks: {listed_names(names or ['?'])}. "
                "No optimizer of pride's has them, so that each rank changes them by itself: give them "
                "to pride's optimizer, or average their gradients. If each rank is meant to have its "
                "own, call check_replicas() with a module that has not got them")
        if model is not None and self._outside is not None:
            self._outside.add(model)


@atexit.register
def _close_all():
    for optimizer in list(_ALL):
        try:
            if optimizer._pid == os.getpid():
                optimizer.close()
        except Exception as error:  # pylint: disable=broad-except
            warnings.warn(f"pride: {error}")
