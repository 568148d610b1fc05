# The ranks of an optimizer: a process group of torch.distributed, an MPI job, or one rank alone.
# SPDX-License-Identifier: Apache-2.0
import atexit
import collections
import contextlib
import ctypes as c
import datetime
import os
import sys
import threading
import time

import torch
import torch.distributed as dist

from . import _library as library
from ._lane import SLICE_S, Lane, is_interrupt
from ._threads import Work, ending, in_thread
from .errors import CommError, Error, InvalidArgument, duration

_STORE_GONE = "the store of the process group is gone, and with it the process that held it"
_USUAL = datetime.timedelta(seconds=300)  # where no process group has a time-out
_PATIENCE_S = 5.0  # for what only makes an error clearer
_serials = collections.Counter()  # number of worlds made over the same ranks


def timeout_of(group):
    """The time-out of a process group's operations."""
    group = group or dist.distributed_c10d._get_default_group()
    if not hasattr(group, "_get_backend"):  # torch 1.13
        backends = [group]
    else:
        backends = []
        for device in ("cpu", "cuda"):
            with contextlib.suppress(RuntimeError):
                backends.append(group._get_backend(torch.device(device)))
    found = [options._timeout for options in (getattr(b, "options", None) for b in backends)
             if isinstance(getattr(options, "_timeout", None), datetime.timedelta)]
    return max(found, default=_USUAL)


class _NativeWorld:
    """Ranks that libpride connects and whose failures it reports."""

    def set_timeout(self, timeout):
        library.call("pride_comm_set_timeout", self.handle, int(timeout.total_seconds() * 1000))

    def call(self, name, *arguments):
        return library.call(name, *arguments)

    def reraise_interrupt(self):
        pass

    def take_interrupt(self):
        return None

    def all_gather(self, mine):
        """Gathers a ctypes object from every rank. Returns a function that returns the list."""
        every = (type(mine) * self.size)()
        self.call("pride_comm_all_gather", self.handle, c.byref(mine), c.sizeof(mine), every)
        return lambda keeps_interrupt=False: list(every)

    def exchange(self, mine):
        """Every rank's bytes, as many on each. Ranks call it once they have found that they differ."""
        return list(map(bytes, self.all_gather((c.c_uint8 * len(mine)).from_buffer_copy(mine))()))

    def fail(self, reason):
        library.lib.pride_comm_fail(self.handle, reason.encode())

    def silence(self):
        return ""

    def refuse_late_group(self):
        """Raises InvalidArgument if this world was made before torch's default group."""

    def close(self):
        self.handle.close()


class MpiWorld(_NativeWorld):
    """All ranks of an MPI job started by mpirun or srun; libpride_mpi.so moves the bytes."""

    def __init__(self, timeout):
        path = library.find("libpride_mpi.so")
        if not path.exists():
            raise Error("pride: this build of the package has no MPI: it was not found when the "
                        "package was built")
        transport = library.Transport()
        text = c.create_string_buffer(2048)
        try:
            make = c.CDLL(str(path), mode=os.RTLD_GLOBAL).pride_mpi_transport
        except OSError as error:
            raise Error(f"pride: cannot load {path}: {error}. It needs Open MPI, 4 or 5; on "
                        "Debian: apt-get install openmpi-bin") from error
        make.argtypes = [c.POINTER(library.Transport), c.c_char_p, c.c_uint64]
        if make(c.byref(transport), text, len(text)) != 0:
            raise Error("pride: " + text.value.decode("utf-8", "replace"))
        self.rank, self.size, self.timeout = transport.rank, transport.size, timeout
        self.handle = library.Handle("comm", "pride_comm_create", c.byref(transport))
        self.set_timeout(timeout)


class Alone(_NativeWorld):
    """A world of one rank."""

    rank, size = 0, 1

    def __init__(self, timeout):
        self.timeout = timeout or _USUAL
        self.handle = library.Handle("comm", "pride_comm_threads", 1)

    def refuse_late_group(self):
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            raise InvalidArgument("pride: this optimizer was made before init_process_group() and "
                                  "works alone: make it afterwards")


class World(_NativeWorld):
    """This rank in a process group, with failure propagation over the group's store."""

    def __init__(self, group, timeout, ranks=None):
        """The world of a group's ranks, or of `ranks` of the job."""
        if not dist.is_available() or not dist.is_initialized():
            raise InvalidArgument("pride: torch.distributed has no process group")
        self.timeout = timeout or timeout_of(group)
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        if ranks is not None:
            self.rank, self.size = ranks.index(self.rank), len(ranks)
        if self.rank < 0:
            raise InvalidArgument(
                f"pride: this process (rank {dist.get_rank()} of the job) is not a member of the "
                "process group given")
        self.global_ranks = tuple(ranks) if ranks is not None else tuple(
            r if group is None else dist.get_global_rank(group, r) for r in range(self.size))
        _serials[self.global_ranks] += 1
        self.is_first = _serials[self.global_ranks] == 1
        base = dist.distributed_c10d._get_default_store()
        self._names = list(range(self.size)) if ranks is None else ranks  # in errors
        every = group is None and ranks is None
        name = "all" if every else "-".join(map(str, self.global_ranks))
        self.name = f"pride/{name}/{_serials[self.global_ranks]}"
        self.store = dist.PrefixStore(self.name, base)
        self.interrupt = None  # of a signal handler, e.g. KeyboardInterrupt; caught by a callback
        self._reason = None
        self._lock = threading.Lock()
        self._watch_until = 0.0
        self._watching, self._n_exchanges = False, 0
        try:
            self._wait_for_all()
            self._lane = Lane(self, list(range(self.size)), "lane")
            self.handle = library.Handle("comm", "pride_comm_create", c.byref(
                self._lane.transport(self.rank, self.size)))
            self.set_timeout(self.timeout)
        except BaseException as problem:  # Ctrl-C too
            text = " ".join(str(problem).split()) or type(problem).__name__
            self.fail("while ranks connected: " + text.replace("pride: ", "", 1))
            if isinstance(problem, CommError):
                named = "did not within" in self._reason
                raise CommError(f"pride: {self._reason}" + (
                    "" if named else self.silence())) from None
            raise

    def call(self, name, *arguments):
        """A function of the library that may communicate."""
        try:
            return library.call(name, *arguments)
        except Error:
            self.reraise_interrupt()
            raise

    def take_interrupt(self):
        interrupt, self.interrupt = self.interrupt, None
        return interrupt

    def reraise_interrupt(self):
        interrupt = self.take_interrupt()
        if interrupt is not None:
            raise interrupt

    def all_gather(self, mine):
        """As _NativeWorld's, but it only starts: the function that it returns waits. No other
        collective call of this world may begin meanwhile."""
        wait_for_all = self._reporting(self._lane.all_gather, mine)
        return lambda keeps_interrupt=False: self._reporting(wait_for_all, keeps_interrupt)

    def _reporting(self, call, *arguments):
        """Failures reach all ranks, as those of the library's own calls do."""
        try:
            return call(*arguments)
        except BaseException as problem:  # Ctrl-C too
            text = " ".join(str(problem).split()) or type(problem).__name__
            self.fail(f"agreement: {text}")
            if is_interrupt(problem):
                raise
            raise CommError(f"agreement: rank {self.rank} of {self.size}: {text}") from None

    def exchange(self, mine):
        """As _NativeWorld's, over the store: frames may have failed the world already. None: too late."""
        self._n_exchanges += 1
        key = f"exchange/{self._n_exchanges}"

        def read(store):
            store.set(f"{key}/{self.rank}", mine.hex())
            n, until = store.add(key, 1), time.monotonic() + _PATIENCE_S
            while n < self.size and time.monotonic() < until:
                time.sleep(0.02)
                n = store.add(key, 0)
            keys = [f"{key}/{r}" for r in range(self.size)] if n == self.size else ()
            return [bytes.fromhex(store.get(each).decode()) for each in keys] or None

        with contextlib.suppress(CommError):
            return self.ask(read, 2 * _PATIENCE_S)

    # --- Failure: one key in the store, which waiting ranks poll. ---------------------------------

    def check(self):
        if self._reason is not None:
            raise CommError(self._reason)

    def fail(self, reason):
        with self._lock:
            if self._reason is not None:
                return
            self._reason = f"rank {self._names[self.rank]}: {reason}"
        # in a thread: a store whose server is gone may take long to fail
        in_thread(self._publish, self._reason).join(1.0)

    def _publish(self, reason):
        try:
            self.store.add(f"alive/{self.rank}", 1)
            if self.store.add("claim", 1) == 1:
                self.store.set("reason", reason)
                self.store.add("failed", 1)
        except (RuntimeError, ValueError):
            pass  # the store is gone, so the job is, too

    def check_store(self):
        """As check(), but reads the store: before a communicator exists, nothing else polls it."""
        self.check()
        self.ask(self._read_failure)
        self.check()

    def _read_failure(self, store):
        if store.add("failed", 0) > 0:
            reason = store.get("reason").decode("utf-8", "replace")
            with self._lock:
                self._reason = self._reason or reason
            store.add(f"alive/{self.rank}", 1)

    def ask(self, question, timeout_s=None):
        """Runs question(store) in a thread, so that Ctrl-C works and a stalled server is an error.
        torch's own calls would wait for half an hour."""
        wait = Work(lambda: question(self.store))
        until = time.monotonic() + (timeout_s or self.timeout.total_seconds())
        while not wait.done(SLICE_S):
            if time.monotonic() > until:
                raise CommError("the store of the process group does not respond: the process that "
                                "holds it stalls")
        try:
            return wait.result()
        except (RuntimeError, ValueError) as error:
            raise CommError(f"{_STORE_GONE}: {error}") from None

    def within_timeout(self, connect):
        """connect(), which may take longer than the time-out and cannot be interrupted."""
        wait = Work(connect)
        until = time.monotonic() + self.timeout.total_seconds()
        while not wait.done(SLICE_S):
            self.check_store()
            if time.monotonic() > until:
                interface = os.environ.get("GLOO_SOCKET_IFNAME")
                raise CommError(
                    f"no connection within {self.timeout.total_seconds():g} s: the ranks cannot "
                    "reach each other at " + (f"the interface {interface} of GLOO_SOCKET_IFNAME"
                                              if interface else "the addresses of their host names; "
                                              "name an interface in GLOO_SOCKET_IFNAME"))
        return wait.result()

    def learn(self):
        """Checks once, for at most a second, whether another rank has failed."""
        with contextlib.suppress(CommError):
            self.ask(self._read_failure, 1.0)

    def watch(self):
        """Watches for failures for the next second; called during long waits."""
        with self._lock:
            self._watch_until = time.monotonic() + 1.0
            if self._watching or self._reason is not None:
                return
            self._watching = True
        in_thread(self._watch)

    def _watch(self):
        try:
            while self._reason is None:
                with self._lock:
                    if time.monotonic() > self._watch_until:
                        self._watching = False
                        return
                self._read_failure(self.store)
                if ending.wait(SLICE_S):
                    return
        except (RuntimeError, ValueError) as error:
            with self._lock:
                self._reason = self._reason or f"{_STORE_GONE}: {error}"

    def silence(self, patience_s=1.0):
        """Text for the end of an error: the ranks that did not see the failure in time."""
        missing = set(range(self.size)) - {self.rank}

        def look(store):
            nonlocal missing
            until = time.monotonic() + patience_s
            while missing and time.monotonic() < until:
                missing = {r for r in missing if store.add(f"alive/{r}", 0) == 0}
                time.sleep(0.05)

        try:
            self.ask(look, 2 * patience_s)
        except CommError as error:
            known = _STORE_GONE in str(error) and _STORE_GONE in (self._reason or "")
            return "" if known or str(error) in (self._reason or "") else f"; {error}"
        return f"; rank(s) {listed(self._names[r] for r in missing)} gave no sign of life" if (
            missing) else ""

    def _wait_for_all(self):
        """Waits until all ranks have called it for this world."""
        self.ask(lambda store: store.add(f"here/{self.rank}", 1))

        def missing():
            return self.ask(lambda store: [
                r for r in range(self.size) if store.add(f"here/{r}", 0) == 0])

        if not self.wait_for(lambda: not missing()):
            raise CommError(
                f"pride: rank {self._names[self.rank]} of {self.size} made an optimizer, or a hook; rank(s) "
                f"{listed(self._names[r] for r in missing())} did not within {self.timeout.total_seconds():g} "
                "s. All ranks of the process group make the same ones in the same order")

    def wait_for(self, condition):
        """Polls the store; False after the time-out. Raises once the world has failed."""
        until, pause = time.monotonic() + self.timeout.total_seconds(), 0.001
        while not condition():
            self.check_store()
            if time.monotonic() > until:
                return False
            time.sleep(pause)
            pause = min(SLICE_S, 2 * pause)
        return True


_mpi_world = None


def mpi(timeout=_USUAL):
    """All ranks of the MPI job started by mpirun or srun, for `process_group=`.

    MPI is initialised by the first call, whose `timeout` (seconds, or a timedelta) is that of
    optimizers without their own. For programs that do not use torch.distributed.
    """
    global _mpi_world
    if _mpi_world is None:
        _mpi_world = MpiWorld(duration(timeout))
    return _mpi_world


@atexit.register  # before _construction.py registers its own, so that this runs after it
def _close_mpi():
    """Calls MPI_Finalize; without it mpirun counts the process as failed. Not after an uncaught
    exception: MPI_Finalize waits for all ranks, and others may never reach it."""
    if _mpi_world is not None and not hasattr(sys, "last_value"):
        _mpi_world.close()


def current_mpi_world():
    """The world returned by mpi(), or None."""
    return _mpi_world


def make_world(group, timeout):
    """The world for the `process_group` argument of an optimizer. timeout None: the group's own."""
    if isinstance(group, MpiWorld):
        group.set_timeout(timeout or group.timeout)
        return group
    if group is None and not (dist.is_available() and dist.is_initialized()):
        world = int(os.environ.get("WORLD_SIZE", "1"))
        if world > 1:
            raise InvalidArgument(
                f"pride: WORLD_SIZE is {world}, but torch.distributed has no process group: call "
                'torch.distributed.init_process_group("gloo") before the optimizer is made')
        return Alone(timeout)
    world = World(group, timeout)
    if world.size == 1:
        world.close()
        return Alone(timeout)
    return world


def listed(ranks):
    return ", ".join(map(str, sorted(ranks)))
