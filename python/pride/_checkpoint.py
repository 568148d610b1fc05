# State of an optimizer as torch's state_dict(), and back.
# SPDX-License-Identifier: Apache-2.0
#
# state[i][key]: `key` is the name of a buffer of the method, e.g. "m"; with ".rank3" behind it if
# each rank has one of its own; "master" is the float32 value of a narrower parameter. Options and
# steps are texts, by rank, in param_groups[0]["pride"]: frameworks keep what is in the groups and
# drop other entries.
import collections
import copy
import ctypes as c
import hashlib
import io
import math
import warnings

import torch

from . import _library as library
from .errors import DataError, Error, InvalidArgument

FORMAT = 1
ABOUT = "pride"  # key of the texts
MASTER = "master"
_LOCAL = {"keep": 0, "average": 1, "reset": 2}


def _buffers(optimizer):
    """(name, kind, address) of the method's buffers."""
    name, kind, data = c.c_char_p(), c.c_int32(), c.c_void_p()
    found = []
    while library.lib.pride_optimizer_state_buffer(
            optimizer._handle, len(found), c.byref(name), c.byref(kind), c.byref(data)) == 0:
        found.append((name.value.decode(), kind.value, data.value))
    return found


def _key(name, kind, rank):
    return name if kind == library.SHARED else f"{name}.rank{rank}"


def _floats(address, n, owner):
    """A tensor over the library's memory, which keeps its owner alive."""
    if n == 0:
        return torch.empty(0)
    array = (c.c_float * n).from_address(address)
    array._owner = owner
    return torch.frombuffer(array, dtype=torch.float32)


def view_state(optimizer):
    """optimizer.state: the values as they are, in the library's memory."""
    size = library.lib.pride_layout_flat_size(optimizer._layout)
    rank = optimizer._world.rank
    memory = library.Handle("memory", "pride_optimizer_state_memory", optimizer._handle)
    whole = {_key(name, kind, rank): _floats(address, size, memory)
             for name, kind, address in _buffers(optimizer)}
    for slot in optimizer._slots:
        entry = optimizer.state[slot.param]
        entry.setdefault("step", torch.tensor(0.0))
        for key, flat in whole.items():
            part = flat[slot.offset:slot.offset + slot.n].view(slot.param.shape)
            if key in entry:
                with torch.no_grad():
                    entry[key].set_(part)  # memory has moved; the tensor is the same
            else:
                entry[key] = part
        if slot.narrow():
            entry[MASTER] = slot.view
    stepped(optimizer)


def stepped(optimizer):
    optimizer._gathered = None
    steps = library.lib.pride_optimizer_steps_done(optimizer._handle)
    for entry in optimizer.state.values():
        entry["step"].fill_(steps)


# --- Saving. ------------------------------------------------------------------------------------------


def _own(optimizer):
    """(texts, {(buffer, parameter): tensor}) of this rank; tensors are copies."""
    handle = library.Handle("state", "pride_optimizer_save", optimizer._handle)
    texts, tensors = {}, {}
    name, value = c.c_char_p(), c.c_char_p()
    for i in range(library.lib.pride_state_texts(handle)):
        library.call("pride_state_text", handle, i, c.byref(name), c.byref(value))
        texts[name.value.decode()] = value.value.decode()
    spec, data = library.Tensor(), c.c_void_p()
    for i in range(library.lib.pride_state_tensors(handle)):
        library.call("pride_state_tensor", handle, i, c.byref(spec), c.byref(data))
        buffer, parameter = spec.name.decode().split("/", 1)
        shape = [spec.shape[d] for d in range(spec.n_dims)]
        n = 1
        for e in shape:
            n *= e
        tensors[buffer, parameter] = _floats(data.value, n, handle).view(shape)
    return texts, tensors


def _kind(texts, buffer):
    return {"local": library.LOCAL, "shared": library.SHARED,
            "server": library.SERVER}[texts["kind." + buffer]]


def state_dict(optimizer):
    for hook in getattr(optimizer, "_optimizer_state_dict_pre_hooks", {}).values():
        hook(optimizer)
    if optimizer._handle is not None:
        made = _state_dict(optimizer)
    elif optimizer._saved is not None:  # a copy that has not begun
        made = _of_copy(optimizer)
    else:
        raise Error(f"pride: no state: {optimizer._broken or 'the optimizer was not made'}")
    for hook in getattr(optimizer, "_optimizer_state_dict_post_hooks", {}).values():
        changed = hook(optimizer, made)
        made = made if changed is None else changed
    return made


def _state_dict(optimizer):
    rank, gathered = optimizer._world.rank, optimizer._gathered
    if gathered is not None and gathered[0] == _version(optimizer):
        ranks = gathered[1]
    else:
        ranks = {rank: _own(optimizer)}
    index, groups = _packed_groups(optimizer)
    optimizer._flat.pull()
    steps = float(library.lib.pride_optimizer_steps_done(optimizer._handle))
    state = {}
    for slot in optimizer._slots:
        entry = {"step": torch.tensor(steps)}
        for r, (texts, tensors) in sorted(ranks.items()):
            for buffer in _names(texts):
                if (buffer, slot.name) in tensors:
                    entry[_key(buffer, _kind(texts, buffer), r)] = tensors[buffer, slot.name]
        if slot.narrow():
            entry[MASTER] = slot.view.clone()
        state[index[id(slot.param)]] = entry
    groups[0][ABOUT] = {"format": FORMAT, "ranks": {r: dict(t) for r, (t, _) in ranks.items()}}
    return {"state": state, "param_groups": groups}


def _of_copy(optimizer):
    groups = _packed_groups(optimizer)[1]
    groups[0][ABOUT] = optimizer._saved["param_groups"][0][ABOUT]
    return copy.deepcopy({"state": optimizer._saved["state"], "param_groups": groups})


def _names(texts):
    return [key[len("kind."):] for key in texts if key.startswith("kind.")]


def _version(optimizer):
    """Another one whenever the state is another."""
    return library.lib.pride_optimizer_steps_done(optimizer._handle), len(optimizer._slots)


def _packed_groups(optimizer):
    """Groups with numbers in the place of parameters, as torch packs them."""
    index, groups, start = {}, [], 0
    for group in optimizer.param_groups:
        for i, p in enumerate(group["params"], start):
            index.setdefault(id(p), i)
        start += len(group["params"])
        packed = {k: copy.deepcopy(v) for k, v in group.items() if k != "params"}
        packed["params"] = [index[id(p)] for p in group["params"]]
        groups.append(packed)
    return index, groups


def consolidate(optimizer, to):
    world = optimizer._world
    made = {}

    def save():
        if isinstance(to, bool) or not isinstance(to, int) or not 0 <= to < world.size:
            raise InvalidArgument(
                f"pride: consolidate_state_dict(to={to!r}) of {world.size} ranks")
        made["own"] = _own(optimizer)

    rows = optimizer._meet("consolidate_state_dict", save, lambda: [to])
    optimizer._same(rows, 0, "argument 'to' of consolidate_state_dict()")
    texts, tensors = made["own"]
    private = {key: t for key, t in tensors.items() if _kind(texts, key[0]) != library.SHARED}
    ranks = {world.rank: (texts, tensors)}
    data = io.BytesIO()
    if world.rank != to:
        torch.save((texts, private), data)
    for r, received in _gathered(optimizer, data.getvalue(), to).items():
        ranks[r] = torch.load(io.BytesIO(received), map_location="cpu")
    if world.rank == to:
        optimizer._gathered = _version(optimizer), ranks


def _gathered(optimizer, data, to):
    """On rank `to`: the bytes of every other rank, by rank; elsewhere nothing."""
    world = optimizer._world
    if world.size == 1:
        return {}
    sizes = (c.c_uint64 * world.size)()
    mine = c.c_uint64(len(data))
    optimizer._call("pride_comm_all_gather", world.handle, c.byref(mine), 8, sizes)
    none = (c.c_uint64 * world.size)()
    if world.rank != to:
        out = (c.c_uint64 * world.size)()
        out[to] = len(data)
        optimizer._call("pride_comm_all_to_all_v", world.handle, data, out, None, none)
        return {}
    every = c.create_string_buffer(sum(sizes))
    optimizer._call("pride_comm_all_to_all_v", world.handle, None, none, every, sizes)
    received, begin = {}, 0
    for r in range(world.size):
        if r != to:
            received[r] = every[begin:begin + sizes[r]]
        begin += sizes[r]
    return received


# --- Loading. -----------------------------------------------------------------------------------------


def load(optimizer, saved, local="keep", with_groups=True):
    made = {}

    def read():
        state = saved
        if local not in _LOCAL:
            raise InvalidArgument(f"pride: local = {local!r}, must be one of {', '.join(_LOCAL)}")
        if isinstance(state, dict):
            state = state.copy()  # as torch does, for the hooks
        for hook in getattr(optimizer, "_optimizer_load_state_dict_pre_hooks", {}).values():
            changed = hook(optimizer, state)
            state = state if changed is None else changed
        made["groups"] = _groups(optimizer, state)
        made["ranks"] = _ranks(optimizer, state)
        made["masters"] = _masters(optimizer, state)

    def row():
        ranks, groups = made["ranks"], made["groups"]
        texts = next(iter(ranks.values()))[0]
        values = [bytes(optimizer._group_values({**optimizer.defaults, **group}, g)) +
                  bytes([bool(group.get("maximize"))]) for g, group in enumerate(groups)]
        held = 0 if len(ranks) == _saved_world(ranks) and len(ranks) > 1 else min(ranks) + 1
        return [held, _saved_world(ranks), int(texts["step"]), _LOCAL[local],
                _digest(b"".join(values)), _shared_digest(optimizer, ranks)]

    rows = optimizer._meet("load_state_dict", read, row)
    ranks, size = made["ranks"], optimizer._world.size
    held, worlds = [r[2] for r in rows], [r[3] for r in rows]
    optimizer._same(rows, 3, "argument 'local' of load_state_dict()")
    _check_alike(optimizer, rows)
    if worlds[0] == size and not all(h == 0 for h in held) and all(
            h in (0, r + 1) for r, h in enumerate(held)):
        _load_own(optimizer, ranks, local)
    elif all(h == 0 for h in held) or worlds[0] == 1:
        _load_all(optimizer, ranks, local)
    elif len(set(held)) == 1:
        _load_all(optimizer, _of_one(optimizer, ranks, held[0] - 1, local), "keep")
    else:
        raise InvalidArgument(
            "pride: load_state_dict: " + _what_each_loads(rows) + f"; this run has {size}. Give "
            "each rank its own state of a run of as many ranks, or all ranks the consolidated one")
    if with_groups:
        for group, values in zip(optimizer.param_groups, made["groups"]):
            group.update(values)
    for slot, values in made["masters"]:
        with torch.no_grad():
            slot.view.copy_(values)
    optimizer._send_groups()
    stepped(optimizer)
    for hook in getattr(optimizer, "_optimizer_load_state_dict_post_hooks", {}).values():
        hook(optimizer)


def _what_each_loads(rows):
    def what(row):
        held, world = row[2:4]
        return f"the states of all {world} ranks" if held == 0 else (
            f"the state of rank {held - 1} of {world}")

    return "; ".join(f"rank {r} loads {what(row)}" for r, row in enumerate(rows))


def _check_alike(optimizer, rows):
    """Refuses what makes replicas differ: all ranks have the same rows then."""
    if len({row[3] for row in rows}) > 1:
        raise InvalidArgument("pride: load_state_dict: " + _what_each_loads(rows) + ": these are "
                              "of different runs")
    if len({row[4] for row in rows}) > 1:
        steps = ", ".join(f"rank {r}: {row[4]}" for r, row in enumerate(rows))
        raise InvalidArgument(f"pride: load_state_dict: ranks load states of different steps "
                              f"({steps})")
    optimizer._same(rows, 4, "hyper-parameters of the state to load")
    optimizer._same(rows, 5, "state to load, in what all ranks have alike,")


def _load_own(optimizer, ranks, local):
    texts, tensors = ranks[optimizer._world.rank]
    if local == "average":
        raise InvalidArgument('pride: load_state_dict(local="average") needs the states of all '
                              "ranks on each: consolidate_state_dict() before the state is saved")
    if local == "reset":
        tensors = {key: torch.zeros_like(t) if _kind(texts, key[0]) == library.LOCAL else t
                   for key, t in tensors.items()}
    optimizer._call("pride_optimizer_load", optimizer._handle,
                    _handle_of(optimizer, texts, tensors))


def _shared_digest(optimizer, ranks):
    """Of all that must be equal on all ranks, else replicas drift apart."""
    texts, tensors = ranks[min(ranks)]
    own = ("rank", "layout")
    parts = [repr(sorted((k, v) for k, v in texts.items() if k not in own)).encode()]
    for buffer in _names(texts):
        if _kind(texts, buffer) == library.SHARED:
            flat = torch.zeros(library.lib.pride_layout_flat_size(optimizer._layout))
            for slot in optimizer._slots:
                flat[slot.offset:slot.offset + slot.n] = tensors[buffer, slot.name].reshape(-1)
            parts.append(optimizer._hash(flat).to_bytes(8, "little"))
    return _digest(b"".join(parts))


def _digest(data):
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def _saved_world(ranks):
    return int(next(iter(ranks.values()))[0]["world"])


def _groups(optimizer, saved):
    """The saved values of each group. Errors are those of torch."""
    if not isinstance(saved, dict) or not isinstance(saved.get("state"), dict) or not isinstance(
            saved.get("param_groups"), list):
        raise DataError("pride: load_state_dict: not the state of an optimizer")
    groups = saved["param_groups"]
    if len(groups) != len(optimizer.param_groups):
        raise ValueError("loaded state dict has a different number of parameter groups")
    for ours, theirs in zip(optimizer.param_groups, groups):
        if len(ours["params"]) != len(theirs["params"]):
            raise ValueError("loaded state dict contains a parameter group that doesn't match the "
                             "size of optimizer's group")
    values = [{k: copy.deepcopy(v) for k, v in g.items()
               if k not in ("params", "param_names", ABOUT)} for g in groups]
    for g, group in enumerate(values):
        _check_group(optimizer, g, {**optimizer.defaults, **group})
    return values


def _check_group(optimizer, g, group):
    optimizer._group_values(group, g)
    for name in ("lr", "weight_decay", "eps"):
        if not 0 <= group.get(name, 0) < math.inf:
            raise DataError(f"pride: load_state_dict: group {g} has {name} = {group[name]}")


def _ranks(optimizer, saved):
    """{rank: (texts, {(buffer, parameter): tensor})} of a state_dict."""
    about = saved["param_groups"][0].get(ABOUT)
    if about is None:
        raise DataError("pride: load_state_dict: this state was not saved by pride (its first group "
                        f"has no entry '{ABOUT}'); the momentum of another optimizer cannot be "
                        "taken over")
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise DataError(f"pride: load_state_dict: the state is not of format {FORMAT}, which this "
                        "version reads")
    ranks = {}
    for r, texts in _texts(about).items():
        ranks[r] = texts, _tensors(optimizer, saved["state"], r, texts)
    world = _saved_world(ranks)
    if len(ranks) not in (1, world):
        raise DataError(f"pride: load_state_dict: the state is of ranks {', '.join(map(str, ranks))}"
                        f" of {world}: others are missing")
    return ranks


def _texts(about):
    """{rank: texts}, in the order of ranks, with all that is read here."""
    made = {}
    try:
        for r, texts in about["ranks"].items():
            texts = {str(k): v for k, v in texts.items()}
            if not all(isinstance(v, str) for v in texts.values()):
                raise ValueError("texts")
            if int(texts["rank"]) != int(r) or not 0 <= int(r) < int(texts["world"]):
                raise ValueError("rank")
            if int(texts["step"]) < 0:
                raise ValueError("step")
            for name in _names(texts):
                _kind(texts, name)
            for name in ("method", "options", "seed", "group starts"):
                str(texts[name])
            made[int(r)] = texts
        if not made or len({texts["world"] for texts in made.values()}) != 1:
            raise ValueError("ranks")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"pride: load_state_dict: the entry '{ABOUT}' of the state is damaged "
                        f"({type(error).__name__}: {error})") from None
    return dict(sorted(made.items()))


def _tensors(optimizer, state, rank, texts):
    index = _packed_groups(optimizer)[0]
    made = {}
    for slot in optimizer._slots:
        for buffer in _names(texts):
            key = _key(buffer, _kind(texts, buffer), rank)
            values = _values(state, index[id(slot.param)], slot, key)
            if not torch.isfinite(values).all():
                raise DataError(f"pride: load_state_dict: '{key}' of {slot.name} is not finite")
            made[buffer, slot.name] = values
    return made


def _values(state, i, slot, key):
    entry = state.get(i)
    if not isinstance(entry, dict) or key not in entry:
        raise DataError(f"pride: load_state_dict: {slot.name} has no '{key}'")
    values = entry[key]
    what = f"pride: load_state_dict: '{key}' of {slot.name}"
    if not isinstance(values, torch.Tensor) or values.dtype != torch.float32:
        kind = values.dtype if isinstance(values, torch.Tensor) else type(values).__name__
        raise DataError(f"{what} is {kind}, must be torch.float32")
    if tuple(values.shape) != tuple(slot.param.shape):
        raise DataError(f"{what} has shape {tuple(values.shape)}, the parameter "
                        f"{tuple(slot.param.shape)}")
    return values.detach().to("cpu").contiguous()


def _masters(optimizer, saved):
    """[(slot, float32 values)] of the narrow parameters; without, those of the model count."""
    index = _packed_groups(optimizer)[0]
    found = []
    for slot in optimizer._slots:
        i = index[id(slot.param)]
        if slot.narrow() and MASTER in saved["state"].get(i, {}):
            found.append((slot, _values(saved["state"], i, slot, MASTER)))
    return found


def _handle_of(optimizer, texts, tensors):
    handle = library.Handle("state", "pride_state_create")
    for name, value in texts.items():
        if name == "layout":  # of this optimizer's names: shapes are checked above
            value = _layout_text(optimizer)
        library.call("pride_state_set_text", handle, name.encode(), value.encode())
    for (buffer, parameter), values in tensors.items():
        spec = library.tensors([(f"{buffer}/{parameter}", tuple(values.shape), 0)])
        library.call("pride_state_set_tensor", handle, c.byref(spec[0]), values.data_ptr())
    return handle


def _layout_text(optimizer):
    return f"{library.lib.pride_layout_digest(optimizer._layout):x}"  # as the library writes it


def _load_all(optimizer, ranks, local):
    handles = [_handle_of(optimizer, *ranks[r]) for r in sorted(ranks)]
    array = (c.c_void_p * len(handles))(*[h.value for h in handles])
    optimizer._call("pride_optimizer_load_all", optimizer._handle, array, len(handles),
                    _LOCAL[local])


def _of_one(optimizer, ranks, source, local):
    """States of all ranks of the saving run, from that of one, which all ranks here hold."""
    texts, tensors = ranks[source]
    world, rank = int(texts["world"]), optimizer._world.rank
    own = {key: t for key, t in tensors.items() if _kind(texts, key[0]) != library.SHARED}
    if own and rank != source and local != "reset":
        warnings.warn(
            f"pride: rank {rank} loads the momentum of rank {source}: each rank has one of its own, "
            "and the checkpoint holds one. Call optimizer.consolidate_state_dict() on all ranks "
            'before state_dict(), or load with local="reset"', stacklevel=4)
    made = {}
    for r in range(world):
        mine = {}
        for key, values in tensors.items():
            kind = _kind(texts, key[0])
            lost = kind == library.SERVER and r != source
            reset = kind == library.LOCAL and local == "reset"
            mine[key] = torch.zeros_like(values) if lost or reset else values
        made[r] = {**texts, "rank": str(r)}, mine
    return made


# --- Pickling. ----------------------------------------------------------------------------------------


def pickled(optimizer, for_file=True):
    settings = dict(optimizer._settings)
    if for_file and settings["process_group"] is not None:
        raise TypeError("pride: an optimizer with a process_group of its own cannot be pickled; "
                        "save its state_dict()")
    settings["process_group"] = None
    saved = state_dict(optimizer)
    names = [optimizer._name(p, g, i) for g, group in enumerate(optimizer.param_groups)
             for i, p in enumerate(group["params"])]
    return {"defaults": optimizer.defaults, "param_groups": optimizer.param_groups,
            "settings": settings, "names": names, "saved": saved}


def unpickle(optimizer, state):
    optimizer.defaults = state["defaults"]
    optimizer._settings = state["settings"]
    optimizer._reset()
    optimizer.param_groups = state["param_groups"]
    params = [p for group in optimizer.param_groups for p in group["params"]]
    optimizer._names = {}
    for p, name in zip(params, state["names"]):
        optimizer._names.setdefault(id(p), name)
    optimizer._saved = state["saved"]
    # the caller sees the state that the first operation will load
    optimizer.state = collections.defaultdict(dict)
    for i, entry in optimizer._saved["state"].items():
        optimizer.state[params[i]] = entry
    torch.optim.Optimizer.__setstate__(optimizer, {})


def begin_copy(optimizer):
    """Builds a copied optimizer, with the groups that it has now. Collective."""
    saved = _of_copy(optimizer)
    optimizer._build(False)
    try:
        load(optimizer, saved, with_groups=False)
    except BaseException as error:
        optimizer.close()
        optimizer._broken = f"the state of the optimizer that was copied: {error}"
        raise
    optimizer._saved = None
