# One Gloo group as a lane of libpride (the communicator of one thread), and its rendezvous.
# SPDX-License-Identifier: Apache-2.0
#
# Each lane has its own Gloo group over host memory, whatever the backend of the caller's group:
# collectives of two threads in one group would mix.
import contextlib
import ctypes as c
import datetime
import itertools
import os
import time
import weakref

import torch
import torch.distributed as dist

from . import _library as library
from .errors import CommError

_LATE_S = 0.5  # after a failure or a signal, what arrives within it still counts
SLICE_S = 0.2  # waits return to Python this often, for Ctrl-C and for failures of other ranks
_numbers = itertools.count(1)
_lanes = {}  # by number, which is the `user` of the callbacks
_OWN_CODE = tuple(os.path.join(os.path.dirname(os.path.abspath(file)), "")
                  for file in (__file__, dist.__file__))


def bytes_at(address, n):
    """A tensor over memory that libpride owns."""
    if n == 0:
        return torch.empty(0, dtype=torch.uint8, device="cpu")
    return torch.frombuffer((c.c_uint8 * n).from_address(address), dtype=torch.uint8)


def size_of(dtype):
    """Bytes of a value."""
    return torch.empty(0, dtype=dtype, device="cpu").element_size()


def _leak(thing):
    """Keeps an object for ever: the destructor of a Gloo group waits for its operations, which may
    hang."""
    c.pythonapi.Py_IncRef(c.py_object(thing))


class _Rendezvous(dist.Store):
    """The store over which a Gloo group connects. Its waits return to Python and end when the world
    fails. Waits of torch's own stores do neither, and block the store for other threads."""

    def __init__(self, world, name):
        super().__init__()
        self._world, self._name = world, name

    def set(self, key, value):
        self._world.ask(lambda store: store.set(f"{self._name}/{key}", value))
        self._world.ask(lambda store: store.add(f"{self._name}/{key}/is", 1))

    def get(self, key):
        self.wait([key])
        return self._world.ask(lambda store: store.get(f"{self._name}/{key}"))

    def check(self, keys):
        return self._world.ask(lambda store: all(
            store.add(f"{self._name}/{key}/is", 0) > 0 for key in keys))

    def wait(self, keys, timeout=None):
        if not self._world.wait_for(lambda: self.check(keys)):
            raise CommError(f"no connection within {self._world.timeout.total_seconds():g} s")


def is_interrupt(problem):
    """Whether a signal handler raised it: Ctrl-C, or an exception whose innermost frame is neither
    pride's nor torch.distributed's. Errors of Gloo come from C and have no frame of their own."""
    if not isinstance(problem, Exception):
        return True
    frame = problem.__traceback__
    while frame.tb_next is not None:
        frame = frame.tb_next
    return not os.path.abspath(frame.tb_frame.f_code.co_filename).startswith(_OWN_CODE)


def _poll(work, until):
    pause = 1e-5
    while not work.is_completed() and time.monotonic() < until:
        time.sleep(pause)
        pause = min(1e-3, 2 * pause)


def _has_succeeded(work):
    try:
        return work.is_completed() and work.wait(datetime.timedelta(seconds=1)) is not False
    except RuntimeError:
        return False


def wait(world, start, timeout_ms, group, is_gloo=True):
    """Waits for the work started by start() in the group, or until the world fails."""
    deadline = time.monotonic() + timeout_ms / 1000
    work = None
    try:
        work = start()
        while True:
            left = max(0.001, min(SLICE_S, deadline - time.monotonic()))
            if not is_gloo:  # NCCL's wait would destroy the group at its time-out
                _poll(work, time.monotonic() + left)
            try:
                if is_gloo or work.is_completed():
                    work.wait(*([datetime.timedelta(seconds=left)] if is_gloo else []))
                    return
            except RuntimeError as problem:
                if is_interrupt(problem):
                    raise
                if work.is_completed():  # it may have ended right after the time-out: wait again
                    work.wait(datetime.timedelta(seconds=1))
                    return
            world.watch()
            world.check()
            if time.monotonic() > deadline:
                raise CommError(f"no response within {timeout_ms / 1000:g} s")
    except BaseException as problem:
        _leak(group)
        if work is not None:
            _leak(work)
        world.learn()  # a failing rank publishes its reason before its connections close
        if not is_interrupt(problem):
            world.check()
        raise


class Lane:
    """One Gloo group of some ranks of the world."""

    _TYPES = {0: torch.float32, 1: torch.int8, 3: torch.int32}  # the types that Gloo sums

    def __init__(self, world, ranks, name):
        self._world, self.ranks, self.name = weakref.ref(world), ranks, name
        self.n_groups = 0
        # in a thread: Gloo tries an address that does not respond five times, for its time-out each
        self.pg = world.within_timeout(lambda: dist.ProcessGroupGloo(
            _Rendezvous(world, name), ranks.index(world.rank), len(ranks),
            timeout=world.timeout + datetime.timedelta(seconds=60)))
        self.number = next(_numbers)
        _lanes[self.number] = self

    def transport(self, rank, size):
        """The lane's callbacks in libpride's form."""
        return library.Transport(
            rank=rank, size=size, name=b"torch.distributed", user=self.number, **_CALLBACKS)

    @property
    def world(self):
        """A weak reference, because the world owns its communicator, which owns this lane."""
        world = self._world()
        if world is None:
            raise CommError("the group is gone")
        return world

    def all_gather(self, mine):
        """Starts to gather a ctypes object from every rank. Returns a function that waits for the
        list. Its argument: whether a signal handler's exception may wait in world.interrupt."""
        world, n, size = self.world, len(self.ranks), c.sizeof(mine)
        sent = torch.frombuffer(bytearray(bytes(mine) * n), dtype=torch.uint8)
        received = torch.empty_like(sent)
        world.check()
        work = self.pg.alltoall_base(received, sent, [size] * n, [size] * n)

        def wait_for_all(keeps_interrupt=False):
            try:
                wait(world, lambda: work, 1000 * world.timeout.total_seconds(), self.pg)
            except BaseException as problem:
                interrupt = problem if is_interrupt(problem) else None
                if keeps_interrupt or interrupt is None:
                    _poll(work, time.monotonic() + _LATE_S)
                if not keeps_interrupt and interrupt is not None or not _has_succeeded(work):
                    raise
                world.interrupt = interrupt
            return list((type(mine) * n).from_buffer_copy(bytes(received.tolist())))

        return wait_for_all

    def all_to_all_v(self, send, send_sizes, recv, recv_sizes, timeout_ms):
        n = len(self.ranks)
        out, into = send_sizes[:n], recv_sizes[:n]
        self.world.check()
        self._wait(lambda: self.pg.alltoall_base(bytes_at(recv, sum(into)), bytes_at(send, sum(out)),
                                                 into, out), timeout_ms)

    def all_reduce(self, values, n, kind, timeout_ms):
        dtype = self._TYPES.get(kind)
        if dtype is None:
            return -1  # libpride sums by itself
        self.world.check()
        tensor = bytes_at(values, n * size_of(dtype)).view(dtype)
        self._wait(lambda: self.pg.allreduce([tensor]), timeout_ms)
        return 0

    def group(self, members, n, timeout_ms, new_user):
        self.n_groups += 1
        ranks = [self.ranks[m] for m in members[:n]]
        made = Lane(self.world, ranks, f"{self.name}/{self.n_groups}.{members[0]}")
        new_user[0] = made.number

    def check(self):
        self.world.check()

    def fail(self, reason):
        self.world.fail(reason.decode("utf-8", "replace"))

    def _wait(self, start, timeout_ms):
        wait(self.world, start, timeout_ms, self.pg)

    def release(self):
        _lanes.pop(self.number, None)
        self.pg = None


def _callback(kind, method):
    """A method of Lane as a callback of libpride. It catches every exception; libpride fails the
    world with its text."""
    def call(user, *arguments):
        *given, error, size = arguments
        lane = _lanes.get(user)
        try:
            if lane is None:
                raise CommError("the group is gone")
            return method(lane, *given) or 0
        except BaseException as problem:  # Ctrl-C too
            if lane is not None and is_interrupt(problem):
                lane.world.interrupt = problem
            text = str(problem) or type(problem).__name__
            library.write_error(" ".join(text.split()), error, size)
            return 1

    return kind(call)


def _quiet_callback(kind, method):
    """A callback that cannot fail."""
    def call(user, *arguments):
        with contextlib.suppress(BaseException):
            method(_lanes[user], *arguments)

    return kind(call)


_CALLBACKS = dict(
    all_to_all_v=_callback(library.ALL_TO_ALL_V, Lane.all_to_all_v),
    all_reduce=_callback(library.ALL_REDUCE, Lane.all_reduce),
    group=_callback(library.GROUP, Lane.group),
    check=_callback(library.CHECK, Lane.check),
    fail=_quiet_callback(library.FAIL, Lane.fail),
    release=_quiet_callback(library.RELEASE, Lane.release))
