# Threads that exchange quantized means: what communication hooks start and wait for.
# SPDX-License-Identifier: Apache-2.0
import atexit
import ctypes as c
import queue
import threading
import weakref

import torch

from . import _library as library
from ._device import HOST, place_of_values
from ._threads import in_thread
from ._world import listed, make_world
from .errors import CommError, InvalidArgument

DENSE = {32: "ordered", 16: "bf16", 8: "int8", 4: "int4", 2: "int2"}  # by bits
_DTYPES = {torch.float32: library.FLOAT32, torch.bfloat16: library.BFLOAT16,
           torch.float16: library.FLOAT16}
_lanes = weakref.WeakSet()   # whose threads must end before the interpreter


class _Lane:
    """A thread that averages buckets, in order, over a world of its own."""

    def __init__(self, world, bits):
        self._world, self._jobs, self._busy = world, queue.SimpleQueue(), False
        self._bits, self._means, self._places = bits, {}, {}  # by place; by GPU
        self._mean_on(HOST)
        _lanes.add(self)
        in_thread(self._serve)

    def bytes_sent(self):
        return sum(library.lib.pride_mean_bytes_sent(mean) for mean in list(self._means.values()))

    def put(self, *job):
        self._jobs.put(job)

    def fail(self, why):
        self._world.fail(why)

    def end(self, at_exit=False):
        if at_exit and (self._busy or not self._jobs.empty()):
            self._world.fail("the process ends")  # so that an exchange ends, on all ranks
        self._jobs.put(None)

    def _serve(self):
        while True:
            job = self._jobs.get()
            if job is None:
                return
            future, values, sizes, ready = job
            self._busy = True
            try:
                if ready is None:
                    self._average(values, sizes)
                    future.set_result(values)
                else:
                    self._average_on_gpu(values, sizes, ready, future)
            except CommError as error:
                future.set_exception(CommError(f"pride: {error}{self._world.silence()}"))
            except BaseException as error:  # of the caller
                self._world.fail(str(error) or type(error).__name__)  # others wait for this rank
                future.set_exception(error)
            self._busy = False
            del job, future, values

    def _mean_on(self, place):
        if place not in self._means:
            self._means[place] = library.Handle(
                "mean", "pride_mean_create", self._world.handle, DENSE[self._bits].encode(),
                None if place is HOST else place.handle, parents=(self._world.handle,))
        return self._means[place]

    def _average(self, values, sizes, place=HOST):
        if values.dtype not in _DTYPES or values.layout != torch.strided:
            raise InvalidArgument(f"pride: gradients are {values.dtype}, {values.layout}: must be "
                                  "float32, bfloat16 or float16, and not sparse")
        array = library.Array(data=place.address(values, values.dtype, values.numel()),
                              n=values.numel(), dtype=_DTYPES[values.dtype], device=place.code)
        if place is not HOST:
            array.device_index, array.stream = place.device.index or 0, place.stream()
        self._world.call("pride_mean_run", self._mean_on(place), c.byref(array),
                         (c.c_uint64 * len(sizes))(*sizes), len(sizes), None)

    def _average_on_gpu(self, values, sizes, ready, future):
        """On the GPU, or on the host if libpride cannot use it."""
        with torch.cuda.device(values.device), torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda.current_stream().wait_event(ready)
            place = self._places.get(values.device)
            if place is None:
                place = self._places[values.device] = place_of_values(values)
            if place is HOST:
                host = values.to("cpu")  # waits for the copy
                self._average(host, sizes)
                values.copy_(host)
            else:
                self._average(values, sizes, place)
            future.set_result(values)


class _Waited:
    """A future of torch's whose error keeps its type, and in whose wait Ctrl-C comes through."""

    def __init__(self):
        self._done, self._error, self._ready, self._device = threading.Event(), None, None, None

    def set_result(self, values):
        if values.is_cuda:
            self._device = values.device
            self._ready = torch.cuda.current_stream(values.device).record_event()
        self._done.set()

    def set_exception(self, error):
        self._error = error
        self._done.set()

    def wait(self):
        while not self._done.wait(0.5):
            pass
        if self._error is not None:
            raise self._error
        if self._ready is not None:
            torch.cuda.current_stream(self._device).wait_event(self._ready)


class MeanLanes:
    """Averages gradients over the ranks of a process group, on threads. `who` is named in errors.
    Collective. Ranks must have `equal` whole numbers."""

    def __init__(self, who, group, bits, timeout, lanes, **equal):
        if type(bits) is not int or bits not in DENSE:
            raise InvalidArgument(f"pride: {who}: bits is {bits!r}: must be one of "
                                  f"{', '.join(map(str, sorted(DENSE)))}")
        world = make_world(group, timeout)
        _check_equal(who, world, bits=bits, lanes=lanes, **equal)
        self.size = world.size
        worlds = [world] + [make_world(group, timeout) for _ in range(lanes - 1)]
        self._lanes = [_Lane(world, bits) for world in worlds]

    def bytes_sent(self):
        """By this rank, so far. Bytes are counted once an exchange is done."""
        return sum(lane.bytes_sent() for lane in self._lanes)

    def start(self, values, sizes, lane=0):
        """The future of the mean of `values`, which it overwrites: tensors of `sizes`, one after the
        other. A lane keeps its order, which must be equal on all ranks."""
        devices = [values.device] if values.is_cuda else None
        future = torch.futures.Future(devices=devices) if devices else torch.futures.Future()
        self._put(future, values, sizes, lane)
        # an error of then() reaches backward with its reason, one of set_exception() as a tensor
        return future.then(lambda done: done.value())

    def run(self, values, sizes):
        """Replaces `values` by their mean; raises what went wrong."""
        future = _Waited()
        self._put(future, values, sizes, 0)
        future.wait()

    def fail(self, why):
        """Other ranks stop to wait for this one."""
        self._lanes[0].fail(why)

    def _put(self, future, values, sizes, lane):
        ready = torch.cuda.current_stream(values.device).record_event() if values.is_cuda else None
        self._lanes[lane % len(self._lanes)].put(future, values, sizes, ready)

    def __del__(self):
        for lane in getattr(self, "_lanes", ()):
            lane.end()


def _check_equal(who, world, **values):
    """Raises InvalidArgument on all ranks if one of the whole numbers differs."""
    every = world.all_gather((c.c_uint32 * len(values))(*values.values()))()
    names = getattr(world, "global_ranks", range(len(every)))
    for i, name in enumerate(values):
        ranks = {}
        for rank, row in enumerate(every):
            ranks.setdefault(row[i], []).append(names[rank])
        if len(ranks) > 1:
            raise InvalidArgument(f"pride: {who}: {name} is " + ", ".join(
                f"{value} on rank(s) {listed(some)}" for value, some in ranks.items()))


@atexit.register  # before threads are joined
def _end_lanes():
    for lane in list(_lanes):
        lane.end(at_exit=True)
