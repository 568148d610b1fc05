"""Tensors over libpride's memory: views keep its owner alive, and numpy is not needed."""
# SPDX-License-Identifier: Apache-2.0
import ctypes
import gc
import subprocess
import sys
import weakref

import torch

from pride import _memory

CPU = torch.device("cpu")


class Owner:
    pass


def test_a_view_keeps_the_owner_alive():
    memory, owner = (ctypes.c_float * 12)(*range(12)), Owner()
    alive = weakref.ref(owner)
    whole = _memory.floats_at(ctypes.addressof(memory), (3, 2), (4, 1), CPU, owner)
    assert whole.tolist() == [[0, 1], [4, 5], [8, 9]] and whole.stride() == (4, 1)
    row = whole[1]
    del owner, whole
    gc.collect()
    assert alive() is not None
    row.fill_(7)
    assert memory[4:7] == [7, 7, 6]
    del row
    gc.collect()
    assert alive() is None


WITHOUT_NUMPY = """
import builtins, ctypes, sys, warnings
sys.modules["numpy"] = None
warnings.simplefilter("ignore")
import torch
from pride import _device
memory = (ctypes.c_float * 4)(1, 2, 3, 4)
place = _device.Device.__new__(_device.Device)
place.device = torch.device("cpu")
builtins.at_exit = place.floats(ctypes.addressof(memory), 4, memory)  # outlives pride's modules
assert builtins.at_exit.tolist() == [1, 2, 3, 4]
"""


def test_a_gpus_memory_becomes_a_tensor_without_numpy():
    done = subprocess.run([sys.executable, "-c", WITHOUT_NUMPY], capture_output=True, text=True,
                          check=False)
    assert (done.returncode, done.stderr) == (0, "")
