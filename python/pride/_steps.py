# The steps of an optimizer that exchanges with other processes.
# SPDX-License-Identifier: Apache-2.0
from ._native_step import GRACE_S
from .errors import CommError, Error, InvalidArgument


class Steps:
    """Steps with the gradients of this rank."""

    def __init__(self, parameters, native, agreement, backward, state, traffic):
        self._parameters, self._native = parameters, native
        self._ranks, self._agreement, self._backward = parameters.ranks, agreement, backward
        self._state, self._traffic = state, traffic

    def run(self, amp):
        """One step. Returns the exception of a signal handler that ran meanwhile."""
        self._backward.entered()
        if amp.used and self._parameters.groups.settings["overlap"]:
            self._native.end("a GradScaler was used with overlap=True")
            raise InvalidArgument("pride: a GradScaler needs overlap=False: an overflow is "
                                  "known only after backward")
        unused = self._parameters.hooks.unused()
        values, agree = self._open(amp, unused)
        if values is None:
            return None
        self._hand_over_all(agree, values, unused)
        interrupt = self._finish()
        if self._agreement.scaled and self._traffic.last["skipped"]:
            amp.share_inf()
        return interrupt

    def _open(self, amp, unused):
        """Begins a step whose gradients are complete, unless backward has. Returns the gradients in
        gradients()'s form, or None if all ranks skip the step; and a function that compares the
        ranks' rows, or None if that was done.

        Rows travel beside the first bucket, unless ranks need them before they encode: in the first
        steps, so that a refusal changes nothing; with nodes; and if the host reads found_inf."""
        values, compared, begun = [], [], self._native.is_in_step()
        parameters, agreement = self._parameters, self._agreement
        checked = agreement.is_checked() and not begun

        def prepare():
            if begun:
                self._backward.check_unchanged()
            amp.mark(unused)
            if self._ranks.nodes:
                unused[:] = self._ranks.nodes.average(unused)
            if not begun:
                parameters.table.collect_gradients()
            values.extend(parameters.gradients(unused, self._native.handed))
            amp.read()
            if checked:
                values[:] = parameters.with_copies(values, unused)
            compared.extend(parameters.gradients(unused) if begun else values)
            if not begun:
                parameters.prepare(amp.scale)

        row = agreement.send(prepare, amp, checked, unused, compared, lambda: begun or not (
            checked or agreement.rows_first or not self._native.may_wait or amp.is_read or
            agreement.must_read_scaler()))

        def agree():
            return agreement.compare(row, amp, checked, unused, compared)

        if not row.begins and not agree():
            return None, None
        if not begun:
            with row:
                if row.begins:
                    agreement.expects_frames(amp)
                self._native.begin(amp.factor, agreement.scaled, row.begins)
        return values, agree if row.begins else None

    def _hand_over_all(self, agree, values, unused):
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

    def _hand_over(self, values, unused):
        """From the last to the first: exchanges begin with the last bucket."""
        for i in reversed(range(len(values))):
            if i in self._native.handed:
                continue
            slot, given = self._parameters.slots[i], values[i]
            if given is None and not unused[i]:
                given = slot.place.copy(slot.grad)
            self._native.ready(i, slot, given)

    def _finish(self):
        """The end of a step. Returns the exception of a signal handler that ran meanwhile."""
        self._agreement.rows_first = True
        try:
            with self._ranks.failures():
                report, interrupt = self._native.wait_for_end(GRACE_S)
                self._parameters.table.written(self._parameters.frozen, report)
        except (Error, MemoryError):
            raise
        except BaseException as interrupt:  # Ctrl-C
            self._native.end(f"rank {self._ranks.world.rank} was interrupted: {type(interrupt).__name__}")
            raise
        self._traffic.add(report)
        self._parameters.hooks.reset()
        self._state.stepped()
        self._agreement.stepped()
        return interrupt

    def serve_until_all_end(self, lock, check_usable):
        """Steps of a rank without data while others still have some: it serves its shards and
        abstains."""
        unused = [True] * len(self._parameters.slots)
        while True:
            check_usable()
            row = self._ranks.send("end of join", self._parameters.prepare)
            with lock:
                with row:
                    rows = self._ranks.rows(row)
                    if not any(each[0] != rows[self._ranks.world.rank][0] for each in rows):
                        return
                    checked = self._agreement.checks_left > 0
                    if not self._agreement.evaluate(rows, None, checked, unused, [None] * len(unused)):
                        continue
                    self._native.begin(scaled=self._agreement.scaled)
                with self._native.all_fail():
                    self._hand_over([None] * len(unused), unused)
                interrupt = self._finish()  # its errors are those of all ranks
            if interrupt is not None:
                raise interrupt
