# What optimizer.state shows: libpride's memory. What the caller writes there between steps is
# followed, or refused.
# SPDX-License-Identifier: Apache-2.0
import ctypes as c

import torch

from . import _library as library
from ._device import HOST
from ._groups import info_of, section_of
from ._tensors import aligned
from .errors import InvalidArgument


def buffers(handle):
    """library.StateBuffer of each of the methods' buffers."""
    found, buffer = [], library.StateBuffer()
    while library.lib.pride_optimizer_state_buffer(handle, len(found), c.byref(buffer)) == 0:
        found.append(library.StateBuffer.from_buffer_copy(buffer))
    return found


def key_of(name, kind, rank):
    return name if kind == library.SHARED else f"{name}.rank{rank}"


class Views:
    """The entries of one optimizer's state."""

    def __init__(self, ranks):
        self._ranks = ranks
        self._step = torch.tensor(0.0, dtype=torch.float32, device="cpu")
        self._made = []  # (parameter, {key: tensor}, MethodInfo)
        self._named, self._handle = (), None

    def make(self, state, slots, named, handle, methods):
        """Fills state with views of the library's memory. named: slots with the names in errors;
        methods: those of the groups, by Groups.methods()."""
        self._named, self._handle = named, handle
        sections, infos = {}, {}  # by group
        for method, options, groups in methods:
            sections.update(dict.fromkeys(groups, section_of(handle, groups[0]).index))
            infos.update(dict.fromkeys(groups, info_of(method, options)))
        sizes, begins = [0] * len(methods), []  # by section; by slot
        for slot in slots:
            section = sections[slot.group]
            begins.append(sizes[section])
            sizes[section] += aligned(slot.n)
        whole = self._whole(handle, slots[0].place, sizes)
        for slot, begin in zip(slots, begins):
            entry = state[slot.param]
            entry["step"] = self._step
            for key, flat in whole[sections[slot.group]].items():
                part = flat[begin:begin + slot.n].view(slot.shape)
                if key in entry and entry[key].dtype == part.dtype:
                    with torch.no_grad():
                        entry[key].set_(part)  # the memory moved, the tensor object stays
                else:
                    entry[key] = part
        self._made = [(slot.param, dict(state[slot.param]), infos[slot.group]) for slot in slots]

    def _whole(self, handle, place, sizes):
        """{key: flat tensor} of the buffers of each section, of so many coordinates."""
        memory = library.Handle("memory", "pride_optimizer_state_memory", handle)
        whole = [{} for _ in sizes]
        for each in buffers(handle):
            n, narrow = sizes[each.section], each.dtype == library.BFLOAT16
            flat = (HOST if each.kind == library.SERVER else place).floats(
                each.data, n // 2 if narrow else n, memory)
            whole[each.section][key_of(each.name.decode(), each.kind, self._ranks.voters.rank)] = (
                flat.view(torch.bfloat16) if narrow else flat)
        return whole

    def stepped(self):
        self._step.fill_(library.lib.pride_optimizer_steps_done(self._handle))

    def follow(self, state):
        """Copies replaced tensors into libpride's memory, and resets what is gone. `state` then has
        the views again."""
        entries = [state.get(p) for p, *_ in self._made]
        if all(entry is not None and len(entry) == len(view) and
               all(entry.get(key) is tensor for key, tensor in view.items())
               for entry, (_, view, _) in zip(entries, self._made)) and len(state) == len(self._made):
            return
        self._check_keys(state)
        with torch.no_grad():
            for (p, view, info), entry in zip(self._made, entries):
                entry = state.setdefault(p, {}) if entry is None else entry
                for key, tensor in view.items():
                    if entry.get(key) is not tensor:
                        self._write(p, key, tensor, entry.get(key), info)
                        entry[key] = tensor

    def _check_keys(self, state):
        views = {id(p): view for p, view, _ in self._made}
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

    def _write(self, p, key, tensor, now, info):
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
            if info.eps or library.lib.pride_optimizer_period(self._handle) > 1:
                raise InvalidArgument(f"{what()} is gone: {info.name} cannot reset it, because its "
                                      "update also depends on the number of steps; make a new "
                                      "optimizer")
            tensor.zero_()
        elif not isinstance(now, torch.Tensor) or now.shape != tensor.shape:
            kind = tuple(now.shape) if isinstance(now, torch.Tensor) else type(now).__name__
            raise InvalidArgument(f"{what()} is {kind}, must be a tensor of shape "
                                  f"{tuple(tensor.shape)}")
        else:
            tensor.copy_(now)
