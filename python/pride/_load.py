# Loads the states of state_dict(), on all ranks or on none.
# SPDX-License-Identifier: Apache-2.0
import copy
import ctypes as c
import math
import warnings

import torch

from . import _library as library
from ._device import HOST
from ._hashes import digest, hash_of
from ._groups import FIXED
from ._state import ABOUT, FORMAT, KIND_OF_MASTER, MASTER, Kinds, held_in, key_of, packed
from ._tensors import shard_of
from ._units import check_units
from .errors import DataError, InvalidArgument, check_one_of

_LOCAL = {"keep": 0, "average": 1, "reset": 2}


def load(state, saved, local="keep", before=None):
    """Loads into the optimizer of a State what State.save() returned; the caller then sets its groups.
    before: changes what is loaded, on the way. Returns the saved values of the groups. Collective."""
    made, ranks_here = {}, state.ranks

    def read():
        check_one_of("local", local, _LOCAL)
        made["state"] = saved if before is None else before(saved)
        made["groups"] = _groups(state.parameters.groups, made["state"])
        made["ranks"] = _ranks(state, made["state"])

    def row():
        ranks, groups = made["ranks"], made["groups"]
        texts = next(iter(ranks.values()))[0]
        values = [bytes(_values_of(state.parameters.groups, group, g)) + bytes(
            [bool(group.get("maximize"))]) for g, group in enumerate(groups)]
        held = 0 if len(ranks) == _saved_world(ranks) and len(ranks) > 1 else min(ranks) + 1
        return [held, _saved_world(ranks), int(texts["step"]), _LOCAL[local],
                digest(b"".join(values)), _shared_digest(state, ranks)]

    rows = ranks_here.agree("load_state_dict", read, row)
    _warn_of_casts(made["state"])
    ranks, size = made["ranks"], ranks_here.size
    held, worlds = [r[2] for r in rows], [r[3] for r in rows]
    ranks_here.same(rows, 3, "argument 'local' of load_state_dict()")
    _check_alike(ranks_here, rows)
    if worlds[0] == size and not all(h == 0 for h in held) and all(
            h in (0, ranks_here.node_of(r) + 1) for r, h in enumerate(held)):
        _load_own(state, ranks, local)
    elif all(h == 0 for h in held) or worlds[0] == 1:
        _load_all(state, ranks, local)
    elif len(set(held)) == 1:
        _load_all(state, _of_one(state, ranks, held[0] - 1, local), "keep")
    else:
        raise InvalidArgument(
            "pride: load_state_dict: " + _what_each_loads(rows) + f"; this run has {size}. Give "
            "each rank its own state of a run with the same number of ranks, or all ranks the consolidated one")
    return made["groups"]


def _values_of(groups, group, g):
    """A saved group's values, with what group g has beside them."""
    ours = groups.every[g]
    made = {**{key: ours[key] for key in FIXED if key in ours}, **group}
    return groups.values({**groups.lacking(made), **made}, g)


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


def _check_alike(ranks, rows):
    """Refuses states that would make replicas differ. All ranks see the same rows here."""
    if len({row[3] for row in rows}) > 1:
        raise InvalidArgument("pride: load_state_dict: " + _what_each_loads(rows) + ": these are "
                              "of different runs")
    if len({row[4] for row in rows}) > 1:
        steps = ", ".join(f"rank {r}: {row[4]}" for r, row in enumerate(rows))
        raise InvalidArgument(f"pride: load_state_dict: ranks load states of different steps "
                              f"({steps})")
    ranks.same(rows, 4, "hyper-parameters of the state to load")
    ranks.same(rows, 5, "shared part of the state to load", ranks.local_of)


def _load_own(state, ranks, local):
    texts, tensors = ranks[state.ranks.voters.rank]
    if local == "average":
        raise InvalidArgument('pride: load_state_dict(local="average") needs the states of all '
                              "ranks on each: consolidate_state_dict() before the state is saved")
    if local == "reset":
        kinds = Kinds(texts).by_key(tensors, state.parameters.slots)
        tensors = {key: torch.zeros_like(t) if kinds[key] == library.LOCAL else t
                   for key, t in tensors.items()}
    state.ranks.call("pride_optimizer_load", state.parameters.handle,
                     _handle_of(state.parameters, texts, tensors))


def _shared_digest(state, ranks):
    """A digest of everything that must be equal on all ranks, or replicas drift apart."""
    texts, tensors = ranks[min(ranks)]
    own = ("rank", "layout", KIND_OF_MASTER)
    parts = [repr(sorted((k, v) for k, v in texts.items() if k not in own)).encode()]
    kinds = Kinds(texts).by_key(tensors, state.parameters.slots)
    shared = [key for key, kind in kinds.items() if kind == library.SHARED and key[0] != MASTER]
    parts.append(hash_of([tensors[key] for key in shared]).to_bytes(8, "little"))
    return digest(b"".join(parts))


def _saved_world(ranks):
    return int(next(iter(ranks.values()))[0]["world"])


def _groups(ours, saved):
    """The saved values of each group. Errors are torch's."""
    if not isinstance(saved, dict) or not isinstance(saved.get("state"), dict) or not isinstance(
            saved.get("param_groups"), list):
        raise DataError("pride: load_state_dict: not the state of an optimizer")
    groups = saved["param_groups"]
    if len(groups) != len(ours.every):
        raise ValueError("loaded state dict has a different number of parameter groups")
    for own, theirs in zip(ours.every, groups):
        if len(own["params"]) != len(theirs["params"]):
            raise ValueError("loaded state dict contains a parameter group that doesn't match the "
                             "size of optimizer's group")
    values = [{k: copy.deepcopy(v) for k, v in g.items()
               if k not in ("params", "param_names", *FIXED, ABOUT)} for g in groups]
    for g, (group, theirs, own) in enumerate(zip(values, groups, ours.every)):
        method = ours.method_of(own)[0]
        if theirs.get("method") not in (None, method):
            raise InvalidArgument(f"pride: load_state_dict: group {g} has the method "
                                  f"{theirs['method']}, and here {method}")
        _values_of(ours, group, g)
    if ABOUT in groups[0]:  # else _ranks() says that the state is not pride's
        check_units(values, ours.every)
    return values


def _ranks(state, saved):
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
    entries = {number: saved["state"].get(i) for number, i in enumerate(ids)}
    ranks = {}
    for r, texts in _held(state, entries, _texts(about, len(saved["param_groups"]))).items():
        if any(slot.narrow() for slot in state.parameters.slots):
            texts[KIND_OF_MASTER] = "shared"
        ranks[r] = texts, _tensors(state.parameters, entries, r, texts)
    cut, here = about.get("node_ranks", 1), len(state.ranks.nodes.ranks) if state.ranks.nodes else 1
    if cut != here and any(Kinds(texts).has(library.SERVER) for texts, _ in ranks.values()):
        raise InvalidArgument(
            f"pride: load_state_dict: {texts['method']} has a state by buckets, for nodes "
            f"of {cut} rank(s); this run has nodes of {here}")
    world = _saved_world(ranks)
    if len(ranks) not in (1, world):
        raise DataError(f"pride: load_state_dict: the state is of ranks {', '.join(map(str, ranks))}"
                        f" of {world}: others are missing")
    return ranks


def _held(state, entries, texts):
    """The texts of the ranks whose own buffers the state has."""
    first, rank = next(iter(texts.values())), state.ranks.voters.rank
    if not Kinds(first).is_private() and not state.ranks.played:  # each rank's state has all
        one = rank if rank in texts and int(first["world"]) == state.ranks.size else min(texts)
        return {one: texts[one]}
    steps = {int(key[len("step.rank"):]): int(step)
             for entry in entries.values() if isinstance(entry, dict)
             for key, step in entry.items() if str(key).startswith("step.rank")}
    held = held_in(entries)
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


def _tensors(parameters, entries, rank, texts):
    """{(buffer, parameter): tensor}. If no master was saved, the parameter's present value is the
    master."""
    index, kinds = packed(parameters.groups.every)[0], Kinds(texts)
    keys = [[(buffer, key_of(buffer, kind, rank)) for buffer, kind in kinds.of(g).items()]
            for g in range(len(parameters.groups.every))]
    made = {}
    for slot in parameters.slots:
        i = index[id(slot.param)]
        for buffer, key in keys[slot.group]:
            if buffer != MASTER or (slot.narrow() and MASTER in entries.get(i, {})):
                values = _values(entries, i, slot, key)
            elif slot.narrow():
                values = slot.tensor.detach().cpu().float().contiguous()
            else:
                continue
            if not torch.isfinite(values).all():
                raise DataError(f"pride: load_state_dict: '{key}' of {slot.name} is not finite")
            made[buffer, slot.name] = values
    return made


def _values(entries, i, slot, key):
    entry = entries.get(i)
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


def _handle_of(parameters, texts, tensors):
    handle = library.Handle("state", "pride_state_create")
    for name, value in texts.items():
        if name == "layout":  # with this optimizer's names: shapes are checked above
            value = f"{library.lib.pride_layout_digest(parameters.layout):x}"
        library.call("pride_state_set_text", handle, name.encode(), value.encode())
    for (buffer, parameter), values in tensors.items():
        spec = library.tensors([(f"{buffer}/{parameter}", tuple(values.shape), 0)])
        library.call("pride_state_set_tensor", handle, c.byref(spec[0]),
                     HOST.address(values, torch.float32, math.prod(values.shape)))
    return handle


def _load_all(state, ranks, local):
    handles = [_handle_of(state.parameters, *ranks[r]) for r in sorted(ranks)]
    array = (c.c_void_p * len(handles))(*[h.value for h in handles])
    state.ranks.call("pride_optimizer_load_all", state.parameters.handle, array, len(handles),
                     _LOCAL[local])


def _of_one(state, ranks, source, local):
    """States for all ranks of the saving run, made from the state of `source`, which all load."""
    texts, tensors = ranks[source]
    world, rank = int(texts["world"]), state.ranks.voters.rank
    kinds = Kinds(texts).by_key(tensors, state.parameters.slots)
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
