# The ranks of a process group as a transport of libpride: torch.distributed's Gloo, or MPI.
# SPDX-License-Identifier: Apache-2.0
#
# Each lane (the communicator of a thread) has a Gloo group of its own, over host memory, whatever
# the backend of the caller's group is: collectives of two threads in one group would mix.
import atexit
import collections
import ctypes as c
import datetime
import itertools
import os
import sys
import threading
import time
import weakref

import torch
import torch.distributed as dist

from . import _library as library
from .errors import CommError, Error, InvalidArgument

SLICE_S = 0.2  # a wait returns to Python so often, for Ctrl-C and for failures of other ranks
_numbers = itertools.count(1)
_lanes = {}  # by number, which is the `user` of the callbacks
_STORE_GONE = "the store of the process group is gone, and with it the process that held it"
_serials = collections.Counter()  # worlds made so far over the same ranks


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


class World:
    """This rank's place among the ranks of a process group, and the failure that they share."""

    def __init__(self, group, timeout):
        if not dist.is_available() or not dist.is_initialized():
            raise InvalidArgument("pride: torch.distributed has no process group")
        self.timeout = timeout
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise InvalidArgument(
                f"pride: this process (rank {dist.get_rank()} of the job) is not a member of the "
                "process group given")
        self.global_ranks = tuple(_global_rank(group, r) for r in range(self.size))
        _serials[self.global_ranks] += 1
        base = dist.distributed_c10d._get_default_store()
        ranks = "-".join(map(str, self.global_ranks)) if group is not None else "all"
        self.name = f"pride/{ranks}/{_serials[self.global_ranks]}"
        self.store = dist.PrefixStore(self.name, base)
        self.interrupt = None  # a KeyboardInterrupt or the like that a callback caught
        self._reason = None
        self._lock = threading.Lock()
        self._watch_until = 0.0
        self._watching = False
        try:
            self._meet()
            first = Lane(self, list(range(self.size)), "lane")
            self.handle = library.Handle("comm", "pride_comm_create", c.byref(_table(
                self.rank, self.size, b"torch.distributed", first.number)))
            self.set_timeout(timeout)
        except BaseException as problem:  # Ctrl-C too
            text = " ".join(str(problem).split()) or type(problem).__name__
            self.fail("while ranks connected: " + text.replace("pride: ", "", 1))
            if isinstance(problem, CommError):
                named = "did not within" in self._reason
                raise CommError(f"pride: {self._reason}" + (
                    "" if named else self.silence())) from None
            raise

    def set_timeout(self, timeout):
        library.call("pride_comm_set_timeout", self.handle, int(timeout.total_seconds() * 1000))

    def call(self, name, *arguments):
        """A function of the library that may communicate."""
        try:
            return library.call(name, *arguments)
        except Error:
            self.reraise_interrupt()
            raise

    def reraise_interrupt(self):
        interrupt, self.interrupt = self.interrupt, None
        if interrupt is not None:
            raise interrupt

    # --- Failure: one key in the store, which waiting ranks poll. ---------------------------------

    def check(self):
        if self._reason is not None:
            raise CommError(self._reason)

    def fail(self, reason):
        with self._lock:
            if self._reason is not None:
                return
            self._reason = f"rank {self.rank}: {reason}"
        # in a thread: a store whose server is gone may take long to say so
        publisher = threading.Thread(target=self._publish, args=(self._reason,), daemon=True)
        publisher.start()
        publisher.join(1.0)

    def _publish(self, reason):
        try:
            self.store.add(f"alive/{self.rank}", 1)
            if self.store.add("claim", 1) == 1:
                self.store.set("reason", reason)
                self.store.add("failed", 1)
        except (RuntimeError, ValueError):
            pass  # the store is gone, and with it the job

    def check_store(self):
        """As check(), with a look into the store: before a communicator is there to poll."""
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
        """The answer of the store, from a thread: Ctrl-C acts, and a store whose server stalls is an
        error, where torch's own calls would wait for half an hour."""
        answers, done = [], threading.Event()

        def work():
            try:
                answers.append((True, question(self.store)))
            except (RuntimeError, ValueError) as error:
                answers.append((False, error))
            done.set()

        until = time.monotonic() + (timeout_s or self.timeout.total_seconds())
        threading.Thread(target=work, daemon=True).start()
        while not done.wait(SLICE_S):
            if time.monotonic() > until:
                raise CommError("the store of the process group gives no answer: the process that "
                                "holds it stalls")
        good, answer = answers[0]
        if not good:
            raise CommError(f"{_STORE_GONE}: {answer}")
        return answer

    def learn(self):
        """Looks once whether another rank has failed, for a second at most."""
        def look():
            try:
                self.check_store()
            except (RuntimeError, ValueError):
                pass  # the reason is kept; or the store is gone

        reader = threading.Thread(target=look, daemon=True)
        reader.start()
        reader.join(1.0)

    def watch(self):
        """This rank learns of failures for the next second: called while a wait is long."""
        with self._lock:
            self._watch_until = time.monotonic() + 1.0
            if self._watching or self._reason is not None:
                return
            self._watching = True
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self):
        try:
            while self._reason is None:
                with self._lock:
                    if time.monotonic() > self._watch_until:
                        self._watching = False
                        return
                self._read_failure(self.store)
                time.sleep(SLICE_S)
        except (RuntimeError, ValueError) as error:
            with self._lock:
                self._reason = self._reason or f"{_STORE_GONE}: {error}"

    def silence(self, patience_s=1.0):
        """After a failure, as the end of its text: the ranks that have not seen it in that time."""
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
        return f"; rank(s) {_listed(missing)} gave no sign of life" if missing else ""

    def _meet(self):
        """Waits until all ranks make this world."""
        self.ask(lambda store: store.add(f"here/{self.rank}", 1))
        until = time.monotonic() + self.timeout.total_seconds()
        missing, pause = set(range(self.size)) - {self.rank}, 0.002
        while True:
            missing = self.ask(lambda store: {
                r for r in missing if store.add(f"here/{r}", 0) == 0})
            if not missing:
                return
            self.check_store()
            if time.monotonic() > until:
                raise CommError(
                    f"pride: rank {self.rank} of {self.size} made an optimizer; rank(s) "
                    f"{_listed(missing)} did not within {self.timeout.total_seconds():g} s. All "
                    "ranks of the process group make the same optimizers in the same order")
            time.sleep(pause)
            pause = min(SLICE_S, 2 * pause)

    def close(self):
        self.handle.close()


class MpiWorld:
    """All ranks of an MPI job, as mpirun or srun started it; libpride_mpi.so moves the bytes."""

    def __init__(self, timeout):
        path = library.find("libpride_mpi.so")
        if not path.exists():
            raise Error("pride: this build of the package has no MPI: it was not found when the "
                        "package was built")
        transport = library.Transport()
        text = c.create_string_buffer(2048)
        make = c.CDLL(str(path), mode=os.RTLD_GLOBAL).pride_mpi_transport
        make.argtypes = [c.POINTER(library.Transport), c.c_char_p, c.c_uint64]
        if make(c.byref(transport), text, len(text)) != 0:
            raise Error("pride: " + text.value.decode("utf-8", "replace"))
        self.rank, self.size, self.timeout = transport.rank, transport.size, timeout
        self.handle = library.Handle("comm", "pride_comm_create", c.byref(transport))
        self.set_timeout(timeout)

    set_timeout = World.set_timeout

    def call(self, name, *arguments):
        return library.call(name, *arguments)

    def reraise_interrupt(self):
        pass

    def fail(self, reason):
        library.lib.pride_comm_fail(self.handle, reason.encode())

    def silence(self):
        return ""

    def close(self):
        self.handle.close()


class Alone:
    """A world of one rank."""

    rank, size = 0, 1

    def __init__(self, timeout):
        self.timeout = timeout
        out = c.c_void_p()
        library.call("pride_comm_threads", 1, c.byref(out))
        self.handle = library.Handle.owning("comm", out.value)

    call = MpiWorld.call
    reraise_interrupt = MpiWorld.reraise_interrupt
    fail = MpiWorld.fail
    silence = MpiWorld.silence
    close = MpiWorld.close


_mpi_world = None


def mpi(timeout=datetime.timedelta(seconds=300)):
    """All ranks of the MPI job that mpirun or srun started, for `process_group=`.

    MPI is initialised by the first call. For programs that do not use torch.distributed.
    """
    global _mpi_world
    if _mpi_world is None:
        _mpi_world = MpiWorld(timeout)
    return _mpi_world


@atexit.register  # before optimizer.py registers its own, so that this runs after it
def _close_mpi():
    """MPI_Finalize, without which mpirun takes the process for a failed one: as it should after an
    uncaught exception, when other ranks may never come to MPI_Finalize, which waits for all."""
    if _mpi_world is not None and not hasattr(sys, "last_value"):
        _mpi_world.close()


def current_mpi_world():
    """What mpi() has returned, or None."""
    return _mpi_world


def make_world(group, timeout):
    """The world for the `process_group` argument of an optimizer."""
    if isinstance(group, MpiWorld):
        group.set_timeout(timeout)
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


def _global_rank(group, rank):
    if group is None:
        return rank
    return dist.get_global_rank(group, rank)


def _listed(ranks):
    return ", ".join(map(str, sorted(ranks)))


# --- The callbacks: they catch everything, and the library fails the world with their text. ---------


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


def _table(rank, size, name, user):
    return library.Transport(
        struct_size=c.sizeof(library.Transport), rank=rank, size=size, name=name, user=user,
        all_to_all_v=_all_to_all_v, all_reduce=_all_reduce, group=_group, check=_check, fail=_fail,
        release=_release)
