"""torch's CPU as a GPU: its tensors are memory of the CUDA driver that PRIDE_CUDA_DRIVER names."""
# SPDX-License-Identifier: Apache-2.0
import contextlib
import ctypes
import os

import torch

from pride import _device


# Devices whose cache was emptied, and what a test does then.
emptied, for_room = [], [lambda: None]


def driver():
    return ctypes.CDLL(os.environ["PRIDE_CUDA_DRIVER"])


class FakeGpu(_device.Device):
    def reads(self, tensor):
        return tensor.is_cpu

    def copy(self, tensor):
        return _device.HOST.copy(tensor)

    def floats(self, address, n, owner):
        return _device.HOST.floats(address, n, owner)

    def stream(self):
        return 0

    def _empty_cache(self, _):
        emptied.append(self.device)
        for_room[0]()

    def on_stream(self, stream):
        synchronize(stream)
        return contextlib.nullcontext()

    def _tensor(self, address, shape, strides, owner=None):
        last = sum((n - 1) * s for n, s in zip(shape, strides)) + 1
        return _device.HOST.floats(address, last, owner).as_strided(shape, strides)


def synchronize(stream=None):
    """Runs the queue of a stream. torch's work on the CPU is in no stream: it waits for what the
    caller's stream, 0, waits for."""
    context, cuda = ctypes.c_void_p(), driver()
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    cuda.cuCtxPushCurrent_v2(context)
    assert cuda.cuStreamSynchronize(ctypes.c_void_p(stream)) == 0


def install():
    _device.Device, _device.gpu_of = FakeGpu, lambda tensors: torch.device("cuda", 0)
