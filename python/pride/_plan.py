"""Predicted step times: does compression pay?"""
# SPDX-License-Identifier: Apache-2.0
import ctypes as c
import os
import time
from dataclasses import dataclass
from typing import List, NamedTuple, Optional, Sequence, Tuple, Union

import torch

from . import _library as library
from ._device import newton_schulz
from .errors import InvalidArgument, number, whole

_COPIED = 1 << 28  # bytes of a measured copy within a GPU
_MEASURED_S = 0.1  # seconds of each measurement on a GPU, and more
_WIDTH = 1024      # of the transformer's block whose matrices are measured


class DeviceRates(NamedTuple):
    """Rates of a GPU.

    Args:
        memory: bytes per second of a copy within its memory, read and written; e.g. 3e12.
        link: bytes per second of copies between the memories of GPU and host; e.g. 25e9.
        operations: multiplications and additions of Newton-Schulz per second. Only methods that
            orthogonalise matrices need it, such as ``"dlion-muon"``; 0: not known. pride counts
            them as the host computes them, and a GPU makes twice as many for a transformer: give
            half the GPU's rate in products of matrices, which are of float32, or of TF32 with
            ``torch.backends.cuda.matmul.allow_tf32``.
    """

    memory: float
    link: float
    operations: float = 0.0


@dataclass(frozen=True)
class PlanRow:
    """A predicted step; times in seconds."""

    method: str
    step_s: float         # the shorter of the next two
    in_order_s: float     # exchange after backward
    overlapped_s: float   # exchange during backward
    bytes: float          # sent per step by the rank that sends most
    bottleneck: str       # "compute", "bandwidth", "latency" or "arithmetic"
    route: str


def plan(params: int, backward: float, bandwidth: float, latency: float, world: int = 4, *,
         methods: Sequence[str] = ("lion", "lion:dense=bf16", "dlion-vote", "dlion-avg",
                                   "lion-cub"),
         cores: Optional[float] = None, message: float = 0.0, lanes: int = 2,
         device: Union[None, str, torch.device, DeviceRates] = None) -> List[PlanRow]:
    """Predicts step times on a network: does compression pay?

    Without `device` the methods run on the host, and the arithmetic of each is measured on this
    machine, for about a second. With it they run on a GPU, and arithmetic is computed from the
    GPU's rates; only votes are counted and measured on the host. Bytes are counted. The rest is the
    model of docs/performance.md, as in ``pride plan``. ``"lion"`` exchanges float32 gradients, as
    DistributedDataParallel does, and ``"lion:dense=bf16"`` bfloat16 ones.

    Args:
        params: number of parameters.
        backward: seconds of a step's forward and backward together, without exchange.
        bandwidth: bits per second that a rank sends while it receives as many, e.g. 1e9.
        latency: one-way seconds of a message.
        world: number of ranks.
        methods: names of methods, with options after colons: ``"lion-cub:bits=2"``.
        cores: cores of each rank; default: the number of this machine.
        message: seconds of each further message if a rank sends several at once.
        lanes: buckets in flight.
        device: the GPU on which the methods run. ``"cuda:0"`` or a torch.device: rates are measured
            on this GPU, which needs 512 MiB of its memory. A `DeviceRates`: of a GPU elsewhere.
            None or a CPU: the host.

    Raises:
        InvalidArgument: an argument is out of its range, a method or option does not exist, or the
            GPU cannot be used; with the reason.
    """
    _check_numbers("must be above 0", params=params, bandwidth=bandwidth, world=world,
                   cores=1 if cores is None else cores)
    _check_numbers("must be 0 or more", backward=backward, latency=latency, message=message,
                   lanes=lanes)
    world, lanes = whole("plan: world", world, 1, 65535), whole("plan: lanes", lanes, 0, 16)
    if not isinstance(methods, (list, tuple)) or not all(isinstance(name, str) for name in methods):
        raise InvalidArgument(f"pride: plan: methods = {methods!r}, must be a list of names")
    chosen = [library.make_options(*_parsed(name)) for name in methods]
    # unknown methods and options are refused before anything is measured
    operations = [_operations(options, world) for options in chosen]
    rates = _rates_of(device, max(operations, default=0) > 0)
    comm = library.Handle("comm", "pride_comm_threads", 1)
    facts = library.PlanFacts(
        world=world, params=params, compute_s=backward, bytes_per_s=bandwidth / 8,
        latency_s=latency, message_s=message, cores=cores or os.cpu_count() or 1,
        exchange_threads=max(1, lanes), device_bytes_per_s=rates.memory,
        device_host_bytes_per_s=rates.link, device_operations_per_s=rates.operations)
    rows = []
    for name, options in zip(methods, chosen):
        row = library.PlanRow()
        library.call("pride_plan", comm, c.byref(options), c.byref(facts), c.byref(row))
        rows.append(PlanRow(name, min(row.in_order_s, row.overlapped_s), row.in_order_s,
                            row.overlapped_s, row.bytes, row.bottleneck.decode(),
                            row.route.decode()))
    return rows


def _check_numbers(must: str, **values):
    for name, value in values.items():
        if number(f"plan: {name}", value, 0) == 0 and must == "must be above 0":
            raise InvalidArgument(f"pride: plan: {name} = {value}, {must} and finite")


def _parsed(text: str) -> Tuple[str, dict]:
    """Name and options of "name:option=value:option=value"."""
    name, *parts = text.split(":")
    options = {}
    for part in parts:
        option, equals, value = part.partition("=")
        if not (option and equals):
            raise InvalidArgument(f"pride: plan: methods: {text!r}: {part!r} must be option=value")
        if option in options:
            raise InvalidArgument(f"pride: plan: methods: {text!r}: {option!r} is given twice")
        options[option] = value
    return name, options


def _operations(options, world: int, shapes=((64, 64),)) -> float:
    """Multiplications and additions per step of the method on these matrices."""
    count = c.c_double()
    layout = library.make_layout([(f"w{i}", shape, 0) for i, shape in enumerate(shapes)])
    library.call("pride_method_operations", c.byref(options), layout, world, c.byref(count))
    return count.value


def _rates_of(device, multiplies: bool) -> DeviceRates:
    """`multiplies`: the rate of products of matrices is needed. All 0: the host."""
    if device is None:
        return DeviceRates(0, 0)
    if isinstance(device, DeviceRates):
        _check_numbers("must be above 0", **{"device.memory": device.memory,
                                             "device.link": device.link})
        _check_numbers("must be 0 or more", **{"device.operations": device.operations})
        return device
    try:
        gpu = torch.device(device)
    except (RuntimeError, TypeError):
        gpu = None
    if gpu is None or gpu.type not in ("cpu", "cuda"):
        raise InvalidArgument(f"pride: plan: device = {device!r}, must be a GPU such as 'cuda:0', "
                              "pride.DeviceRates(...) or None")
    if gpu.type == "cpu":
        return DeviceRates(0, 0)
    if gpu.index is None:
        gpu = torch.device("cuda", torch.cuda.current_device() if torch.cuda.is_available() else 0)
    memory, link = _copy_rates(gpu)
    return DeviceRates(memory, link, _product_rate(gpu) if multiplies else 0)


def _copy_rates(gpu: torch.device) -> Tuple[float, float]:
    try:
        handle = library.Handle("device", "pride_cuda_device", gpu.index)
    except InvalidArgument as error:
        raise InvalidArgument(f"pride: plan: device = '{gpu}': {error}; for a GPU that is "
                              "elsewhere give pride.DeviceRates(...)") from None
    memory, link = c.c_double(), c.c_double()
    library.call("pride_device_rates", handle, _COPIED, _MEASURED_S, c.byref(memory), c.byref(link))
    handle.close()
    return memory.value, link.value


def _product_rate(gpu: torch.device) -> float:
    """Of Newton-Schulz as methods on this GPU compute it: with torch, in float32, or in TF32 where
    torch.backends.cuda.matmul.allow_tf32 is set. In operations as pride counts them."""
    w = _WIDTH
    shapes = ((3 * w, w), (w, w), (4 * w, w), (w, 4 * w))
    count = _operations(library.make_options("dlion-muon", {}), 1, shapes)
    numbers = torch.Generator(device=gpu)  # the caller's random numbers stay as they are
    matrices = [torch.randn(shape, device=gpu, dtype=torch.float32, generator=numbers)
                for shape in shapes]
    seconds = []
    for _ in range(4):
        torch.cuda.synchronize(gpu)
        start = time.perf_counter()
        for matrix in matrices:
            newton_schulz([matrix], iterations=5)
        torch.cuda.synchronize(gpu)
        seconds.append(time.perf_counter() - start)
    return count / min(seconds[1:])  # the first warms up
