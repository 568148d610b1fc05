# Where a method runs: on the host, or on the GPU that holds all parameters.
# SPDX-License-Identifier: Apache-2.0
import ctypes as c
import threading
import warnings

import torch

from . import _library as library
from ._groups import names_of
from ._memory import floats_at
from .errors import Error, InvalidArgument, OutOfMemory, check_one_of

RUN_ON = ("auto", "host", "device")
_KEPT = {}  # devices by number: one for all optimizers of a process
_OPENING = threading.RLock()  # an allocation may call back
_WARNED = set()  # texts
_CHOSEN = {}  # (methods, why they run on the host): the choices of this process, in their order


def _readable(dtype):
    """The dtype of a copy that libpride can read."""
    return dtype if dtype in (torch.float32, torch.bfloat16, torch.float16) else torch.float32


def is_capturing():
    """True while torch captures the current stream's work in a CUDA graph."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def memory_at(tensor):
    """Where the tensor's values begin, to compare it; libpride gets Place.address()."""
    return tensor.data_ptr()


class Place:
    """Memory in which libpride reads and writes tensors."""

    def address(self, tensor, dtype, n):
        """Where libpride reads or writes n values in a row. The only way to it, because libpride
        cannot check a tensor: torch's defaults for dtype and device, which a caller may set, would
        make it write beyond the end."""
        if (tensor.dtype, tensor.numel()) != (dtype, n) or not (
                tensor.is_contiguous() and self.reads(tensor)):
            raise Error(f"pride: a tensor for libpride has {tensor.numel()} values of "
                        f"{tensor.dtype} on '{tensor.device}', with strides {tensor.stride()}; it "
                        f"must have {n} of {dtype}, in a row, in memory {self.code}")
        return tensor.data_ptr()


class Host(Place):
    """The host's memory."""

    code = 0  # PRIDE_CPU
    bucket_size = 4 << 20

    def reads(self, tensor):
        return tensor.is_cpu

    def copy(self, tensor):
        """A copy that libpride can read, page-locked if the tensor is on a GPU."""
        copy = torch.empty(tensor.shape, dtype=_readable(tensor.dtype), device="cpu",
                           pin_memory=tensor.is_cuda)
        return copy.copy_(tensor.detach())

    def floats(self, address, n, owner):
        """A tensor over n floats of libpride's memory, which keeps its owner alive."""
        if n == 0:
            return torch.empty(0, dtype=torch.float32, device="cpu")
        return floats_at(address, (n,), (1,), torch.device("cpu"), owner)

    def follow(self, handle):
        """Before a call: orders it after the work queued on tensors. Nothing on the host."""

    def set_options(self, options):
        """Sets libpride's options for this place. Nothing for the host."""


HOST = Host()


class Device(Place):
    """A GPU."""

    code = 1  # PRIDE_CUDA
    bucket_size = 16 << 20  # lab/docs/results/steps.md

    def __init__(self, device):
        self.device = device
        self.handle = self._open()
        self._function = library.ORTHOGONALISE(self._orthogonalise)
        self._make_room = library.MAKE_ROOM(self._empty_cache)
        library.call("pride_device_set_make_room", self.handle, self._make_room, None)

    def _open(self):
        try:
            return library.Handle("device", "pride_cuda_device", self.device.index or 0)
        except OutOfMemory:  # libpride does not have _make_room yet
            self._empty_cache(None)
            return library.Handle("device", "pride_cuda_device", self.device.index or 0)

    def reads(self, tensor):
        return tensor.device == self.device

    def copy(self, tensor):
        """A copy on the GPU that libpride can read."""
        copy = torch.empty(tensor.shape, dtype=_readable(tensor.dtype), device=self.device)
        return copy.copy_(tensor.detach())

    def floats(self, address, n, owner):
        if n == 0:
            return torch.empty(0, dtype=torch.float32, device=self.device)
        return self._tensor(address, (n,), (1,), owner)

    def _tensor(self, address, shape, strides, owner=None):
        """A tensor over libpride's memory on the GPU."""
        return floats_at(address, shape, strides, self.device, owner)

    def stream(self):
        return torch.cuda.current_stream(self.device).cuda_stream

    def follow(self, handle):
        library.call("pride_optimizer_set_stream", handle, self.stream())

    def _empty_cache(self, _):
        """Gives the driver the memory that torch keeps for later."""
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()

    def set_options(self, options):
        options.device = self.handle.value
        options.orthogonalise = self._function

    def on_stream(self, stream):
        """A context in which torch queues its work on this stream."""
        return torch.cuda.stream(torch.cuda.ExternalStream(stream, device=self.device))

    def _orthogonalise(self, _, matrices, stream, why, size):
        """The callback of libpride for newton_schulz()."""
        try:
            m = matrices.contents
            with torch.no_grad(), self.on_stream(stream):
                each = [self._tensor(m.data[i], (m.rows, m.cols), (m.stride, 1)) for i in range(m.n)]
                newton_schulz(each, m.iterations)
            return 0
        except BaseException as error:  # Ctrl-C, too: ctypes would ignore it
            library.keep_error(error, why, size)
            return 1


def newton_schulz(matrices, iterations, most=1 << 26):
    """Replaces matrices of one shape by their Newton-Schulz iterates (Jordan et al. 2024;
    docs/methods/muon.md). torch.backends.cuda.matmul.allow_tf32 sets the products' precision.
    A batch of several matrices has at most `most` values."""
    a, b, d = 3.4445, -4.7750, 2.0315
    rows, cols = matrices[0].shape
    size = max(1, most // (rows * cols))
    for first in range(0, len(matrices), size):
        batch = matrices[first:first + size]
        x = torch.stack(batch)
        tall = rows > cols
        if tall:
            x = x.transpose(1, 2)
        norm = torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True, dtype=torch.float64).float()
        x = torch.where(norm < 2.0 ** -100, torch.zeros_like(x), x / norm.clamp_min(2.0 ** -100))
        for _ in range(iterations):
            gram = x @ x.transpose(1, 2)
            x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=d), x, beta=a)
        for target, value in zip(batch, x.transpose(1, 2) if tall else x):
            target.copy_(value)


def gpu_of(tensors):
    """The one GPU on which all tensors lie, or None."""
    devices = {tensor.device for tensor in tensors}
    device = devices.pop() if len(devices) == 1 else None
    return device if device is not None and device.type == "cuda" else None


def place_of(tensors, settings, methods):
    """The place where the methods run. run_on "auto": the parameters' GPU, if all of them have
    kernels for it. If that GPU cannot be used (driver, NVRTC, a kernel's bits, memory), the host,
    with a warning."""
    run_on = settings["run_on"]
    check_one_of("run_on", run_on, RUN_ON)
    gpu = None if run_on == "host" else gpu_of(tensors)
    if gpu is None:
        reason = "the parameters do not lie on one GPU"
    else:
        reasons = (library.why_host_only(method, options) for method, options, _ in methods)
        reason = next(filter(None, reasons), "")
    if run_on == "device" and reason:
        raise InvalidArgument(f"pride: run_on = 'device': {reason}")
    if reason:
        _note(methods, "run_on = 'host'" if run_on == "host" else reason)
        return HOST
    return _place_on(gpu, settings, methods)


def place_of_values(values):
    """The place of a tensor's arithmetic without a method: its GPU, or else the host, as above."""
    gpu = gpu_of([values])
    return HOST if gpu is None else _place_on(gpu, {"run_on": "auto"}, [("gradient mean",)])


def _place_on(gpu, settings, methods):
    try:
        with _OPENING:  # hooks' threads
            if gpu.index not in _KEPT:
                _KEPT[gpu.index] = Device(gpu)
            return _KEPT[gpu.index]
    except (InvalidArgument, OutOfMemory) as error:
        return _host_instead(settings, methods, error)


def place_with_memory(place, layout, slots, settings, groups, bucket_size, methods):
    """The place, or the host instead of a GPU that cannot allocate this optimizer's memory."""
    if place is HOST:
        return HOST
    options = library.make_options(
        settings["method"], settings["options"], groups, bucket_coords=bucket_size,
        virtual_workers=settings.get("workers", 0))
    place.set_options(options)
    masters = sum(slot.n * (2 if slot.dtype == torch.bfloat16 else 4)
                  for slot in slots if slot.narrow())
    try:
        library.call("pride_optimizer_check_memory", layout, c.byref(options), masters)
    except Error as error:
        return _host_instead(settings, methods, error)
    _note(methods, "")
    return place


def _host_instead(settings, methods, error):
    """Raises the error where run_on = "device"; otherwise the host, with one warning."""
    if settings["run_on"] == "device":
        raise error
    text = str(error)
    if text not in _WARNED:
        _WARNED.add(text)
        warnings.warn(f"pride: gradients are copied to the host, where the method runs: {text}")
    _note(methods, text)
    return HOST


def _note(methods, reason):
    _CHOSEN[names_of(methods), reason] = None


def device_report() -> str:
    """What this machine has for methods on GPUs, whether each GPU's kernels give the bits of the
    host, and where this process's optimizers run, with the reason if that is the host. It opens the
    GPUs."""
    text = c.c_char_p()
    library.call("pride_cuda_report", c.byref(text))
    lines = [f"{names}: " + (f"on the host: {reason}" if reason else "on the GPU")
             for names, reason in _CHOSEN]
    return text.value.decode("utf-8", "replace") + "".join(line + "\n" for line in lines)
