# Copies and pickles of optimizers: they load the state of the original in their first operation.
# SPDX-License-Identifier: Apache-2.0
import collections

import torch

from ._load import load
from ._state import of_copy, state_dict


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
    saved = of_copy(optimizer)
    optimizer._build(False)
    try:
        load(optimizer, saved, with_groups=False)
    except BaseException as error:
        optimizer.close()
        optimizer._broken = f"the state of the optimizer that was copied: {error}"
        raise
    optimizer._saved = None
