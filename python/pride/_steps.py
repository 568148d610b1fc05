# The steps of an optimizer: whole ones, and those that begin in backward.
# SPDX-License-Identifier: Apache-2.0
import contextlib
import ctypes as c
import functools
import os

import torch

from . import _library as library
from ._common import check_local
from ._lane import SLICE_S
from ._state import stepped
from ._together import Together, digest
from ._world import listed
from .errors import Error, InvalidArgument
from .methods import method_info

CHECKED_STEPS = 2  # in which ranks compare their gradients


_info = functools.lru_cache(maxsize=None)(method_info)


def betas_of(info, betas):
    """As many as the method has."""
    own = tuple(b for b in (info.beta1, info.beta2) if b)
    if betas is None:
        return own
    given = (betas,) if isinstance(betas, (int, float)) else tuple(betas)
    if len(given) != len(own):
        raise InvalidArgument(f"pride: betas = {betas}; {info.name} has {len(own)}")
    return given


class Steps(Together):
    """A part of Optimizer."""

    def _step(self, closure, scaler):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._usable()
        with torch.no_grad():
            amp = _Amp(self, scaler)
            if amp.used and self._settings["overlap"]:
                self._end_world("a GradScaler was used with overlap=True")
                raise InvalidArgument("pride: a GradScaler needs overlap=False: whether a gradient "
                                      "has overflowed is known after backward only")
            scale = None
            if not self._running:
                if not self._begin_whole(amp):
                    return loss
                scale = amp.scale
            with self._all_fail():
                self._hand_over_rest(scale)
            self._finish()
        return loss

    def _begin_whole(self, amp):
        """Begins a step whose gradients are all there. False if it is skipped on all ranks."""
        unused = self._hooks.unused()
        frozen = self._frozen_now()
        checked = self._checks_left > 0 and self._world.size > 1

        def prepare():
            check_local(self)
            for i, slot in enumerate(self._slots):
                if not unused[i]:
                    self._flat.check_gradient(slot)
            amp.read()
            if checked:  # with all gradients at once; later each is copied when its turn comes
                self._collect_all(unused, amp.scale)
            self._flat.pull(frozen)
            self._send_groups()

        if self._settings["overlap"] and not checked:  # the others may have begun in backward
            if self._world.size > 1:
                frozen &= self._frozen
            with self._all_fail():
                prepare()
            self._begin()
            self._frozen = frozen
            return True
        rows = self._meet("step", prepare, lambda: [
            self._groups_digest(), int(amp.found_inf),
            self._hash(self._flat.grads) if checked else 0, int(checked and not all(unused)),
            digest(repr(sorted(frozen)).encode())])
        self._same(rows, 0, "hyper-parameters (lr, betas, eps, weight_decay, maximize)")
        self._same(rows, 4, "set of parameters with requires_grad=False")
        self._frozen = frozen
        if any(row[3] for row in rows):
            amp.share_inf()
            self._totals["skipped"] += 1
            self._last = dict(skipped=True, note="found_inf on rank(s) " + listed(
                r for r, row in enumerate(rows) if row[3]))
            self._hooks.reset()
            return False
        if checked:
            self._check_local(rows)
        self._begin()
        if checked:
            for i in self._in_order():
                self._ready(i, unused[i])
        return True

    def _collect_all(self, unused, scale):
        for i, slot in enumerate(self._slots):
            if unused[i]:
                slot.grad_view.zero_()
            else:
                self._flat.collect(slot, scale, self._maximize)

    def _check_local(self, rows):
        if not any(row[5] for row in rows):
            return
        if len({row[4] for row in rows}) == 1 and self._settings["equal_gradients"] == "refuse":
            if not self._flat.grads.any():
                return  # zeros say nothing
            raise InvalidArgument(
                "pride: the gradients of all ranks are equal, bit for bit: they have been averaged "
                "already (wrap the model with pride.local_gradients(ddp_model)), or all ranks have "
                'the same data (use a DistributedSampler). equal_gradients="allow" takes them')
        self._checks_left -= 1

    def _begin(self):
        self._handed = {}
        params = library.Array(data=self._flat.params.data_ptr(), n=self._flat.params.numel(),
                               dtype=library.FLOAT32)
        self._call("pride_optimizer_begin", self._handle, c.byref(params), None)
        self._running = True

    def _in_order(self):
        """The order of the buckets, as backward completes them: exchanges begin with the last one."""
        return reversed(range(len(self._slots)))

    def _ready(self, index, missing, values=None):
        """Hands a gradient to the library: `values`, or its copy in the flat buffer."""
        slot = self._slots[index]
        if missing:
            self._handed[index] = (None, 0, False)
            status = library.lib.pride_optimizer_ready(self._handle, index, 1)
        else:
            grad = slot.param.grad
            values = slot.grad_view if values is None else values
            in_place = values is not slot.grad_view
            self._handed[index] = (grad.data_ptr(), grad._version, in_place)
            self._held.append(values.detach())  # its memory, until the step is over
            array = library.Array(data=values.data_ptr(), n=slot.n, dtype=library.FLOAT32)
            status = library.lib.pride_optimizer_ready_at(self._handle, index, c.byref(array))
        if status != library.OK:
            with self._failures():
                library.check(status)

    def _gradient_complete(self, index):
        """From backward, with overlap."""
        slot = self._slots[index]
        if self._checks_left > 0 and self._world.size > 1:
            return  # the first steps are made as a whole
        self._usable()
        with torch.no_grad():
            if not self._running:
                self._frozen &= self._frozen_now()
                with self._all_fail():
                    check_local(self)
                    self._flat.pull(self._frozen)
                    self._send_groups()
                self._begin()
            with self._all_fail():
                if index in self._handed:
                    raise InvalidArgument(
                        f"pride: {slot.name} has a second gradient before step(), of a second "
                        "backward or of one that was repeated: with overlap=True only the last "
                        "backward before a step may be outside optimizer.no_sync()")
                # DDP writes gradients again, at the end of backward: a copy keeps what they are now
                if self._flat.is_plain(slot) and not (self._maximize or
                                                      self._hooks.is_shared(slot)):
                    self._ready(index, False, slot.param.grad)
                else:
                    self._flat.collect(slot, None, self._maximize)
                    self._ready(index, False)

    def _hand_over_rest(self, scale):
        unused = self._hooks.unused()
        for i in self._handed:  # before more buckets are complete and read
            if not self._as_handed(i):
                raise InvalidArgument(
                    f"pride: the gradient of {self._slots[i].name} was changed after backward, "
                    "when its exchange had begun (clipping? another backward?): use overlap=False")
        for i in self._in_order():
            slot = self._slots[i]
            if i in self._handed:
                continue
            if unused[i]:
                self._ready(i, True)
            elif scale is None and not self._maximize and self._flat.is_plain(slot):
                self._ready(i, False, slot.param.grad)  # as it is, without a copy
            else:
                self._flat.collect(slot, scale, self._maximize)
                self._ready(i, False)

    def _as_handed(self, index):
        """False if the gradient has changed since the library was given it. DDP writes gradients a
        second time at the end of backward, with the same values."""
        slot, before = self._slots[index], self._handed[index]
        grad = slot.param.grad
        if before[0] is None or grad is None or grad.layout != torch.strided:
            return before[0] is None
        if slot.n == 0 or before[:2] == (grad.data_ptr(), grad._version):
            return True
        return not before[2] and not self._flat.is_view(slot) and self._flat.holds(slot, self._maximize)

    def _finish(self):
        report = library.Report()
        try:
            with self._failures():
                while library.check(library.lib.pride_optimizer_finish(
                        self._handle, int(SLICE_S * 1000), c.byref(report))) == library.PENDING:
                    pass  # the interpreter handles its signals here
        except (Error, MemoryError):
            self._running = False
            raise
        except BaseException as interrupt:
            self._abandon(f"rank {self._world.rank} was interrupted: {type(interrupt).__name__}")
            raise
        self._running = False
        self._held.clear()
        self._flat.push(self._frozen)
        self._note(report)
        self._hooks.reset()
        stepped(self)

    @contextlib.contextmanager
    def _all_fail(self):
        """An error here is one of all ranks: they may have begun what this one cannot."""
        try:
            yield
        except BaseException as problem:
            self._end_world(str(problem) or type(problem).__name__)
            raise

    def _end_world(self, reason):
        if self._running:
            self._abandon(reason)
        elif self._world.size > 1 and not self._broken:
            self._broken = reason
            self._world.fail(reason)

    def _abandon(self, reason):
        """Ends a step that has begun: the world fails with this reason."""
        if not self._running or self._pid != os.getpid():  # a forked child has no part in it
            return
        self._running = False
        self._broken = self._broken or reason
        self._world.fail(reason)
        report = library.Report()
        while library.lib.pride_optimizer_finish(
                self._handle, int(SLICE_S * 1000), c.byref(report)) == library.PENDING:
            pass

    def _note(self, report):
        self._last = {name: getattr(report, name) for name, _ in report._fields_[1:]}
        self._last["skipped"] = bool(report.skipped)
        self._last["note"] = library.lib.pride_optimizer_note(self._handle).decode()
        self._totals["skipped" if report.skipped else "steps"] += 1
        for name in ("bytes_sent", "bytes_received", "messages_sent"):
            self._totals[name] += self._last[name]

    @property
    def _maximize(self):
        return bool(self.param_groups[0]["maximize"])

    def _group_values(self, group, number=None):
        """The group's values as libpride takes them; NaN there is a value that a method lacks."""
        given = {name: group[name] for name in ("lr", "weight_decay", "eps") if name in group}
        betas = betas_of(_info(self._settings["method"]), group.get("betas", ()))
        given.update(zip(("beta1", "beta2"), betas))
        values = library.Group(*[float("nan")] * 5)
        for name, value in given.items():
            value = float(value)
            if value != value:
                raise InvalidArgument(
                    f"pride: {name} of {'a group' if number is None else f'group {number}'} is NaN")
            setattr(values, name, value)
        return values

    def _frozen_now(self):
        """Indices of parameters that are not trained. A parameter that no rank uses is decayed all
        the same, as libpride has it; these are not, as in torch. With overlap, ranks agree on them
        in the first steps only: one that is frozen later is decayed."""
        return {i for i, slot in enumerate(self._slots)
                if not slot.param.requires_grad and slot.param.grad is None}

    def _groups_digest(self):
        return digest(b"".join(self._sent_groups) + bytes([self._maximize]))

    def _members(self):
        return [[id(p) for p in group["params"]] for group in self.param_groups]

    def _send_groups(self):
        if self._members() != self._built:
            raise InvalidArgument("pride: the parameters in optimizer.param_groups are not those "
                                  "that the optimizer was made with; use add_param_group(), or "
                                  "make a new optimizer")
        self._check_maximize()
        for g, group in enumerate(self.param_groups):
            values = self._group_values(group, g)
            if bytes(values) != self._sent_groups[g]:
                library.call("pride_optimizer_set_group", self._handle, g, c.byref(values))
                self._sent_groups[g] = bytes(values)

    def _hash(self, flat):
        out = c.c_uint64()
        library.call("pride_hash", self._layout, flat.data_ptr(), c.byref(out))
        return out.value


class _Amp:
    """What a GradScaler says of a step: an argument in torch 1.13, attributes in 2.x."""

    def __init__(self, optimizer, scaler):
        self._optimizer, self._scaler = optimizer, scaler
        self._found = getattr(optimizer, "found_inf", None)
        self.used = scaler is not None or self._found is not None
        self.scale = None  # what gradients are to be multiplied with
        self.found_inf = False
        self._flags = {}  # the scaler's own, by device

    def read(self):
        if self._scaler is not None:
            self._read_scaler()
        elif self._found is not None:
            scale = getattr(self._optimizer, "grad_scale", None)
            self.scale = None if scale is None else 1.0 / float(scale)
            self.found_inf = float(self._found) != 0

    def _read_scaler(self):
        scaler, number = self._scaler, id(self._optimizer)
        if scaler._per_optimizer_states[number]["stage"].name == "READY":
            scaler._check_inf_per_device(self._optimizer)
            self.scale = 1.0 / float(scaler._get_scale_async())
        self._flags = scaler._per_optimizer_states[number]["found_inf_per_device"]
        if not self._flags:  # no gradient on this rank: its scaler follows the others
            scale = scaler._get_scale_async()
            self._flags[scale.device] = torch.zeros(1, device=scale.device)
        self.found_inf = any(t.item() != 0 for t in self._flags.values())

    def share_inf(self):
        """All ranks' scalers back off alike, where torch lets us write their flags (1.13)."""
        for tensor in self._flags.values():
            tensor.fill_(1.0)
