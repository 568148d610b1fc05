# Virtual workers: one process plays N workers, one after the other.
# SPDX-License-Identifier: Apache-2.0
import contextlib

import torch

from . import _library as library
from ._ranks import locked
from ._state import stepped
from ._tensors import arrays_of
from ._world import listed
from .errors import InvalidArgument, whole, without_frames


def check_setting(settings):
    """Checks the constructor's arguments."""
    count = settings["virtual_workers"]
    if count is None:
        return
    whole("virtual_workers", count, 1, 1024)
    for name in ("overlap", "coordinator"):
        if settings[name] not in (None, False):
            raise InvalidArgument(f"pride: virtual_workers and {name}: give one of them")


class VirtualWorkers:
    """A mixin of Optimizer."""

    @property
    def _n_workers(self):
        """The number of virtual workers; 0: this process is one rank."""
        return self._settings.get("virtual_workers") or 0  # older pickles have none

    def _n_ranks(self):
        return self._n_workers or self._ranks.voters.size

    @contextlib.contextmanager
    def worker(self, number: int):
        """``with optimizer.worker(i): loss.backward()``: the gradients of virtual worker i.

        The block begins with gradients of None and hands them over at its end, so one set of
        buffers serves all workers. With local steps the model has the worker's own parameters
        inside the block. After one block for each of the ``virtual_workers``, in any order,
        :meth:`step` runs the step of all. A block that raises hands nothing over.
        """
        self._usable()
        self._check_worker(number)
        with torch.no_grad():
            self._clear_gradients()
            if not self._handed_workers:
                self._prepare()
            if library.lib.pride_optimizer_period(self._handle) > 1:
                self._ranks.call("pride_optimizer_to_worker", self._handle, number, None)
                self._table.written(self._frozen)
        yield
        with torch.no_grad():
            self._hand_over_worker(number)
            self._clear_gradients()

    def _check_worker(self, number):
        if not self._n_workers:
            raise InvalidArgument("pride: worker() of an optimizer without virtual_workers: make "
                                  "it with virtual_workers=N")
        if isinstance(number, bool) or not isinstance(number, int) or not (
                0 <= number < self._n_workers):
            raise InvalidArgument(f"pride: worker({number!r}), there are {self._n_workers}: from 0 "
                                  f"to {self._n_workers - 1}")
        if number in self._handed_workers:
            raise InvalidArgument(f"pride: worker({number}) twice in a step: its gradients were "
                                  "handed over already")

    def _clear_gradients(self):
        for slot in self._slots:
            slot.param.grad = None

    @locked
    def _hand_over_worker(self, number):
        unused = self._hooks.unused()
        grads = [None if missing else slot.place.copy(slot.param.grad) if value is None else value
                 for slot, value, missing in zip(self._slots, self._gradients(unused), unused)]
        arrays = arrays_of(grads, self._slots[0].place)
        self._slots[0].place.follow(self._handle)
        self._ranks.call("pride_optimizer_hand_over", self._handle, number, None, arrays, len(arrays))
        self._hooks.reset()
        self._handed_workers.add(number)

    @without_frames
    def _step(self, closure, scaler):
        if not self._n_workers:
            return super()._step(closure, scaler)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._usable()
        if scaler is not None or getattr(self, "found_inf", None) is not None:
            raise InvalidArgument("pride: a GradScaler with virtual_workers: their gradients are "
                                  "handed over before it can check them; use bfloat16")
        missing = set(range(self._n_workers)) - self._handed_workers
        if missing:
            raise InvalidArgument(f"pride: step() without the gradients of worker(s) "
                                  f"{listed(sorted(missing))} of {self._n_workers}: each needs a "
                                  "block `with optimizer.worker(i):` first")
        self._step_workers()
        return loss

    @locked
    @torch.no_grad()
    def _step_workers(self):
        self._table.fill()
        report = library.Report()
        handed, self._handed_workers = self._handed_workers, set()
        try:
            self._ranks.call("pride_optimizer_step_workers", self._handle, None, report)
        except InvalidArgument:  # nothing was changed
            self._handed_workers = handed
            raise
        finally:  # a failed step has written parameters, too
            self._table.written(self._frozen)
        self._note(report)
        stepped(self)
