# What optimizer.state shows: libpride's memory. What the caller writes there between steps is
# followed, or refused.
# SPDX-License-Identifier: Apache-2.0
import ctypes as c
import functools

import torch

from . import _library as library
from ._device import HOST
from .errors import InvalidArgument
from .methods import method_info


def buffers(handle):
    """(name, kind, address, is bfloat16) of each of the method's buffers."""
    found, out = [], library.StateBuffer()
    while library.lib.pride_optimizer_state_buffer(handle, len(found), c.byref(out)) == 0:
        found.append((out.name.decode(), out.kind, out.data, out.dtype == library.BFLOAT16))
    return found


def key_of(name, kind, rank):
    return name if kind == library.SHARED else f"{name}.rank{rank}"


@functools.lru_cache(maxsize=None)
def _needs_steps(method):
    return bool(method_info(method).eps)


class Views:
    """The entries of one optimizer's state."""

    def __init__(self, method, ranks):
        self._method, self._ranks = method, ranks
        self._step = torch.tensor(0.0, dtype=torch.float32, device="cpu")
        self._made = []  # (parameter, {key: tensor})
        self._named, self._handle = (), None

    def make(self, state, slots, named, handle, layout):
        """Fills state with views of the library's memory. named: slots with the names in errors."""
        self._named, self._handle = named, handle
        size, rank = library.lib.pride_layout_flat_size(layout), self._ranks.voters.rank
        memory = library.Handle("memory", "pride_optimizer_state_memory", handle)
        place, whole = slots[0].place, {}
        for name, kind, address, narrow in buffers(handle):
            flat = (HOST if kind == library.SERVER else place).floats(
                address, size // 2 if narrow else size, memory)
            whole[key_of(name, kind, rank)] = flat.view(torch.bfloat16) if narrow else flat
        for slot in slots:
            entry = state[slot.param]
            entry["step"] = self._step
            for key, flat in whole.items():
                part = flat[slot.offset:slot.offset + slot.n].view(slot.shape)
                if key in entry and entry[key].dtype == part.dtype:
                    with torch.no_grad():
                        entry[key].set_(part)  # the memory moved, the tensor object stays
                else:
                    entry[key] = part
        self._made = [(slot.param, dict(state[slot.param])) for slot in slots]

    def stepped(self):
        self._step.fill_(library.lib.pride_optimizer_steps_done(self._handle))

    def follow(self, state):
        """Copies replaced tensors into libpride's memory, and resets what is gone. `state` then has
        the views again."""
        entries = [state.get(p) for p, _ in self._made]
        if all(entry is not None and len(entry) == len(view) and
               all(entry.get(key) is tensor for key, tensor in view.items())
               for entry, (_, view) in zip(entries, self._made)) and len(state) == len(self._made):
            return
        self._check_keys(state)
        with torch.no_grad():
            for (p, view), entry in zip(self._made, entries):
                entry = state.setdefault(p, {}) if entry is None else entry
                for key, tensor in view.items():
                    if entry.get(key) is not tensor:
                        self._write(p, key, tensor, entry.get(key))
                        entry[key] = tensor

    def _check_keys(self, state):
        views = {id(p): view for p, view in self._made}
        for p, entry in state.items():
            # "step", and with nodes the "step.rankN" of another rank's state
            unknown = [key for key in entry
                       if key.split(".")[0] != "step" and key not in views.get(id(p), ())]
            if unknown:
                raise InvalidArgument(f"pride: optimizer.state of {self._name(p)} has "
                                      f"'{unknown[0]}', which no step reads; keep it elsewhere")

    def _name(self, p):
        return next((slot.name for slot in self._named if slot.param is p),
                    "a tensor that is not its parameter")

    def _write(self, p, key, tensor, now):
        def what():  # a search through all parameters
            return f"pride: optimizer.state: '{key}' of {self._name(p)}"

        if self._ranks.in_step:
            raise InvalidArgument(f"{what()} was changed between backward and step() with "
                                  "overlap=True: do it after step()")
        if key == "step":
            if now is not None and float(now) != float(tensor):
                raise InvalidArgument(f"{what()} is {float(now):.0f} now: steps are counted for all "
                                      f"tensors ({float(tensor):.0f}); make a new optimizer")
        elif now is None:
            if (_needs_steps(self._method) or
                    library.lib.pride_optimizer_period(self._handle) > 1):
                raise InvalidArgument(f"{what()} is gone: {self._method} cannot reset it, because its "
                                      "update also depends on the number of steps; make a new "
                                      "optimizer")
            tensor.zero_()
        elif not isinstance(now, torch.Tensor) or now.shape != tensor.shape:
            kind = tuple(now.shape) if isinstance(now, torch.Tensor) else type(now).__name__
            raise InvalidArgument(f"{what()} is {kind}, must be a tensor of shape "
                                  f"{tuple(tensor.shape)}")
        else:
            tensor.copy_(now)
