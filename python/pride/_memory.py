# Tensors over libpride's memory. By DLPack, because torch reads __cuda_array_interface__ with numpy
# only, which pride does not need.
# SPDX-License-Identifier: Apache-2.0
import ctypes as c

from torch.utils.dlpack import from_dlpack

_NAME = b"dltensor"  # a capsule keeps the address
_CPU, _CUDA, _FLOAT = 1, 2, 2  # DLDeviceType, DLDataTypeCode


class _Managed(c.Structure):
    """DLManagedTensor, with DLTensor's members first."""
    _fields_ = [("data", c.c_void_p), ("device_type", c.c_int32), ("device_id", c.c_int32),
                ("n_dims", c.c_int32), ("code", c.c_uint8), ("bits", c.c_uint8),
                ("lanes", c.c_uint16), ("shape", c.POINTER(c.c_int64)),
                ("strides", c.POINTER(c.c_int64)), ("byte_offset", c.c_uint64),
                ("context", c.c_void_p), ("deleter", c.CFUNCTYPE(None, c.c_void_p))]


_held = {}  # by the address of a _Managed: all that its tensors need


@c.CFUNCTYPE(None, c.c_void_p)
def _free(managed, held=_held):
    held.pop(managed, None)


# a tensor may outlive this module when the interpreter ends
c.pythonapi.Py_IncRef(c.py_object(_free))
_new_capsule = c.PYFUNCTYPE(c.py_object, c.c_void_p, c.c_char_p, c.c_void_p)(
    ("PyCapsule_New", c.pythonapi))


def floats_at(address, shape, strides, device, owner):
    """A float32 tensor over memory of a device. All views of it keep the owner alive."""
    numbers = c.c_int64 * len(shape)
    managed = _Managed(
        data=address, device_type=_CUDA if device.type == "cuda" else _CPU,
        device_id=device.index or 0, n_dims=len(shape), code=_FLOAT, bits=32, lanes=1,
        shape=numbers(*shape), strides=numbers(*strides), deleter=_free)
    at = c.addressof(managed)
    _held[at] = managed, owner
    return from_dlpack(_new_capsule(at, _NAME, None))
