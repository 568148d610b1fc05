# State of an optimizer as torch's state_dict(), and back.
# SPDX-License-Identifier: Apache-2.0
#
# state[i][key]: `key` is the name of a buffer of the method, e.g. "m"; with ".rank3" behind it if
# each rank has one of its own. Names, options and steps are texts under "pride".
import copy
import ctypes as c
import io
import warnings

import torch

from . import _library as library
from .errors import DataError, InvalidArgument

FORMAT = 1
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
    whole = {_key(name, kind, rank): _floats(address, size, optimizer._handle)
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
    stepped(optimizer)


def stepped(optimizer):
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
    if optimizer._handle is None:  # a copy that has not begun
        made = copy.deepcopy(optimizer._saved)
    else:
        made = _state_dict(optimizer)
    for hook in getattr(optimizer, "_optimizer_state_dict_post_hooks", {}).values():
        made = hook(optimizer, made) or made
    return made


def _state_dict(optimizer):
    rank, gathered = optimizer._world.rank, optimizer._gathered
    if gathered is not None and gathered[0] == _now(optimizer):
        ranks = gathered[1]
    else:
        ranks = {rank: _own(optimizer)}
    index, groups = _packed_groups(optimizer)
    state = {}
    for slot in optimizer._slots:
        entry = {"step": torch.tensor(float(library.lib.pride_optimizer_steps_done(
            optimizer._handle)))}
        for r, (texts, tensors) in sorted(ranks.items()):
            for (buffer, parameter), values in tensors.items():
                if parameter == slot.name:
                    entry[_key(buffer, _kind(texts, buffer), r)] = values
        state[index[id(slot.param)]] = entry
    return {"state": state, "param_groups": groups,
            "pride": {"format": FORMAT, "ranks": {r: dict(t) for r, (t, _) in ranks.items()}}}


def _now(optimizer):
    return library.lib.pride_optimizer_steps_done(optimizer._handle)


def _packed_groups(optimizer):
    """Groups with numbers in the place of parameters, as torch packs them."""
    index, groups = {}, []
    for group in optimizer.param_groups:
        for p in group["params"]:
            index.setdefault(id(p), len(index))
        packed = {k: v for k, v in group.items() if k != "params"}
        packed["params"] = [index[id(p)] for p in group["params"]]
        groups.append(packed)
    return index, groups


def consolidate(optimizer, to):
    world = optimizer._world
    if not 0 <= to < world.size:
        raise InvalidArgument(f"pride: consolidate_state_dict(to={to}) of {world.size} ranks")
    made = {}

    def save():
        made["own"] = _own(optimizer)

    rows = optimizer._meet("consolidate_state_dict", save, lambda: [to])
    optimizer._same(rows, 0, "argument 'to' of consolidate_state_dict()")
    texts, tensors = made["own"]
    private = {key: t for key, t in tensors.items() if _kind(texts, key[0]) != library.SHARED}
    ranks = {world.rank: (texts, tensors)}
    for r in range(world.size):  # one after the other: `to` holds one rank's bytes beside the state
        if r == to:
            continue
        data = io.BytesIO()
        if world.rank == r:
            torch.save((texts, private), data)
        received = _broadcast(optimizer, data.getvalue(), r)
        if world.rank == to:
            other_texts, other = torch.load(io.BytesIO(received), map_location="cpu")
            ranks[r] = other_texts, other
    if world.rank == to:
        optimizer._gathered = _now(optimizer), ranks


def _broadcast(optimizer, data, root):
    size = (c.c_uint64 * 1)(len(data))
    optimizer._call("pride_comm_broadcast", optimizer._world.handle, size, 8, root)
    buffer = c.create_string_buffer(data, size[0]) if len(data) == size[0] else (
        c.create_string_buffer(size[0]))
    optimizer._call("pride_comm_broadcast", optimizer._world.handle, buffer, size[0], root)
    return buffer.raw


# --- Loading. -----------------------------------------------------------------------------------------


def load(optimizer, saved, local="keep"):
    if local not in _LOCAL:
        raise InvalidArgument(f"pride: local = {local!r}, must be one of {', '.join(_LOCAL)}")
    for hook in getattr(optimizer, "_optimizer_load_state_dict_pre_hooks", {}).values():
        saved = hook(optimizer, saved) or saved
    made = {}

    def read():
        made["groups"] = _groups(optimizer, saved)
        made["ranks"] = _ranks(optimizer, saved)

    def extent():
        """What this rank holds: 0: the states of all ranks; else its only one's number + 1."""
        ranks = made["ranks"]
        return 0 if len(ranks) == _saved_world(ranks) and len(ranks) > 1 else min(ranks) + 1

    world = optimizer._world
    rows = optimizer._meet("load_state_dict", read, lambda: [extent(), _LOCAL[local]])
    optimizer._same(rows, 1, "argument 'local' of load_state_dict()")
    held = [row[2] for row in rows]
    ranks = made["ranks"]
    if all(h == r + 1 for r, h in enumerate(held)) and _saved_world(ranks) == world.size:
        one = _handle_of(optimizer, *ranks[world.rank])
        optimizer._call("pride_optimizer_load", optimizer._handle, one)
    elif all(h == 0 for h in held) or _saved_world(ranks) == 1:
        _load_all(optimizer, ranks, local)
    elif len(set(held)) == 1:
        _load_all(optimizer, _of_one(optimizer, ranks, held[0] - 1, local), "keep")
    else:
        texts = [f"rank {r}: " + ("all ranks" if h == 0 else f"rank {h - 1}")
                 for r, h in enumerate(held)]
        raise InvalidArgument(
            f"pride: ranks load the states of different ranks, of a run on {_saved_world(ranks)} ("
            + "; ".join(texts) + "); give each rank its own, or all ranks the consolidated one")
    for group, values in zip(optimizer.param_groups, made["groups"]):
        group.update(values)
    optimizer._send_groups()
    optimizer._gathered = None
    stepped(optimizer)
    for hook in getattr(optimizer, "_optimizer_load_state_dict_post_hooks", {}).values():
        hook(optimizer)


def _saved_world(ranks):
    texts, _ = next(iter(ranks.values()))
    return int(texts["world"])


def _groups(optimizer, saved):
    """The saved values of each group. Errors are those of torch."""
    if not isinstance(saved, dict) or "param_groups" not in saved or "state" not in saved:
        raise DataError("pride: load_state_dict: not the state of an optimizer")
    groups = saved["param_groups"]
    if len(groups) != len(optimizer.param_groups):
        raise ValueError("loaded state dict has a different number of parameter groups")
    for ours, theirs in zip(optimizer.param_groups, groups):
        if len(ours["params"]) != len(theirs["params"]):
            raise ValueError("loaded state dict contains a parameter group that doesn't match the "
                             "size of optimizer's group")
    values = [{k: copy.deepcopy(v) for k, v in g.items() if k not in ("params", "param_names")}
              for g in groups]
    for group in values:
        optimizer._group_values({**optimizer.defaults, **group})
    return values


def _ranks(optimizer, saved):
    """{rank: (texts, {(buffer, parameter): tensor})} of a state_dict."""
    about = saved.get("pride")
    if not isinstance(about, dict) or not about.get("ranks"):
        raise DataError("pride: load_state_dict: this state was not saved by pride (it has no entry "
                        "'pride'); the momentum of another optimizer cannot be taken over")
    if about.get("format") != FORMAT:
        raise DataError(f"pride: load_state_dict: format {about.get('format')}, this version "
                        f"reads {FORMAT}")
    index = _packed_groups(optimizer)[0]
    ranks = {}
    for r, texts in about["ranks"].items():
        buffers = [key[len("kind."):] for key in texts if key.startswith("kind.")]
        tensors = {}
        for slot in optimizer._slots:
            entry = saved["state"].get(index[id(slot.param)], {})
            for buffer in buffers:
                key = _key(buffer, _kind(texts, buffer), int(r))
                if key not in entry:
                    raise DataError(f"pride: load_state_dict: {slot.name} has no '{key}'")
                values = entry[key].detach().to("cpu", torch.float32).contiguous()
                if tuple(values.shape) != tuple(slot.param.shape):
                    raise DataError(f"pride: load_state_dict: '{key}' of {slot.name} has shape "
                                    f"{tuple(values.shape)}, the parameter {tuple(slot.param.shape)}")
                tensors[buffer, slot.name] = values
        ranks[int(r)] = dict(texts), tensors
    return ranks


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
    return f"{library.lib.pride_layout_digest(optimizer._layout):016x}"


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
    optimizer.state = torch.optim.optimizer.defaultdict(dict)
    params = [p for group in optimizer.param_groups for p in group["params"]]
    optimizer._names = {}
    for p, name in zip(params, state["names"]):
        optimizer._names.setdefault(id(p), name)
    optimizer._saved = state["saved"]
    torch.optim.Optimizer.__setstate__(optimizer, {})
