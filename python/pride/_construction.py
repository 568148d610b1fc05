# Construction of an optimizer, on all ranks or on none; and its copies.
# SPDX-License-Identifier: Apache-2.0
import atexit
import collections
import collections.abc
import copy
import ctypes as c
import os
import threading
import warnings
import weakref

import torch

from . import _groups
from . import _library as library
from ._arguments import check_arguments
from ._device import place_with_memory
from ._groups import Groups
from ._hashes import digest
from ._model_parallel import ModelParallelSum
from ._native_step import NativeStep
from ._network import report_network
from ._parameters import Parameters
from ._ranks import Ranks
from ._state import ABOUT, State
from ._tensors import parts_of
from ._traffic import Traffic
from .errors import InvalidArgument, duration

_EVERY = weakref.WeakSet()  # optimizers whose threads must end before the interpreter
_OF_GROUPS = ("process_group", "node_group")  # settings that may be process groups
_OF_RANKS = dict(process_group=None, overlap=False, release_gradients=False, lanes=0, vote_weight=1,
                 clip_global_norm=0.0, equal_gradients="refuse", node_of_rank=None, node_group=None)


class Constructed(torch.optim.Optimizer):
    """Makes the parts of a Replica. The front doors decide what is not common to all."""

    def _make(self, params, rates, options, flags, settings, broadcast=False):
        """The rest of a constructor. rates: lr, betas, eps, weight_decay, momentum. settings: other arguments,
        which copies have, too."""
        duration(settings["timeout"])
        self._reset({**_OF_RANKS, **settings,
                     "options": dict(options) if isinstance(options, collections.abc.Mapping) else {}})

        def take():
            check_arguments(self._settings, options, {**flags, "broadcast_parameters": broadcast})
            groups = self._parameters.without_names(params)
            if settings["method"] is None:
                self._groups.begin_with_first(groups, (*rates, options))
            info = _groups.info_of(self._settings["method"], self._settings["options"])
            given = _groups.rates_of(info, *rates)
            self._settings["betas"] = {key: given[key] for key in given if key == "betas"}
            torch.optim.Optimizer.__init__(self, groups, {
                "foreach": None, "fused": None, **given, **flags, "capturable": False,
                "differentiable": False})
            if hasattr(params, "share"):  # groups of an optimizer that is taken over
                params.share(self)

        self._build(take, broadcast)

    def _reset(self, settings):
        """Makes the parts of this object."""
        self._settings = settings
        self._ranks = Ranks()
        self._native = self._ranks.step = NativeStep(self._ranks)
        self._groups = Groups(self, self._ranks, settings)
        self._parameters = Parameters(self, self._groups, self._ranks)
        self._saving = State(self._parameters)
        self._traffic = Traffic(self._parameters)
        self._lock = threading.RLock()  # around all that reads or changes the state
        self._model = None         # a weak reference, if the caller named it

    # What the front doors decide.

    def _open(self, timeout):
        """Sets ranks.world, and ranks.voters and nodes. Collective."""
        raise NotImplementedError

    def _bucket_size(self, place):
        return place.bucket_size

    def _create(self, layout, options):
        """The native optimizer."""
        return library.Handle("optimizer", "pride_optimizer_create", self._ranks.voters.handle, layout,
                              c.byref(options), parents=(self._ranks.voters,))

    def _start(self, broadcast):
        """After construction: makes the ranks' parameters equal, or checks that they are."""

    def _step(self, scaler):
        """One step with the gradients that are there."""
        raise NotImplementedError

    # Construction.

    def _build(self, take=None, broadcast=False):
        """Makes the native optimizer. ``take`` checks and adopts the constructor's arguments. It
        runs here so that an error of one rank is raised on all."""
        s, ranks, parameters, made = self._settings, self._ranks, self._parameters, {}
        self._open(duration(s["timeout"]))

        def prepare():
            if take is not None:
                take()
            nodes = s["node_of_rank"]
            if nodes is not None and len(nodes) != ranks.size:
                raise InvalidArgument(f"pride: node_of_rank has {len(nodes)} entries, there are "
                                      f"{ranks.size} ranks")
            slots = parameters.new_slots(0)
            if not slots:
                raise InvalidArgument("pride: no parameters")
            made["slots"], made["values"] = slots, self._groups.of_all()
            made["layout"] = library.make_layout(*parts_of(slots))
            made["own"] = list(map(_groups.with_method, made["values"], self.param_groups))
            place = place_with_memory(
                slots[0].place, made["layout"], slots, s, made["own"],
                s["bucket_size"] or self._bucket_size(slots[0].place), self._groups.methods())
            for slot in slots:
                slot.place = place
            made["bucket_size"] = self._bucket_size(place)

        compared = ("overlap", "lanes", "on_non_finite", "equal_gradients")
        rows = ranks.agree("construct", prepare, lambda: [
            *(digest(repr(s[k]).encode()) for k in (*compared, "vote_weight")),
            ranks.nodes.digest_of(s["seed"], self._groups.methods()) if ranks.nodes else 0,
            s["bucket_size"] or 0,
            made["bucket_size"],
            digest(repr(self._groups.methods()).encode()),
            digest(b"".join(map(bytes, made["values"])))])
        for column, name in enumerate(compared):
            ranks.same(rows, column, f"argument '{name}'")
        if not ranks.others(rows, 8):  # otherwise libpride names the methods
            self._groups.check_equal(rows, 9, list(map(bytes, made["values"])))
        given = [row[8] for row in rows]  # a value wins over the defaults of other ranks
        ranks.same(rows, len(compared) + 2, "argument 'bucket_size'", lambda rank: given[rank] > 0)
        parameters.bucket_size = max(given) or max(row[9] for row in rows)
        if ranks.nodes:
            ranks.same(rows, len(compared), "argument 'vote_weight'", ranks.node_of)
            ranks.same(rows, len(compared) + 1, "method, options, seed or parameters", ranks.node_of)
        slots = made["slots"]
        options = self._native_options(made["own"], slots[0].place)
        with ranks.failures():
            parameters.handle = self._create(made["layout"], options)
        self._native.set_optimizer(parameters.handle, slots[0].place)
        self._adopt(slots)
        if ranks.nodes:
            ranks.nodes.follow(parameters.handle, parameters.place)
        self._groups.given(made["values"])
        self.param_groups[0].setdefault(ABOUT)  # torch's flattened states keep only known entries
        if take is not None:  # no copy
            parameters.matrices.say(ranks.world)
            with ranks.failures(ranks.world):
                report_network(ranks.world)
        _EVERY.add(self)
        self._start(broadcast)

    def _native_options(self, groups, place):
        s, ranks = self._settings, self._ranks
        options = library.make_options(
            s["method"], s["options"], groups,
            bucket_coords=self._parameters.bucket_size, seed=s["seed"],
            vote_weight=int(s["vote_weight"]), virtual_workers=ranks.played,
            overlap=int(s["lanes"] > 0), exchange_threads=max(1, s["lanes"]),
            clip_global_norm=s["clip_global_norm"],
            skip_non_finite=int(s["on_non_finite"] == "skip"))
        place.set_options(options)
        shards = self._parameters.shard_groups
        among = [ranks.nodes.group] if ranks.nodes else shards
        # found_inf needs the sum, too
        if among and (shards and not ranks.played or s["clip_global_norm"] or
                      s["on_non_finite"] == "skip"):
            self._model_parallel_sum = ModelParallelSum(ranks.world, among, ranks.nodes)
            options.model_parallel_sum = self._model_parallel_sum.function
        if s["node_of_rank"] is not None:
            options.node_of_rank = (c.c_int32 * len(s["node_of_rank"]))(*s["node_of_rank"])
        return options

    def _adopt(self, new):
        self._parameters.adopt(new)
        self._saving.stepped()

    def _own_ids(self):
        """Ids of the parameters that this optimizer keeps equal."""
        if self._parameters.handle is None and self._saving.saved is None:
            return set()
        return set(map(id, self._groups.parameters()))

    def _usable(self):
        """Raises if no operation can begin. Builds a copy."""
        self._native.check_usable()
        if self._parameters.handle is None:
            self._build_copy()
        if self._settings["process_group"] is None:
            self._ranks.world.refuse_late_group()

    # Copies and pickles load the original's state in their first operation.

    def _build_copy(self):
        """Collective."""
        saved = self._saving.of_copy()
        try:
            self._build()
        except BaseException:
            if self._parameters.handle is not None:
                self._begin_again(saved)
            raise
        try:
            self._load(saved, "keep")
        except BaseException as error:
            self.close()
            self._ranks.broken = f"the state of the optimizer that was copied: {error}"
            raise
        self._saving.saved = None

    def _begin_again(self, saved):
        """A copy that was refused after its construction is built again by the next operation."""
        parameters = self._parameters
        self.close()
        self._reset(self._settings)
        self._parameters.names, self._parameters.matrices = parameters.names, parameters.matrices
        self._load_later(saved)

    def _load_later(self, saved):
        """The first operation loads the state, and the caller sees it until then."""
        self._saving.saved = saved
        params = self._groups.parameters()
        self.state = collections.defaultdict(dict)
        for i, entry in saved["state"].items():
            self.state[params[i]] = entry

    def _pickled(self):
        settings = dict(self._settings)
        settings.update({name: None for name in _OF_GROUPS if not isinstance(settings[name], str)})
        return {"defaults": self.defaults, "param_groups": self.param_groups, "settings": settings,
                "names": self._parameters.all_names(), "saved": self._saved(),
                "matrices": self._parameters.matrices.pickled(self.param_groups)}

    def __getstate__(self):
        for name in _OF_GROUPS:
            if not isinstance(self._settings[name], (str, type(None))):
                raise TypeError(f"pride: an optimizer with its own {name} cannot be pickled; "
                                "save its state_dict()")
        return self._pickled()

    def __setstate__(self, state):
        self.defaults = state["defaults"]
        self._reset(state["settings"])
        self.param_groups = state["param_groups"]
        params = self._groups.parameters()
        for p, name in zip(params, state["names"]):
            self._parameters.names.setdefault(id(p), name)
        self._parameters.matrices.unpickle(params, state["matrices"])
        self._load_later(state["saved"])
        torch.optim.Optimizer.__setstate__(self, {})

    def __deepcopy__(self, memo):
        made = self.__class__.__new__(self.__class__)
        memo[id(self)] = made
        made.__setstate__(copy.deepcopy(self._pickled(), memo))
        made._settings.update({name: self._settings[name] for name in _OF_GROUPS})
        return made


def owned_ids():
    """Ids of the parameters that an optimizer of pride's keeps equal."""
    return set().union(*(optimizer._own_ids() for optimizer in list(_EVERY)))


@atexit.register
def _close_all():
    for optimizer in list(_EVERY):
        try:
            if optimizer._native.pid == os.getpid():
                optimizer.close()
        except Exception as error:  # pylint: disable=broad-except
            warnings.warn(f"pride: {error}")
