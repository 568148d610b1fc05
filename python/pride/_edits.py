# What the caller writes into optimizer.state between steps: followed, or refused.
# SPDX-License-Identifier: Apache-2.0
import functools

import torch

from . import _library as library
from .errors import InvalidArgument
from .methods import method_info


def follow(optimizer):
    """Copies replaced tensors into libpride's memory, and resets what is gone. optimizer.state then
    has the views again."""
    state, views = optimizer.state, optimizer._views
    entries = [state.get(p) for p, _ in views]
    if all(entry is not None and len(entry) == len(view) and
           all(entry.get(key) is tensor for key, tensor in view.items())
           for entry, (_, view) in zip(entries, views)) and len(state) == len(views):
        return
    _check_keys(optimizer)
    with torch.no_grad():
        for (p, view), entry in zip(views, entries):
            entry = state.setdefault(p, {}) if entry is None else entry
            for key, tensor in view.items():
                if entry.get(key) is not tensor:
                    _write(optimizer, p, key, tensor, entry.get(key))
                    entry[key] = tensor


def _check_keys(optimizer):
    views = {id(p): view for p, view in optimizer._views}
    for p, entry in optimizer.state.items():
        # "step", and with nodes the "step.rankN" of another rank's state
        unknown = [key for key in entry
                   if key.split(".")[0] != "step" and key not in views.get(id(p), ())]
        if unknown:
            raise InvalidArgument(f"pride: optimizer.state of {_name(optimizer, p)} has "
                                  f"'{unknown[0]}', which no step reads; keep it elsewhere")


def _name(optimizer, p):
    return next((slot.name for slot in optimizer._of_node() if slot.param is p),
                "a tensor that is not its parameter")


@functools.lru_cache(maxsize=None)
def _needs_steps(method):
    return bool(method_info(method).eps)


def _write(optimizer, p, key, tensor, now):
    def what():  # a search through all parameters
        return f"pride: optimizer.state: '{key}' of {_name(optimizer, p)}"

    if optimizer._ranks.in_step:
        raise InvalidArgument(f"{what()} was changed between backward and step() with overlap=True: "
                              "do it after step()")
    if key == "step":
        if now is not None and float(now) != float(tensor):
            raise InvalidArgument(f"{what()} is {float(now):.0f} now: steps are counted for all "
                                  f"tensors ({float(tensor):.0f}); make a new optimizer")
        return
    if now is None:
        method = optimizer._settings["method"]
        if _needs_steps(method) or library.lib.pride_optimizer_period(optimizer._handle) > 1:
            raise InvalidArgument(f"{what()} is gone: {method} cannot reset it, because its update also "
                                  "depends on the number of steps; make a new optimizer")
        tensor.zero_()
    elif not isinstance(now, torch.Tensor) or now.shape != tensor.shape:
        kind = tuple(now.shape) if isinstance(now, torch.Tensor) else type(now).__name__
        raise InvalidArgument(f"{what()} is {kind}, must be a tensor of shape {tuple(tensor.shape)}")
    else:
        tensor.copy_(now)
