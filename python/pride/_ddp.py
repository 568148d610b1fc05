"""A communication hook for DistributedDataParallel: gradients averaged in few bits."""
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
_queues = weakref.WeakSet()  # of lanes, whose threads must end before the interpreter


class _Jobs(queue.SimpleQueue):
    """As a queue that may be in a WeakSet."""


class DdpHook:
    """Returned by :func:`ddp_hook`. The model keeps it."""

    def __init__(self, group, bits, timeout, lanes):
        self._worlds = [make_world(group, timeout) for _ in range(lanes)]
        self._jobs, self._means = [], []
        _check_equal(self._worlds[0], bits)
        for world in self._worlds:
            mean = library.Handle("mean", "pride_mean_create", world.handle, _DENSE[bits].encode(),
                                  None, parents=(world.handle,))
            jobs = _Jobs()
            _queues.add(jobs)
            self._means.append(mean)
            self._jobs.append(jobs)
            in_thread(_serve, jobs, mean, world)

    def traffic(self):
        """``{"bytes_sent": n}``: of gradients, by this rank, so far. Bytes of a bucket count when its
        exchange is done."""
        return {"bytes_sent": sum(library.lib.pride_mean_bytes_sent(mean) for mean in self._means)}

    def start(self, bucket):
        """The future of a DDP bucket's mean."""
        values = bucket.buffer()
        devices = [values.device] if values.is_cuda else None
        future = torch.futures.Future(devices=devices) if devices else torch.futures.Future()
        ready = torch.cuda.current_stream(values.device).record_event() if devices else None
        self._jobs[bucket.index() % len(self._jobs)].put((future, values, ready))
        return future

    def __del__(self):
        for jobs in getattr(self, "_jobs", ()):
            jobs.put(None)


def ddp_hook(model, bits=4, *, timeout=None, lanes=2):
    """Makes DistributedDataParallel average its gradients in few bits. The optimizer stays yours.

        model = DistributedDataParallel(model)
        pride.ddp_hook(model, bits=4)

    Each 64 gradients of a bucket share a scale and are rounded to levels, on the way to the mean and
    back (docs/methods/dense.md, option ``dense``). That is 8.25, 4.25 or 2.25 bits each way. Nothing is
    kept between steps, so no state is lost when DDP rebuilds its buckets, and there is none to save.
    Means are equal on all ranks, bit for bit. If a gradient is NaN or Inf on a rank, all means of its
    bucket are NaN on all ranks, so a GradScaler skips the step everywhere.

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
        InvalidArgument: an argument cannot be used, or `bits` differs between ranks.
        RuntimeError: in backward, with the reason: a rank failed or is silent, or gradients are neither
            float32, bfloat16 nor float16. DDP gives errors of hooks this type.
    """
    if not isinstance(model, DistributedDataParallel):
        raise InvalidArgument("pride: ddp_hook: model is a "
                              f"{type(model).__name__}: give a DistributedDataParallel")
    if bits not in _DENSE:
        raise InvalidArgument(f"pride: ddp_hook: bits is {bits!r}: must be 2, 4, 8, 16 or 32")
    if isinstance(lanes, bool) or not isinstance(lanes, int) or not 1 <= lanes <= 16:
        raise InvalidArgument(f"pride: ddp_hook: lanes is {lanes!r}: must be 1 to 16")
    hook = DdpHook(model.process_group, bits, duration(timeout), lanes)
    model.register_comm_hook(hook, _start)
    return hook


def _start(hook, bucket):
    return hook.start(bucket)


def _check_equal(world, bits):
    by_bits = {}
    for rank, other in enumerate(world.all_gather(c.c_uint32(bits))()):
        by_bits.setdefault(int(getattr(other, "value", other)), []).append(rank)
    if len(by_bits) > 1:
        raise InvalidArgument("pride: ddp_hook: bits is " + ", ".join(
            f"{value} on rank(s) {listed(ranks)}" for value, ranks in by_bits.items()))


def _serve(jobs, mean, world):
    """Exchanges the buckets of a lane, in order."""
    while True:
        job = jobs.get()
        if job is None:
            return
        future, values, ready = job
        try:
            if ready is None:
                _average(mean, world, values)
                future.set_result(values)
            else:
                _average_on_host(mean, world, values, ready, future)
        except CommError as error:
            future.set_exception(CommError(f"pride: {error}{world.silence()}"))
        except BaseException as error:  # of the caller
            future.set_exception(error)
        del job, future, values


def _average(mean, world, values):
    if values.dtype not in _DTYPES:
        raise InvalidArgument(f"pride: ddp_hook: gradients are {values.dtype}: must be float32, "
                              "bfloat16 or float16")
    finite = c.c_int32()
    array = library.Array(data=HOST.address(values, values.dtype, values.numel()), n=values.numel(),
                          dtype=_DTYPES[values.dtype])
    world.call("pride_mean_run", mean, c.byref(array), c.byref(finite))


def _average_on_host(mean, world, values, ready, future):
    with torch.cuda.device(values.device), torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda.current_stream().wait_event(ready)
        host = values.to("cpu")  # waits for the copy
        _average(mean, world, host)
        values.copy_(host)
        future.set_result(values)


@atexit.register  # before threads are joined
def _end_lanes():
    for jobs in list(_queues):
        jobs.put(None)
