# Digests of bytes and of tensors' values, which ranks compare.
# SPDX-License-Identifier: Apache-2.0
import ctypes as c
import hashlib
import math
import struct

import torch

from . import _library as library
from ._tensors import arrays_of


def digest(data):
    return struct.unpack("<Q", hashlib.blake2b(data, digest_size=8).digest())[0]


def hash_of(tensors):
    """64-bit digest of the values of row-major tensors; None is skipped."""
    out = c.c_uint64()
    tensors = [None if tensor is None else tensor.detach().cpu() for tensor in tensors]
    library.call("pride_hash_tensors", arrays_of(tensors), len(tensors), c.byref(out))
    return out.value


def sample_of(tensors, turn, most=4):
    """A digest of up to 16 values of each of some tensors in host memory, others in each turn; 0 if
    all are zero or some are not finite. None is skipped."""
    kept = [t for t in tensors if t is not None and t.numel() and t.is_cpu]
    parts = []
    for j in range(min(most, len(kept))):
        values = kept[(turn + j * len(kept) // most) % len(kept)].detach().reshape(-1)
        gap = max(1, values.numel() // 16)
        parts.append(values[turn % gap::gap][:16].float())
    if not parts:
        return 0
    values = torch.cat(parts)
    numbers = values.tolist()
    return hash_of([values]) if any(numbers) and all(map(math.isfinite, numbers)) else 0


def same_bits(tensor, copy):
    """True if `copy`, made by a place's copy(), has the bits of the tensor."""
    now = torch.empty(tensor.shape, dtype=copy.dtype, device=copy.device).copy_(tensor.detach())
    bits = torch.int32 if now.dtype == torch.float32 else torch.int16
    return torch.equal(now.view(bits), copy.view(bits))


def hash_as_float32(p):
    """As hash_of(), for a parameter in any memory. Equal values of any dtype have equal hashes."""
    return hash_of([p.detach().cpu().float().contiguous()])
