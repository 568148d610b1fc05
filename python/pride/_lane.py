# One Gloo group as a lane of libpride, the communicator of a thread, and how it connects.
# SPDX-License-Identifier: Apache-2.0
#
# Each lane has a Gloo group of its own, over host memory, whatever the backend of the caller's group
# is: collectives of two threads in one group would mix.
import ctypes as c
import datetime
import itertools
import time
import weakref

import torch
import torch.distributed as dist

from . import _library as library
from .errors import CommError

SLICE_S = 0.2  # a wait returns to Python so often, for Ctrl-C and for failures of other ranks
_numbers = itertools.count(1)
_lanes = {}  # by number, which is the `user` of the callbacks


def _bytes(address, n):
    """A tensor over memory that libpride owns."""
    if n == 0:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer((c.c_uint8 * n).from_address(address), dtype=torch.uint8)


def _leak(thing):
    """Never destroyed: a Gloo group whose operations hang would wait for them in its destructor."""
    c.pythonapi.Py_IncRef(c.py_object(thing))


class _Rendezvous(dist.Store):
    """The store over which a Gloo group connects. Its waits end when the world fails, and return to
    Python: those of torch's own stores do neither, and keep other threads from the store."""

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
        world, pause = self._world, 0.001
        until = time.monotonic() + world.timeout.total_seconds()
        while not self.check(keys):
            world.check_store()
            if time.monotonic() > until:
                raise CommError(f"no connection within {world.timeout.total_seconds():g} s")
            time.sleep(pause)
            pause = min(SLICE_S, 2 * pause)


class Lane:
    """One Gloo group, of some ranks of the world."""

    _TYPES = {0: torch.float32, 1: torch.int8, 3: torch.int32}  # that Gloo sums

    def __init__(self, world, ranks, name):
        self._world, self.ranks, self.name = weakref.ref(world), ranks, name
        self.n_groups = 0
        self.pg = dist.ProcessGroupGloo(
            _Rendezvous(world, name), ranks.index(world.rank), len(ranks),
            timeout=world.timeout + datetime.timedelta(seconds=60))
        self.number = next(_numbers)
        _lanes[self.number] = self

    def transport(self, rank, size):
        """Its callbacks, as libpride takes them."""
        return library.Transport(
            struct_size=c.sizeof(library.Transport), rank=rank, size=size,
            name=b"torch.distributed", user=self.number, all_to_all_v=_all_to_all_v,
            all_reduce=_all_reduce, group=_group, check=_check, fail=_fail, release=_release)

    @property
    def world(self):
        """Not owned: the world owns its communicator, which owns this."""
        world = self._world()
        if world is None:
            raise CommError("the group is gone")
        return world

    def all_to_all_v(self, send, send_sizes, recv, recv_sizes, timeout_ms):
        n = len(self.ranks)
        out, into = send_sizes[:n], recv_sizes[:n]
        self.world.check()
        self._wait(lambda: self.pg.alltoall_base(_bytes(recv, sum(into)), _bytes(send, sum(out)),
                                                 into, out), timeout_ms)

    def all_reduce(self, values, n, kind, timeout_ms):
        dtype = self._TYPES.get(kind)
        if dtype is None:
            return False
        self.world.check()
        tensor = _bytes(values, n * torch.empty(0, dtype=dtype).element_size()).view(dtype)
        self._wait(lambda: self.pg.allreduce([tensor]), timeout_ms)
        return True

    def group(self, members):
        self.n_groups += 1
        ranks = [self.ranks[m] for m in members]
        return Lane(self.world, ranks, f"{self.name}/{self.n_groups}.{members[0]}")

    def _wait(self, start, timeout_ms):
        deadline = time.monotonic() + timeout_ms / 1000
        work = None
        try:
            work = start()
            while True:
                left = max(0.001, min(SLICE_S, deadline - time.monotonic()))
                try:
                    work.wait(datetime.timedelta(seconds=left))
                    return
                except RuntimeError:
                    if work.is_completed():  # perhaps after the time-out of this slice: ask again
                        work.wait(datetime.timedelta(seconds=1))
                        return
                self.world.watch()
                self.world.check()
                if time.monotonic() > deadline:
                    raise CommError(f"no answer within {timeout_ms / 1000:g} s")
        except BaseException:
            _leak(self.pg)
            if work is not None:
                _leak(work)
            self.world.learn()  # a rank that fails says why before its connections close
            self.world.check()
            raise

    def release(self):
        _lanes.pop(self.number, None)
        self.pg = None


# --- The callbacks: they catch everything, and the library fails the world with their text. --------


def _guarded(user, error, size, body):
    lane = _lanes.get(user)
    try:
        if lane is None:
            raise CommError("the group is gone")
        return body(lane) or 0
    except BaseException as problem:  # Ctrl-C too
        if lane is not None and not isinstance(problem, Exception):
            lane.world.interrupt = problem
        text = str(problem) or type(problem).__name__
        library.write_error(" ".join(text.split()), error, size)
        return 1


@library.ALL_TO_ALL_V
def _all_to_all_v(user, send, send_sizes, recv, recv_sizes, timeout_ms, error, size):
    return _guarded(user, error, size, lambda lane: lane.all_to_all_v(
        send, send_sizes, recv, recv_sizes, timeout_ms))


@library.ALL_REDUCE
def _all_reduce(user, values, n, kind, timeout_ms, error, size):
    return _guarded(user, error, size,
                    lambda lane: 0 if lane.all_reduce(values, n, kind, timeout_ms) else -1)


@library.GROUP
def _group(user, members, n, timeout_ms, new_user, error, size):
    def body(lane):
        new_user[0] = lane.group(members[:n]).number

    return _guarded(user, error, size, body)


@library.CHECK
def _check(user, error, size):
    return _guarded(user, error, size, lambda lane: lane.world.check())


@library.FAIL
def _fail(user, reason):
    try:
        _lanes[user].world.fail(reason.decode("utf-8", "replace"))
    except BaseException:
        pass  # nobody is left to hear it


@library.RELEASE
def _release(user):
    try:
        _lanes[user].release()
    except BaseException:
        pass
