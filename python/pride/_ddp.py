"""A communication hook for DistributedDataParallel: quantized gradients, for any optimizer."""
# SPDX-License-Identifier: Apache-2.0
import atexit
import ctypes as c
import queue
import weakref

import torch
from torch.nn.parallel import DistributedDataParallel

from . import _library as library
from ._device import HOST
from ._threads import in_thread
from ._world import listed, make_world
from .errors import CommError, InvalidArgument, duration

_DENSE = {32: "ordered", 16: "bf16", 8: "int8", 4: "int4", 2: "int2"}
_DTYPES = {torch.float32: library.FLOAT32, torch.bfloat16: library.BFLOAT16,
           torch.float16: library.FLOAT16}
_hooked = weakref.WeakSet()  # models
_lanes = weakref.WeakSet()   # whose threads must end before the interpreter


class _Lane:
    """A thread that averages buckets, in order, over a world of its own."""

    def __init__(self, world, bits):
        self._world, self._jobs, self._busy = world, queue.SimpleQueue(), False
        self._mean = library.Handle("mean", "pride_mean_create", world.handle, _DENSE[bits].encode(),
                                    None, parents=(world.handle,))
        _lanes.add(self)
        in_thread(self._serve)

    def bytes_sent(self):
        return library.lib.pride_mean_bytes_sent(self._mean)

    def put(self, *job):
        self._jobs.put(job)

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
                    self._average_on_host(values, sizes, ready, future)
            except CommError as error:
                future.set_exception(CommError(f"pride: {error}{self._world.silence()}"))
            except BaseException as error:  # of the caller
                self._world.fail(str(error) or type(error).__name__)  # others wait for this rank
                future.set_exception(error)
            self._busy = False
            del job, future, values

    def _average(self, values, sizes):
        if values.dtype not in _DTYPES or values.layout != torch.strided:
            raise InvalidArgument(f"pride: ddp_hook: gradients are {values.dtype}, {values.layout}: must "
                                  "be float32, bfloat16 or float16, and not sparse")
        array = library.Array(data=HOST.address(values, values.dtype, values.numel()),
                              n=values.numel(), dtype=_DTYPES[values.dtype])
        self._world.call("pride_mean_run", self._mean, c.byref(array),
                         (c.c_uint64 * len(sizes))(*sizes), len(sizes), None)

    def _average_on_host(self, values, sizes, ready, future):
        with torch.cuda.device(values.device), torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda.current_stream().wait_event(ready)
            host = values.to("cpu")  # waits for the copy
            self._average(host, sizes)
            values.copy_(host)
            future.set_result(values)


class DdpHook:
    """Returned by :func:`ddp_hook`. The model keeps it."""

    def __init__(self, group, bits, timeout, lanes):
        world = make_world(group, timeout)
        _check_equal(world, bits=bits, lanes=lanes)
        worlds = [world] + [make_world(group, timeout) for _ in range(lanes - 1)]
        self._lanes = [_Lane(world, bits) for world in worlds]

    def traffic(self):
        """``{"bytes_sent": n}``: of gradients, by this rank, so far. A bucket's bytes are counted once
        its exchange is done."""
        return {"bytes_sent": sum(lane.bytes_sent() for lane in self._lanes)}

    def start(self, bucket):
        """The future of a DDP bucket's mean."""
        values = bucket.buffer()
        devices = [values.device] if values.is_cuda else None
        future = torch.futures.Future(devices=devices) if devices else torch.futures.Future()
        ready = torch.cuda.current_stream(values.device).record_event() if devices else None
        sizes = [p.numel() for p in bucket.parameters()]
        self._lanes[bucket.index() % len(self._lanes)].put(future, values, sizes, ready)
        # an error of then() reaches backward with its reason, one of set_exception() as a tensor
        return future.then(lambda done: done.value())

    def __del__(self):
        for lane in getattr(self, "_lanes", ()):
            lane.end()


def ddp_hook(model, bits=4, *, timeout=None, lanes=2):
    """Makes DistributedDataParallel exchange quantized gradients. The optimizer stays yours.

        model = DistributedDataParallel(model)
        pride.ddp_hook(model, bits=4)

    Registers a communication hook. Each 64 gradients of a parameter share a block-wise scale and are
    rounded to levels, on the way to the mean and back (docs/methods/dense.md, option ``dense``). That is
    8.25, 4.25 or 2.25 bits each way. Rounding errors are dropped: there is no error feedback, so no
    state to save, and none to lose when DDP rebuilds its buckets. Means are equal on all ranks, bit for
    bit. If a gradient is NaN or Inf on a rank, all means of its bucket are NaN on all ranks, so a
    GradScaler skips the step everywhere. A world of one rank rounds, too.

    Buckets are exchanged on threads, while backward goes on, over torch.distributed. Gradients on a
    GPU are copied to the host, where the arithmetic runs.

    Args:
        model: a DistributedDataParallel without a communication hook. Call this on all ranks, before
            the first backward.
        bits: 8, 4 or 2; or 16 (bfloat16) or 32 (float32), to compare.
        timeout: seconds, or a timedelta, that an exchange may take; by default the process group's.
        lanes: buckets that are exchanged at the same time, 1 to 16.

    Returns: an object whose ``traffic()`` has the bytes sent.

    Raises:
        InvalidArgument: an argument cannot be used, or differs between ranks.
        RuntimeError: in backward, with the reason: a rank failed or is silent, or gradients are neither
            float32, bfloat16 nor float16. DDP gives errors of hooks this type.
    """
    if not isinstance(model, DistributedDataParallel):
        raise InvalidArgument("pride: ddp_hook: model is a "
                              f"{type(model).__name__}: give a DistributedDataParallel")
    for name, value, allowed in (("bits", bits, sorted(_DENSE)), ("lanes", lanes, range(1, 17))):
        if type(value) is not int or value not in allowed:
            raise InvalidArgument(f"pride: ddp_hook: {name} is {value!r}: must be one of "
                                  f"{', '.join(map(str, allowed))}")
    if model in _hooked:
        raise InvalidArgument("pride: ddp_hook: the model has a communication hook of pride already")
    hook = DdpHook(model.process_group, bits, duration(timeout), lanes)
    model.register_comm_hook(hook, _start)
    _hooked.add(model)
    return hook


def _start(hook, bucket):
    return hook.start(bucket)


def _check_equal(world, **values):
    """Raises InvalidArgument on all ranks if one of the whole numbers differs."""
    every = world.all_gather((c.c_uint32 * len(values))(*values.values()))()
    for i, name in enumerate(values):
        ranks = {}
        for rank, row in enumerate(every):
            ranks.setdefault(row[i], []).append(rank)
        if len(ranks) > 1:
            raise InvalidArgument(f"pride: ddp_hook: {name} is " + ", ".join(
                f"{value} on rank(s) {listed(some)}" for value, some in ranks.items()))


@atexit.register  # before threads are joined
def _end_lanes():
    for lane in list(_lanes):
        lane.end(at_exit=True)
