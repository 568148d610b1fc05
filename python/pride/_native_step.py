# A step of libpride on this rank: begun, given gradients, ended; and its failure, which fails all ranks.
# SPDX-License-Identifier: Apache-2.0
import contextlib
import math
import os
import threading
import time
import weakref

from . import _device
from . import _library as library
from ._lane import SLICE_S
from ._tensors import arrays_of, fill_array
from .errors import CommError, Error, InvalidArgument

GRACE_S = 0.5  # after a signal: a step that ends within it leaves all ranks alike


class _Permission:
    """Holds a step before its first apply. libpride calls `function` on a thread of its own."""

    def __init__(self):
        self._given, self._refusal = threading.Event(), None
        self.function = library.BEFORE_APPLY(self._wait)

    def ask(self):
        self._given.clear()

    def give(self, refusal=None):
        """With a refusal the step ends with its text."""
        self._refusal = refusal
        self._given.set()

    def _wait(self, _, why, size):
        self._given.wait()
        if self._refusal is None:
            return 0
        library.write_error(self._refusal, why, size)
        return 1


class NativeStep:
    """It knows of no torch optimizer: only of the ranks, of libpride's and of gradients."""

    def __init__(self, ranks):
        self._ranks = weakref.proxy(ranks)  # which calls end()
        self.pid = os.getpid()
        self._handle = self._place = None
        self._permission = _Permission()
        self.may_wait = False  # libpride asks for permission to apply
        self.handed = {}       # by index: gradients given to libpride in backward
        self.held = {}         # keeps alive what libpride reads in a step,
        self._held_params = []  # and what it writes
        self._array = library.Array()  # reused for each hand-over
        self._is_ending = False  # since start_end()
        self._early = None     # the report and the error of a step that start_end() found ended

    def check_usable(self):
        """Raises if no step can begin or go on."""
        if self.pid != os.getpid():
            raise Error(f"pride: this optimizer belongs to process {self.pid}, which forked this "
                        f"one ({os.getpid()}): make it after the fork")
        if self._ranks.broken:
            raise CommError(f"pride: no further steps: {self._ranks.broken}")
        if _device.is_capturing():
            text = ("during the capture of a CUDA graph: the exchange with other ranks cannot be "
                    "part of a graph. Capture forward and backward, with overlap=False, and call "
                    "step() after each replay")
            self.abandon(text)  # a step that began in an earlier backward
            raise InvalidArgument(f"pride: {text}")

    def ask_permission(self, options):
        """Options of an optimizer whose steps can wait for give_permission()."""
        options.before_apply = self._permission.function
        self.may_wait = True

    def set_optimizer(self, handle, place):
        """The native optimizer, None at the end, and where its method runs."""
        self._handle, self._place = handle, place

    def is_in_step(self):
        return self._ranks.in_step

    def steps_done(self):
        return library.lib.pride_optimizer_steps_done(self._handle)

    def begin(self, factor=None, scaled=False, waits=False):
        """scaled, factor: frames carry some rank's found_inf, and a tensor of one value, where the
        method runs, scales gradients. waits: nothing is applied before give_permission()."""
        self._ranks.operation = "step"
        self._permission.give()
        if waits:
            self._permission.ask()
        if scaled:
            self.held["factor"] = factor
            library.call("pride_optimizer_scale_next_step", self._handle, None if factor is None else
                         arrays_of([factor], self._place))
        self._ranks.call("pride_optimizer_begin", self._handle, None, None)
        self._ranks.in_step = True

    def keep(self, params):
        """Keeps the memory of parameters, which the caller may replace before the end."""
        self._held_params = [p.detach() for p in params]

    def ready(self, index, slot, values):
        """Hands a gradient to libpride, which reads it until the step ends; None: unused."""
        slot.place.follow(self._handle)
        if values is None:
            status = library.lib.pride_optimizer_ready(self._handle.value, index, 1)
        else:
            self.held[index] = values
            fill_array(self._array, values, slot.n, slot.place)
            status = library.lib.pride_optimizer_ready_at(self._handle.value, index, self._array)
        if status != library.OK:
            with self._ranks.failures():
                library.check(status)

    def give_permission(self):
        self._permission.give()

    def start_end(self):
        """Lets libpride end the step in a thread of its own."""
        report = library.Report(step=-1)
        self._place.follow(self._handle)
        self._is_ending = True
        status = library.lib.pride_optimizer_finish(self._handle, 0, report)
        if status != library.PENDING:
            try:
                library.check(status)
                self._early = report, None
            except (Error, MemoryError) as problem:
                self._early = report, problem

    def wait_for_end(self, grace_s=0.0):
        """The report of the step, and the exception of a signal handler that ran in the wait, or
        while ranks compared rows: the step has ended within the grace since then."""
        if not self._is_ending:  # the thread that ends the step has the stream
            self._place.follow(self._handle)
        self._is_ending = False
        (report, failure), early = self._early or (library.Report(step=-1), None), self._early
        status = library.PENDING if early is None else library.OK
        interrupt, self._early = self._ranks.world.take_interrupt(), None
        until = math.inf if interrupt is None else time.monotonic() + grace_s
        while status == library.PENDING:
            try:
                status = library.lib.pride_optimizer_finish(self._handle, int(SLICE_S * 1000), report)
                if status == library.PENDING and time.monotonic() > until:
                    raise interrupt
            except BaseException as problem:
                if interrupt is not None or not grace_s:
                    raise
                interrupt, until = problem, time.monotonic() + grace_s
                if report.step >= 0:  # it has ended, and the status is lost
                    status = library.OK
        self._ranks.in_step, self.handed, self.held, self._held_params = False, {}, {}, []
        if interrupt is not None and (failure is not None or status != library.OK):
            raise interrupt
        if failure is not None:
            raise failure
        library.check(status)
        return report, interrupt

    @contextlib.contextmanager
    def all_fail(self):
        """An error in the block fails all ranks, because others may have begun the step."""
        try:
            yield
        except BaseException as problem:
            self.end(str(problem) or type(problem).__name__)
            raise

    def end(self, reason):
        """Ends the optimizer on all ranks, in a step or between steps."""
        if self._ranks.in_step:
            self.abandon(reason)
        elif self._ranks.world.size > 1 and not self._ranks.broken:
            self._ranks.broken = reason
            self._ranks.fail(reason)

    def abandon(self, reason):
        """Ends a step that has begun: the world fails with this reason."""
        if not self._ranks.in_step or self.pid != os.getpid():  # the step is not a forked child's
            return
        self._ranks.broken = self._ranks.broken or reason
        self._ranks.fail(reason)
        self._permission.give(reason)
        with contextlib.suppress(Error, MemoryError):
            self.wait_for_end()
