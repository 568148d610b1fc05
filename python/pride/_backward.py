# overlap=True: steps that begin in backward, which hands over each gradient when it is complete.
# SPDX-License-Identifier: Apache-2.0
import ctypes as c
import sys
import threading

import torch

from . import _library as library
from ._device import memory_at
from ._hashes import same_bits
from .errors import InvalidArgument


class Backward:
    """The part of a step that lies in backward."""

    def __init__(self, parameters, native, releases):
        """releases: gradients are freed as soon as they are encoded."""
        self._parameters, self._native, self._releases = parameters, native, releases
        self._runs = False   # backward has begun the step, and has not ended
        self._thread = None  # the thread that calls step()

    def entered(self):
        """This thread calls step()."""
        self._thread = threading.get_ident()

    def complete(self, index):
        """The gradient of a slot is complete: backward hands it over."""
        slot, native = self._parameters.slots[index], self._native
        if not native.is_in_step():
            with native.all_fail():
                self._parameters.prepare()
            native.begin(waits=True)
            self._watch()
            native.keep(each.param for each in self._parameters.slots)
        with native.all_fail():
            if index in native.handed:
                raise InvalidArgument(
                    f"pride: {slot.name} has a second gradient before step(), of a second "
                    "or repeated backward: with overlap=True only the last "
                    "backward before a step may be outside optimizer.no_sync(). The backward of "
                    "another model that reaches this one (of a GAN's generator) belongs there, "
                    "too")
            grad, values = slot.param.grad, slot.gradient()
            # DDP writes gradients again at the end of backward: a copy keeps the present values
            if values is None or self._parameters.hooks.is_shared(slot):
                values = slot.place.copy(grad)
            native.handed[index] = (memory_at(grad), grad._version,
                                    None if values is grad else values)
            native.ready(index, slot, values.detach())
            if self._releases:
                self._release()

    def _release(self):
        """Frees the gradients that libpride has encoded."""
        n = len(self._parameters.slots)
        tensors, found = (c.c_uint64 * n)(), c.c_uint64()
        library.call("pride_optimizer_take_released", self._parameters.handle, tensors, n,
                     c.byref(found))
        for i in tensors[:found.value]:
            self._parameters.slots[i].param.grad = None
            self._native.held.pop(i, None)
            self._native.handed[i] = None

    def check_unchanged(self):
        """Refuses changes since gradients were handed over, before more is read."""
        if self._parameters.table.has_moved():
            raise InvalidArgument("pride: the memory of a parameter was replaced after backward, "
                                  "when the exchange had begun: use overlap=False")
        for i in self._native.handed:
            if not self._as_handed(i):
                raise InvalidArgument(
                    f"pride: the gradient of {self._parameters.slots[i].name} was changed after "
                    "backward, when its exchange had begun (clipping? another backward? "
                    "DistributedDataParallel without pride.local_gradients()?): use overlap=False")

    def _as_handed(self, index):
        """False if the gradient changed since the hand-over. DDP writes gradients again at the end
        of backward, with the same values."""
        slot, handed = self._parameters.slots[index], self._native.handed[index]
        grad = slot.param.grad
        if handed is None:  # released
            return grad is None
        address, version, copy = handed
        if grad is None or grad.layout != torch.strided:
            return False
        if slot.n == 0 or (address, version) == (memory_at(grad), grad._version):
            return True
        return copy is not None and grad.shape == slot.shape and same_bits(grad, copy)

    def _watch(self):
        self._runs = True

        def ended():
            self._runs = False

        try:
            torch.autograd.Variable._execution_engine.queue_callback(ended)
        except RuntimeError:  # hooks may run outside of torch's own engine
            ended()

    def leave(self):
        """For state_dict() in a step that backward began: the step ends if backward was interrupted,
        and the thread that trains is out of it."""
        problem = sys.exc_info()[0]
        is_interrupt = problem is not None and not issubclass(problem, Exception)
        if self._thread != threading.get_ident() or not (self._runs or is_interrupt):
            raise InvalidArgument(
                "pride: state_dict() between backward and step() with overlap=True: call it after "
                "step(), or after an interrupt in its `except` block")
        self._native.abandon(f"rank {self._parameters.ranks.world.rank} saved its state after "
                             f"{'an interrupt' if problem is None else problem.__name__} in backward")
