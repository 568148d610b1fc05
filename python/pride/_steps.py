# The steps of an optimizer: as a whole, or begun in backward.
# SPDX-License-Identifier: Apache-2.0
import ctypes as c
import sys
import threading

import torch

from . import _groups, _units
from . import _library as library
from ._amp import FOUND, NOT_FOUND, Amp
from ._device import memory_at
from ._hashes import same_bits
from ._joining import Joining
from ._native_step import GRACE_S
from ._ranks import locked
from ._state import stepped
from .errors import CommError, Error, InvalidArgument, flag

CHECKED_STEPS = 2  # first steps, in which ranks compare their gradients
_RARE = 256


class Steps(Joining):
    """A mixin of Optimizer."""

    def _step(self, closure, scaler):
        loss = interrupt = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._usable()
        self._thread = threading.get_ident()
        with self._lock, torch.no_grad():
            if self._between is not None:
                self._between.before_step()
            amp = Amp(self, scaler)
            if amp.used and self._settings["overlap"]:
                self._native.end("a GradScaler was used with overlap=True")
                raise InvalidArgument("pride: a GradScaler needs overlap=False: an overflow is "
                                      "known only after backward")
            unused = self._hooks.unused()
            values, agree = self._open(amp, unused)
            if values is not None:
                self._end_with(agree, values, unused)
                interrupt = self._finish()
                if self._scaled and self._last["skipped"]:
                    amp.share_inf()
            if self._between is not None:
                self._between.stepped()
        if interrupt is not None:
            raise interrupt
        return loss

    def _open(self, amp, unused):
        """Begins a step whose gradients are complete, unless backward has. Returns the gradients in
        _gradients()'s form, or None if all ranks skip the step; and a function that compares the
        ranks' rows, or None if that was done.

        Rows travel beside the first bucket, unless ranks need them before they encode: in the first
        steps, so that a refusal changes nothing; with nodes; and if the host reads found_inf."""
        values, compared, begun = [], [], self._ranks.in_step
        checked = self._checks_left > 0 and self._ranks.voters.size > 1 and not begun

        def prepare():
            if begun:
                self._check_unchanged()
            amp.mark(unused)
            if self._ranks.nodes:
                unused[:] = self._ranks.nodes.average(unused)
            if not begun:
                self._table.collect_gradients()
            values.extend(self._gradients(unused))
            amp.read()
            if checked:
                values[:] = self._with_copies(values, unused)
            compared.extend(self._gradients(unused, ()) if begun else values)
            if not begun:
                self._prepare(amp.scale)

        row = self._send_step(prepare, amp, checked, unused, compared, lambda: begun or not (
            checked or self._rows_first or not self._native.may_wait or amp.is_read or
            {FOUND, NOT_FOUND} & self._scalers))

        def agree():
            return self._agree_on_step(row, amp, checked, unused, compared)

        if not row.begins and not agree():
            return None, None
        if not begun:
            with row:
                self._scaled = self._expects_frames(amp) if row.begins else self._scaled
                self._native.begin(amp.factor, self._scaled, row.begins)
        return values, agree if row.begins else None

    def _end_with(self, agree, values, unused):
        """Hands the gradients over. Then compares the ranks' rows, while buckets are exchanged."""
        failure = None
        with self._native.all_fail():
            try:
                self._hand_over(values, unused)
                if agree is not None:
                    self._native.start_end()
            except CommError as problem:
                failure = problem
            if agree is not None:
                agree()  # raises what a row says, which may be the reason of the failure
            if failure is not None:
                raise failure
            self._native.give_permission()

    def _gradients(self, unused, handed=None):
        """Slot.gradient() of each parameter; None if it is unused or handed over already."""
        handed = self._native.handed if handed is None else handed
        return [None if missing or i in handed else slot.gradient()
                for i, (slot, missing) in enumerate(zip(self._slots, unused))]

    def _with_copies(self, values, unused):
        """_gradients() to compare, with copies of those that libpride cannot read."""
        return [slot.place.copy(slot.grad) if value is None and not missing else value
                for slot, value, missing in zip(self._slots, values, unused)]

    def _send_frozen(self, frozen=None):
        frozen = self._frozen_now() if frozen is None else frozen
        if frozen != self._frozen:
            library.call("pride_optimizer_set_frozen", self._handle, (c.c_uint8 * len(self._slots))(
                *(i in frozen for i in range(len(self._slots)))))
            self._frozen = frozen

    def _prepare(self, scale=None):
        """Passes addresses, groups, frozen flags and the factor to libpride before a step."""
        if self._holds_common:
            raise InvalidArgument("pride: a step while the model has the common parameters: call "
                                  "to_local() before the next gradient" + (
                                      ", or the model or its modules, with gradients enabled: no such "
                                      "forward pass was seen since the last step"
                                      if self._between is not None else ""))
        self._table.fill()
        self._views.follow(self.state)
        self._send_groups()
        _units.check_rates(
            self.param_groups, [self._defaults_of(group)["lr"] for group in self.param_groups],
            self._first_rates, self._slots, self._warn_once)
        self._send_frozen()
        factor = (1.0 if scale is None else scale) * (-1 if self.param_groups[0]["maximize"] else 1)
        if factor != self._factor:
            library.call("pride_optimizer_set_gradient_factor", self._handle, factor)
            self._factor = factor

    @locked
    def _gradient_complete(self, index):
        """Called in backward, with overlap."""
        slot = self._slots[index]
        self._usable()
        if self._checks_left > 0 and self._ranks.world.size > 1:
            return  # the first steps run as a whole
        with torch.no_grad():
            if not self._ranks.in_step:
                with self._native.all_fail():
                    self._prepare()
                self._native.begin(waits=True)
                self._watch_backward()
                self._native.keep(each.param for each in self._slots)
            with self._native.all_fail():
                if index in self._native.handed:
                    raise InvalidArgument(
                        f"pride: {slot.name} has a second gradient before step(), of a second "
                        "or repeated backward: with overlap=True only the last "
                        "backward before a step may be outside optimizer.no_sync(). The backward of "
                        "another model that reaches this one (of a GAN's generator) belongs there, "
                        "too")
                grad, values = slot.param.grad, slot.gradient()
                # DDP writes gradients again at the end of backward: a copy keeps the present values
                if values is None or self._hooks.is_shared(slot):
                    values = slot.place.copy(grad)
                self._native.handed[index] = (memory_at(grad), grad._version,
                                       None if values is grad else values)
                self._native.ready(index, slot, values.detach())
                if self._settings.get("release_gradients"):
                    self._release()

    def _release(self):
        """Frees the gradients that libpride has encoded."""
        n = len(self._slots)
        tensors, found = (c.c_uint64 * n)(), c.c_uint64()
        library.call("pride_optimizer_take_released", self._handle, tensors, n, c.byref(found))
        for i in tensors[:found.value]:
            self._slots[i].param.grad = None
            self._native.held.pop(i, None)
            self._native.handed[i] = None

    def _copy(self, index):
        slot = self._slots[index]
        return slot.place.copy(slot.grad)

    def _hand_over(self, values, unused):
        """Hands gradients over from the last to the first: exchanges begin with the last bucket."""
        for i in reversed(range(len(values))):
            if i in self._native.handed:
                continue
            copied = values[i] is None and not unused[i]
            self._native.ready(i, self._slots[i], self._copy(i) if copied else values[i])

    def _check_unchanged(self):
        """For a step that began in backward: refuses changes since then, before more is read."""
        if self._table.has_moved():
            raise InvalidArgument("pride: the memory of a parameter was replaced after backward, "
                                  "when the exchange had begun: use overlap=False")
        for i in self._native.handed:
            if not self._as_handed(i):
                raise InvalidArgument(
                    f"pride: the gradient of {self._slots[i].name} was changed after backward, "
                    "when its exchange had begun (clipping? another backward? DistributedDataParallel "
                    "without pride.local_gradients()?): use overlap=False")

    def _as_handed(self, index):
        """False if the gradient changed since the hand-over. DDP writes gradients again at the end
        of backward, with the same values."""
        slot, handed = self._slots[index], self._native.handed[index]
        grad = slot.param.grad
        if handed is None:  # released
            return grad is None
        address, version, copy = handed
        if grad is None or grad.layout != torch.strided:
            return False
        if slot.n == 0 or (address, version) == (memory_at(grad), grad._version):
            return True
        return copy is not None and grad.shape == slot.shape and same_bits(grad, copy)

    def _finish(self):
        """The end of a step. Returns the exception of a signal handler that ran meanwhile."""
        self._rows_first = True
        try:
            with self._ranks.failures():
                report, interrupt = self._native.wait_for_end(GRACE_S)
                self._table.written(self._frozen, report)
        except (Error, MemoryError):
            raise
        except BaseException as interrupt:  # Ctrl-C
            self._native.end(f"rank {self._ranks.world.rank} was interrupted: {type(interrupt).__name__}")
            raise
        self._rows_first = False
        self._note(report)
        self._hooks.reset()
        stepped(self)
        self._plan_checks()
        return interrupt

    def _plan_checks(self):
        """To read a gradient on a GPU would wait for backward: there every 256th step is checked as
        the first ones are."""
        if self._native.steps_done() % _RARE == 0 and any(
                slot.device.type != "cpu" for slot in self._slots):
            self._checks_left = max(1, self._checks_left)

    def _watch_backward(self):
        self._in_backward = True

        def ended():
            self._in_backward = False

        try:
            torch.autograd.Variable._execution_engine.queue_callback(ended)
        except RuntimeError:  # hooks may run outside of torch's own engine
            ended()

    def _leave_backward(self):
        """For state_dict() with overlap, in a step that backward began: the step ends if backward was
        interrupted, and the thread that trains is out of it."""
        problem = sys.exc_info()[0]
        is_interrupt = problem is not None and not issubclass(problem, Exception)
        if self._thread != threading.get_ident() or not (self._in_backward or is_interrupt):
            raise InvalidArgument(
                "pride: state_dict() between backward and step() with overlap=True: call it after "
                "step(), or after an interrupt in its `except` block")
        self._native.abandon(f"rank {self._ranks.world.rank} saved its state after "
                      f"{'an interrupt' if problem is None else problem.__name__} in backward")

    def _note(self, report):
        self._last = {name: getattr(report, name) for name, _ in report._fields_[1:]}
        self._last["skipped"] = bool(report.skipped)
        self._last["note"] = library.lib.pride_optimizer_note(self._handle).decode()
        self._totals["skipped" if report.skipped else "steps"] += 1
        for name in ("bytes_sent", "bytes_received", "messages_sent"):
            self._totals[name] += self._last[name]
        for name in ("bytes_sent", "bytes_received") if self._ranks.nodes else ():
            self._last["node_" + name] = getattr(self._ranks.nodes, name)
            self._totals["node_" + name] += getattr(self._ranks.nodes, name)
            setattr(self._ranks.nodes, name, 0)

    def _group_values(self, group, index=None):
        return _groups.values_of(self._settings, group, index)

    def _defaults_of(self, group):
        return _groups.defaults_of(self._settings, group, self.defaults)

    def _methods(self):
        return _groups.by_method(self._settings, self.param_groups)

    def _first_rate(self, group, values):
        return max(values.lr, _groups.info_in(self._settings, group).lr)

    def _check_maximize(self):
        s, groups = self._settings, self.param_groups
        _units.check_keys(groups, [(_groups.method_of(s, group)[0], self._defaults_of(group))
                                   for group in groups], s, self._warn_once)
        if len({flag(f"maximize of group {g}", group["maximize"]) for g, group in enumerate(groups)}) > 1:
            raise InvalidArgument("pride: maximize differs between groups")

    def _frozen_now(self):
        """Indices of frozen parameters, which steps do not change, as in torch. An unused parameter
        still decays."""
        if self._ranks.nodes:
            self._ranks.nodes.frozen = {id(slot.param) for slot in self._ranks.nodes.slots if _is_frozen(slot)}
        return {i for i, slot in enumerate(self._slots) if _is_frozen(slot)}

    def _frozen_names(self):
        return sorted(self._frozen) if not self._ranks.nodes else [
            slot.name for slot in self._ranks.nodes.slots if _is_frozen(slot)]

    def _members(self):
        return [[id(p) for p in group["params"]] for group in self.param_groups]

    def _send_groups(self):
        if self._members() != self._built:
            raise InvalidArgument("pride: the parameters in optimizer.param_groups are not those "
                                  "that the optimizer was made with; use add_param_group(), or "
                                  "make a new optimizer")
        for g, (group, fixed) in enumerate(zip(self.param_groups, self._fixed)):
            _groups.check_fixed(group, fixed, g)
        self._check_maximize()
        for g, group in enumerate(self.param_groups):
            values = self._group_values(group, g)
            if bytes(values) != self._sent_groups[g]:
                library.call("pride_optimizer_set_group", self._handle, g, c.byref(values))
                self._sent_groups[g] = bytes(values)

    def _hashes(self):
        """Hashes of this rank's parameters and of its node's (0 without nodes)."""
        return [self._hash(), self._ranks.nodes.hash() if self._ranks.nodes else 0]

    def _hash(self):
        """A hash of the parameters; with local steps, of the common parameters."""
        self._table.fill()
        out = c.c_uint64()
        library.call("pride_optimizer_hash", self._handle, c.byref(out))
        return out.value


def _is_frozen(slot):
    return not slot.param.requires_grad and slot.param.grad is None
