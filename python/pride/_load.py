# Loads the states of state_dict(), on all ranks or on none. Copies and pickles of optimizers load
# the original's state in their first operation.
# SPDX-License-Identifier: Apache-2.0
import collections
import copy
import ctypes as c
import math
import warnings

import torch

from . import _library as library
from ._device import HOST
from ._hashes import digest, hash_of
from ._groups import FIXED, method_of
from ._state import (ABOUT, FORMAT, KIND_OF_MASTER, MASTER, Kinds, held_in, key_of, of_copy,
                     packed_groups, state_dict, stepped)
from ._tensors import shard_of
from ._units import check_units
from .errors import DataError, InvalidArgument, check_one_of

_GROUPS = ("process_group", "node_group")
_LOCAL = {"keep": 0, "average": 1, "reset": 2}


def load(optimizer, saved, local="keep", with_groups=True):
    made = {}

    def read():
        state = saved
        check_one_of("local", local, _LOCAL)
        if isinstance(state, dict):
            state = state.copy()  # as torch does, for the hooks
        for hook in getattr(optimizer, "_optimizer_load_state_dict_pre_hooks", {}).values():
            changed = hook(optimizer, state)
            state = state if changed is None else changed
        made["state"], made["groups"] = state, _groups(optimizer, state)
        made["ranks"] = _ranks(optimizer, state)

    def row():
        ranks, groups = made["ranks"], made["groups"]
        texts = next(iter(ranks.values()))[0]
        values = [bytes(_values_of(optimizer, group, g)) + bytes([bool(group.get("maximize"))])
                  for g, group in enumerate(groups)]
        held = 0 if len(ranks) == _saved_world(ranks) and len(ranks) > 1 else min(ranks) + 1
        return [held, _saved_world(ranks), int(texts["step"]), _LOCAL[local],
                digest(b"".join(values)), _shared_digest(optimizer, ranks)]

    rows = optimizer._ranks.agree("load_state_dict", read, row)
    _warn_of_casts(made["state"])
    ranks, size = made["ranks"], optimizer._n_ranks()
    held, worlds = [r[2] for r in rows], [r[3] for r in rows]
    optimizer._ranks.same(rows, 3, "argument 'local' of load_state_dict()")
    _check_alike(optimizer, rows)
    if worlds[0] == size and not all(h == 0 for h in held) and all(
            h in (0, optimizer._ranks.node_of(r) + 1) for r, h in enumerate(held)):
        _load_own(optimizer, ranks, local)
    elif all(h == 0 for h in held) or worlds[0] == 1:
        _load_all(optimizer, ranks, local)
    elif len(set(held)) == 1:
        _load_all(optimizer, _of_one(optimizer, ranks, held[0] - 1, local), "keep")
    else:
        raise InvalidArgument(
            "pride: load_state_dict: " + _what_each_loads(rows) + f"; this run has {size}. Give "
            "each rank its own state of a run with the same number of ranks, or all ranks the consolidated one")
    if with_groups:
        for group, values in zip(optimizer.param_groups, made["groups"]):
            group.update(values)
    optimizer._handed_workers, optimizer._rows_first = set(), True
    optimizer._send_groups()
    optimizer.to_local()
    stepped(optimizer)
    for hook in getattr(optimizer, "_optimizer_load_state_dict_post_hooks", {}).values():
        hook(optimizer)


def _values_of(optimizer, group, g):
    """A saved group's values, with what group g has beside them."""
    ours = optimizer.param_groups[g]
    return optimizer._group_values({**optimizer._defaults_of(ours), **{
        key: ours[key] for key in FIXED if key in ours}, **group}, g)


def _warn_of_casts(saved):
    """As torch's optimizers, pride loads values of another type, but says so."""
    types = {str(t.dtype) for entry in saved["state"].values() if isinstance(entry, dict)
             for key, t in entry.items() if not str(key).startswith("step") and isinstance(
                 t, torch.Tensor) and t.dtype not in (torch.float32, torch.float64)}
    if types:
        warnings.warn(
            f"pride: load_state_dict: the state was saved in {', '.join(sorted(types))}, by a tool "
            "that casts, and has fewer bits than float32: the run goes on, but not bit for bit",
            stacklevel=4)


def _what_each_loads(rows):
    def what(row):
        held, world = row[2:4]
        return f"the states of all {world} ranks" if held == 0 else (
            f"the state of rank {held - 1} of {world}")

    return "; ".join(f"rank {r} loads {what(row)}" for r, row in enumerate(rows))


def _check_alike(optimizer, rows):
    """Refuses states that would make replicas differ. All ranks see the same rows here."""
    if len({row[3] for row in rows}) > 1:
        raise InvalidArgument("pride: load_state_dict: " + _what_each_loads(rows) + ": these are "
                              "of different runs")
    if len({row[4] for row in rows}) > 1:
        steps = ", ".join(f"rank {r}: {row[4]}" for r, row in enumerate(rows))
        raise InvalidArgument(f"pride: load_state_dict: ranks load states of different steps "
                              f"({steps})")
    optimizer._ranks.same(rows, 4, "hyper-parameters of the state to load")
    optimizer._ranks.same(rows, 5, "shared part of the state to load", optimizer._ranks.local_of)


def _load_own(optimizer, ranks, local):
    texts, tensors = ranks[optimizer._ranks.voters.rank]
    if local == "average":
        raise InvalidArgument('pride: load_state_dict(local="average") needs the states of all '
                              "ranks on each: consolidate_state_dict() before the state is saved")
    if local == "reset":
        kinds = Kinds(texts).by_key(tensors, optimizer._slots)
        tensors = {key: torch.zeros_like(t) if kinds[key] == library.LOCAL else t
                   for key, t in tensors.items()}
    optimizer._ranks.call("pride_optimizer_load", optimizer._handle,
                    _handle_of(optimizer, texts, tensors))


def _shared_digest(optimizer, ranks):
    """A digest of everything that must be equal on all ranks, or replicas drift apart."""
    texts, tensors = ranks[min(ranks)]
    own = ("rank", "layout", KIND_OF_MASTER)
    parts = [repr(sorted((k, v) for k, v in texts.items() if k not in own)).encode()]
    kinds = Kinds(texts).by_key(tensors, optimizer._slots)
    shared = [key for key, kind in kinds.items() if kind == library.SHARED and key[0] != MASTER]
    parts.append(hash_of([tensors[key] for key in shared]).to_bytes(8, "little"))
    return digest(b"".join(parts))


def _saved_world(ranks):
    return int(next(iter(ranks.values()))[0]["world"])


def _groups(optimizer, saved):
    """The saved values of each group. Errors are torch's."""
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
               if k not in ("params", "param_names", *FIXED, ABOUT)} for g in groups]
    for g, (group, theirs, ours) in enumerate(zip(values, groups, optimizer.param_groups)):
        method = method_of(optimizer._settings, ours)[0]
        if theirs.get("method") not in (None, method):
            raise InvalidArgument(f"pride: load_state_dict: group {g} has the method "
                                  f"{theirs['method']}, and here {method}")
        _values_of(optimizer, group, g)
    if ABOUT in groups[0]:  # else _ranks() says that the state is not pride's
        check_units(values, optimizer.param_groups)
    return values


def _ranks(optimizer, saved):
    """{rank: (texts, {(buffer, parameter): tensor})} of a state_dict."""
    about = saved["param_groups"][0].get(ABOUT)
    if about is None:
        adam = any("exp_avg_sq" in entry for entry in saved["state"].values() if isinstance(entry, dict))
        raise DataError("pride: load_state_dict: this state was not saved by pride (its first group "
                        f"has no entry '{ABOUT}'{', and it has those of AdamW' if adam else ''}); the "
                        "momentum of another optimizer cannot be used")
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise DataError(f"pride: load_state_dict: the state is not of format {FORMAT}, which this "
                        "version reads")
    # ids are numbers or names; torch's optimizers match parameters by order, whatever the ids
    ids = [i for group in saved["param_groups"] for i in group["params"]]
    state = {number: saved["state"].get(i) for number, i in enumerate(ids)}
    ranks = {}
    for r, texts in _held(optimizer, state, _texts(about, len(saved["param_groups"]))).items():
        if any(slot.narrow() for slot in optimizer._slots):
            texts[KIND_OF_MASTER] = "shared"
        ranks[r] = texts, _tensors(optimizer, state, r, texts)
    cut, here = about.get("node_ranks", 1), len(optimizer._ranks.nodes.ranks) if optimizer._ranks.nodes else 1
    if cut != here and any(Kinds(texts).has(library.SERVER) for texts, _ in ranks.values()):
        raise InvalidArgument(
            f"pride: load_state_dict: {texts['method']} has a state by buckets, for nodes "
            f"of {cut} rank(s); this run has nodes of {here}")
    world = _saved_world(ranks)
    if len(ranks) not in (1, world):
        raise DataError(f"pride: load_state_dict: the state is of ranks {', '.join(map(str, ranks))}"
                        f" of {world}: others are missing")
    return ranks


def _held(optimizer, state, texts):
    """The texts of the ranks whose own buffers the state has."""
    first, rank = next(iter(texts.values())), optimizer._ranks.voters.rank
    if not Kinds(first).is_private() and not optimizer._n_workers:  # each rank's state has all
        one = rank if rank in texts and int(first["world"]) == optimizer._n_ranks() else min(texts)
        return {one: texts[one]}
    steps = {int(key[len("step.rank"):]): int(step)
             for entry in state.values() if isinstance(entry, dict)
             for key, step in entry.items() if str(key).startswith("step.rank")}
    held = held_in(state)
    of_now = {r for r in held if r in texts and steps.get(r, int(texts[r]["step"])) == int(
        texts[r]["step"])}
    if held and not of_now:
        raise DataError(
            f"pride: load_state_dict: the state is of step {first['step']}, and its own buffers of "
            f"rank(s) {', '.join(map(str, sorted(held)))} are not: a tool has sent rank 0's state to "
            "all ranks (broadcast_from_rank0), and it has no other rank's momentum. Save with "
            "pride.checkpoint, or after consolidate_state_dict() on all ranks, and load that on all")
    return {r: each for r, each in texts.items() if r in of_now or not held}


def _texts(about, n_groups):
    """{rank: texts}, in the order of ranks, with all entries that are read here."""
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
            for g in range(n_groups):
                Kinds(texts).of(g)
            for name in ("method", "options", "seed", "group starts"):
                str(texts[name])
            made[int(r)] = texts
        if not made or len({texts["world"] for texts in made.values()}) != 1:
            raise ValueError("ranks")
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise DataError(f"pride: load_state_dict: the entry '{ABOUT}' of the state is damaged "
                        f"({type(error).__name__}: {error})") from None
    return dict(sorted(made.items()))


def _tensors(optimizer, state, rank, texts):
    """{(buffer, parameter): tensor}. If no master was saved, the parameter's present value is the
    master."""
    index, kinds = packed_groups(optimizer)[0], Kinds(texts)
    keys = [[(buffer, key_of(buffer, kind, rank)) for buffer, kind in kinds.of(g).items()]
            for g in range(len(optimizer.param_groups))]
    made = {}
    for slot in optimizer._slots:
        i = index[id(slot.param)]
        for buffer, key in keys[slot.group]:
            if buffer != MASTER or (slot.narrow() and MASTER in state.get(i, {})):
                values = _values(state, i, slot, key)
            elif slot.narrow():
                values = slot.tensor.detach().cpu().float().contiguous()
            else:
                continue
            if not torch.isfinite(values).all():
                raise DataError(f"pride: load_state_dict: '{key}' of {slot.name} is not finite")
            made[buffer, slot.name] = values
    return made


def _values(state, i, slot, key):
    entry = state.get(i)
    if entry is None and not slot.param.requires_grad:  # torch.distributed.checkpoint leaves it out
        return torch.zeros(slot.shape, dtype=torch.float32, device="cpu")
    if not isinstance(entry, dict) or key not in entry:
        raise DataError(f"pride: load_state_dict: {slot.name} has no '{key}'")
    values = entry[key]
    what = f"pride: load_state_dict: '{key}' of {slot.name}"
    if not isinstance(values, torch.Tensor) or not values.dtype.is_floating_point:
        kind = values.dtype if isinstance(values, torch.Tensor) else type(values).__name__
        raise DataError(f"{what} is {kind}, must be torch.float32")
    if tuple(values.shape) != tuple(slot.param.shape):
        raise DataError(f"{what} has shape {tuple(values.shape)}, the parameter "
                        f"{tuple(slot.param.shape)}")
    return shard_of(values, slot).detach().to("cpu", torch.float32).contiguous()


def _handle_of(optimizer, texts, tensors):
    handle = library.Handle("state", "pride_state_create")
    for name, value in texts.items():
        if name == "layout":  # with this optimizer's names: shapes are checked above
            value = f"{library.lib.pride_layout_digest(optimizer._layout):x}"
        library.call("pride_state_set_text", handle, name.encode(), value.encode())
    for (buffer, parameter), values in tensors.items():
        spec = library.tensors([(f"{buffer}/{parameter}", tuple(values.shape), 0)])
        library.call("pride_state_set_tensor", handle, c.byref(spec[0]),
                     HOST.address(values, torch.float32, math.prod(values.shape)))
    return handle


def _load_all(optimizer, ranks, local):
    handles = [_handle_of(optimizer, *ranks[r]) for r in sorted(ranks)]
    array = (c.c_void_p * len(handles))(*[h.value for h in handles])
    optimizer._ranks.call("pride_optimizer_load_all", optimizer._handle, array, len(handles),
                    _LOCAL[local])


def _of_one(optimizer, ranks, source, local):
    """States for all ranks of the saving run, made from the state of `source`, which all load."""
    texts, tensors = ranks[source]
    world, rank = int(texts["world"]), optimizer._ranks.voters.rank
    kinds = Kinds(texts).by_key(tensors, optimizer._slots)
    own = any(kind != library.SHARED for kind in kinds.values())
    if own and rank != source and local != "reset":
        warnings.warn(
            f"pride: rank {rank} loads the momentum of rank {source}: each rank has its own, "
            "and the checkpoint holds only one. Call optimizer.consolidate_state_dict() on all ranks "
            'before state_dict(), or load with local="reset"', stacklevel=4)
    made = {}
    for r in range(world):
        mine = {}
        for key, values in tensors.items():
            kind = kinds[key]
            lost = kind == library.SERVER and r != source
            reset = kind == library.LOCAL and local == "reset"
            mine[key] = torch.zeros_like(values) if lost or reset else values
        made[r] = {**texts, "rank": str(r)}, mine
    return made


def pickled(optimizer, for_file=True):
    settings = dict(optimizer._settings)
    for name in _GROUPS if for_file else ():
        if not isinstance(settings.get(name), (str, type(None))):
            raise TypeError(f"pride: an optimizer with its own {name} cannot be pickled; "
                            "save its state_dict()")
    settings.update({name: None for name in _GROUPS if not isinstance(settings.get(name), str)})
    saved = state_dict(optimizer)
    names = [optimizer._name(p, g, i) for g, group in enumerate(optimizer.param_groups)
             for i, p in enumerate(group["params"])]
    return {"defaults": optimizer.defaults, "param_groups": optimizer.param_groups,
            "settings": settings, "names": names, "saved": saved,
            "matrices": optimizer._matrices.pickled(optimizer.param_groups)}


def unpickle(optimizer, state):
    optimizer.defaults = state["defaults"]
    optimizer._settings = state["settings"]
    optimizer._reset()
    optimizer.param_groups = state["param_groups"]
    params = [p for group in optimizer.param_groups for p in group["params"]]
    for p, name in zip(params, state["names"]):
        optimizer._names.setdefault(id(p), name)
    optimizer._matrices.unpickle(params, state["matrices"])
    optimizer._saved = state["saved"]
    # the caller sees the state that the first operation will load
    optimizer.state = collections.defaultdict(dict)
    for i, entry in optimizer._saved["state"].items():
        optimizer.state[params[i]] = entry
    torch.optim.Optimizer.__setstate__(optimizer, {})


def begin_copy(optimizer):
    """Builds a copied optimizer with its present groups. Collective."""
    saved = of_copy(optimizer)
    optimizer._build(False)
    try:
        load(optimizer, saved, with_groups=False)
    except BaseException as error:
        optimizer.close()
        optimizer._ranks.broken = f"the state of the optimizer that was copied: {error}"
        raise
    optimizer._saved = None
