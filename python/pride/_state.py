# The state of an optimizer: live views, and torch's state_dict().
# SPDX-License-Identifier: Apache-2.0
#
# state[i][key]: `key` is the name of a buffer of the method, e.g. "m"; "m.rank3" if each rank has
# its own. "master", only in state_dict(), is the float32 value of a narrower parameter. Options and
# steps are texts, by rank, in param_groups[0]["pride"], because frameworks keep the groups' entries
# and drop others. They are there for all ranks, because torch's tools want equal keys on all; which
# ranks' buffers a state has follows from the keys of its tensors. "step.rank3", in one entry, is
# the step of rank 3's: tools that send rank 0's state to all leave others' buffers as they are.
import contextlib
import copy
import ctypes as c
import gc
import io
import math
import re

import torch

from . import _library as library
from ._device import HOST
from ._tensors import like
from ._views import buffers, key_of
from .errors import Error, InvalidArgument

FORMAT = 1
ABOUT = "pride"  # key of the texts
MASTER = "master"
KIND_OF_MASTER = "kind." + MASTER  # a text of libpride; not in files
_KIND = re.compile(r"(?:section (\d+) )?kind\.(.*)")
_KINDS = {"local": library.LOCAL, "shared": library.SHARED, "server": library.SERVER}


class Kinds:
    """The kinds of the buffers in a state, from its texts."""

    def __init__(self, texts):
        self._by_section, self._everywhere = {}, {}
        for key, kind in texts.items():
            found = _KIND.fullmatch(key)
            if key == KIND_OF_MASTER:
                self._everywhere = {MASTER: _KINDS[kind]}
            elif found:
                self._by_section.setdefault(int(found[1] or 0), {})[found[2]] = _KINDS[kind]
        self._sections = list(map(int, texts.get("group sections", "").split()))

    def of(self, group):
        """{buffer: kind} of the tensors in a group."""
        section = self._sections[group] if self._sections else 0
        return {**self._by_section.get(section, {}), **self._everywhere}

    def by_key(self, tensors, slots):
        """The kind of each of the tensors, by (buffer, parameter)."""
        of = [self.of(g) for g in range(1 + max(slot.group for slot in slots))]
        groups = {slot.name: slot.group for slot in slots}
        return {key: of[groups[key[1]]][key[0]] for key in tensors}

    def has(self, *kinds):
        """True if some buffer is of one of these kinds."""
        return any(kind in kinds for each in self._by_section.values() for kind in each.values())

    def is_private(self):
        """True if the methods have buffers of each rank's own."""
        return self.has(library.LOCAL, library.SERVER)


def held_in(state):
    """Ranks whose own buffers are in the entries of a state."""
    keys = {key for entry in state.values() if isinstance(entry, dict) for key in entry}
    found = (re.search(r"\.rank(\d+)$", key) for key in keys if isinstance(key, str))
    return {int(match.group(1)) for match in found if match}


@contextlib.contextmanager
def uncollected():
    """Python's collector does not run in the block. While a state is made it would go through all objects
    again and again: a third of the time with 16,000 tensors, and more with more."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class State:
    """Saves the state of an optimizer; _load loads it."""

    def __init__(self, parameters):
        self.parameters, self.ranks = parameters, parameters.ranks
        self.saved = None         # the state that a copied optimizer loads when it is built
        self.saved_alone = False  # since the last step: a state_dict() with this rank's part
        self._gathered = None     # states of all ranks, by consolidate()
        self._consolidated = None  # the version of that state, on all ranks

    def stepped(self):
        """The state has changed."""
        self._gathered = self._consolidated = None
        self.parameters.views.stepped()

    def save(self):
        """The value of state_dict(), without its hooks."""
        if self.parameters.handle is not None:
            with uncollected():
                return self._save()
        if self.saved is not None:  # a copy that is not built yet
            return self.of_copy()
        raise Error(f"pride: no state: {self.ranks.broken or 'the optimizer was not made'}")

    def _own(self, worker=None):
        """(texts, {(buffer, parameter): tensor}) of this rank, or of a virtual worker. Tensors are
        copies."""
        parameters = self.parameters
        parameters.follow_state()
        if not self.ranks.in_step:  # in a step libpride refuses both calls
            parameters.table.fill(collect=False)
            parameters.table.give()
        handle = library.Handle("state", "pride_optimizer_save", parameters.handle) if (
            worker is None) else library.Handle("state", "pride_optimizer_save_worker",
                                                parameters.handle, worker)
        texts, tensors = {}, {}
        name, value = c.c_char_p(), c.c_char_p()
        for i in range(library.lib.pride_state_texts(handle)):
            library.call("pride_state_text", handle, i, c.byref(name), c.byref(value))
            texts[name.value.decode()] = value.value.decode()
        if self.ranks.nodes and "bucket size" in texts:  # libpride's depends on the rank's tensors
            texts["bucket size"] = str(parameters.bucket_size)
        spec, data = library.Tensor(), c.c_void_p()
        for i in range(library.lib.pride_state_tensors(handle)):
            library.call("pride_state_tensor", handle, i, c.byref(spec), c.byref(data))
            buffer, parameter = spec.name.decode().split("/", 1)
            shape = [spec.shape[d] for d in range(spec.n_dims)]
            tensors[buffer, parameter] = HOST.floats(data.value, math.prod(shape), handle).view(shape)
        return texts, tensors

    def _save(self):
        rank, slots = self.ranks.voters.rank, self.parameters.of_node
        if self._gathered is not None and self._gathered[0] == self._version():
            ranks = self._gathered[1]
        elif self.ranks.played:
            ranks = {i: self._own(i) for i in range(self.ranks.played)}
        else:
            ranks = {rank: self._own()}
        index, groups = packed(self.parameters.groups.every)
        steps = float(self.parameters.steps_done())
        state = {}
        kinds = {r: Kinds(texts) for r, (texts, _) in sorted(ranks.items())}
        keys = [[(ranks[r][1], buffer, key_of(buffer, kind, r))
                 for r, each in kinds.items() for buffer, kind in each.of(g).items()]
                for g in range(len(groups))]
        for slot in slots:
            entry = {"step": _step(steps)}
            for tensors, buffer, key in keys[slot.group]:
                if (buffer, slot.name) in tensors:
                    entry[key] = like(tensors[buffer, slot.name], slot)
            state[index[id(slot.param)]] = entry
        # torch.distributed.checkpoint needs an entry also for matrices that another rank holds whole
        state = {i: state[i] if i in state else {"step": _step(steps)} for i in index.values()}
        texts = next(iter(ranks.values()))[0]
        every = {r: {**texts, "rank": str(r)} for r in range(int(texts["world"]))}
        every.update((r, texts) for r, (texts, _) in ranks.items())
        groups[0][ABOUT] = {"format": FORMAT, "ranks": {
            str(r): {k: v for k, v in texts.items() if k != KIND_OF_MASTER}
            for r, texts in every.items()}}
        if Kinds(texts).is_private():
            first = next((p for p in self.parameters.groups.parameters() if p.requires_grad),
                         slots[0].param)
            # of one dimension: torch's tools fail at numbers that only some ranks have; and no float,
            # which tools cast
            state[index[id(first)]].update(
                (f"step.rank{r}", torch.tensor([int(steps)], dtype=torch.int64, device="cpu"))
                for r in ranks)
        if self.ranks.nodes and any(each.has(library.SERVER) for each in kinds.values()):
            groups[0][ABOUT]["node_ranks"] = len(self.ranks.nodes.ranks)
        return {"state": state, "param_groups": groups}

    def of_copy(self):
        """The state of a copy that is not built yet, with its present groups."""
        groups = packed(self.parameters.groups.every)[1]
        groups[0][ABOUT] = self.saved["param_groups"][0][ABOUT]
        return copy.deepcopy({"state": self.saved["state"], "param_groups": groups})

    def lacks_others(self):
        """True if save() has a part of the state, and other ranks the rest."""
        if self.parameters.handle is None or self.ranks.world.size == 1 or (
                self._consolidated == self._version()):  # some rank has them all
            return False
        return bool(self.ranks.nodes) or any(
            each.kind != library.SHARED for each in buffers(self.parameters.handle))

    def _version(self):
        """Changes whenever the state changes."""
        return self.parameters.steps_done(), len(self.parameters.slots)

    def consolidate(self, to):
        """Gathers the state of all ranks on rank ``to``."""
        world, own = self.ranks.world, []

        def save():
            if isinstance(to, bool) or not isinstance(to, int) or not 0 <= to < world.size:
                raise InvalidArgument(
                    f"pride: consolidate_state_dict(to={to!r}) of {world.size} ranks")
            own[:] = self._own() if not self.ranks.played else ()

        rows = self.ranks.agree("consolidate_state_dict", save, lambda: [to])
        if self.ranks.played:
            return  # save() has the states of all virtual workers
        self.ranks.same(rows, 0, "argument 'to' of consolidate_state_dict()")
        texts, tensors = own
        node = self.ranks.node_of(world.rank)
        ranks = {node: (texts, dict(tensors))}
        data = io.BytesIO()
        if world.rank != to:
            with_shared = self.ranks.nodes and node == self.ranks.node_of(to)
            kinds = Kinds(texts).by_key(tensors, self.parameters.slots)
            torch.save((texts, {key: t for key, t in tensors.items()
                                if with_shared or kinds[key] != library.SHARED}), data)
        for r, received in self._gather(data.getvalue(), to).items():
            texts, tensors = torch.load(io.BytesIO(received), map_location="cpu")
            had = ranks.setdefault(self.ranks.node_of(r), ({}, {}))
            had[0].update(texts)
            had[1].update(tensors)
        self._consolidated = self._version()
        if world.rank == to:
            self._gathered = self._version(), ranks

    def _gather(self, data, to):
        """Gathers bytes on rank `to`: returns {rank: bytes} of the others there, {} elsewhere."""
        world = self.ranks.world
        if world.size == 1:
            return {}
        sizes = self.ranks.all_gather(c.c_uint64(len(data)))
        out, into = (c.c_uint64 * world.size)(), (c.c_uint64 * world.size)()
        if world.rank == to:
            into[:] = sizes
        else:
            out[to] = len(data)
        every = c.create_string_buffer(sum(into))
        self.ranks.call("pride_comm_all_to_all_v", world.handle, data, out, every, into, world=world)
        if world.rank != to:
            return {}
        received, begin = {}, 0
        for r in range(world.size):
            if r != to:
                received[r] = every[begin:begin + sizes[r]]
            begin += sizes[r]
        return received


def _step(number):
    return torch.tensor(number, dtype=torch.float32, device="cpu")


def packed(groups):
    """({id of a parameter: its number}, groups with numbers instead of parameters), as torch packs
    them."""
    index, made, start = {}, [], 0
    for group in groups:
        for i, p in enumerate(group["params"], start):
            index.setdefault(id(p), i)
        start += len(group["params"])
        each = {k: copy.deepcopy(v) for k, v in group.items() if k != "params"}
        each["params"] = [index[id(p)] for p in group["params"]]
        made.append(each)
    return index, made
