# libpride.so by ctypes: structs, functions, and errors as exceptions.
# SPDX-License-Identifier: Apache-2.0
import ctypes as c
import os
import pathlib

from .errors import CommError, DataError, Error, InvalidArgument, NonFiniteGradient

C_VERSION = 4
OK, PENDING, INVALID, COMM_ERROR, NON_FINITE, DATA_ERROR, NO_MEMORY = range(7)
FLOAT32 = 0
LOCAL, SHARED, SERVER = range(3)  # kinds of state

_ERRORS = {INVALID: InvalidArgument, COMM_ERROR: CommError, NON_FINITE: NonFiniteGradient,
           DATA_ERROR: DataError, NO_MEMORY: MemoryError}


class Array(c.Structure):
    _fields_ = [("data", c.c_void_p), ("n", c.c_uint64), ("dtype", c.c_int32),
                ("device", c.c_int32), ("device_index", c.c_int32), ("reserved", c.c_int32),
                ("stream", c.c_void_p)]


class Tensor(c.Structure):
    _fields_ = [("name", c.c_char_p), ("shape", c.POINTER(c.c_int64)), ("n_dims", c.c_int32),
                ("group", c.c_int32)]


class Group(c.Structure):
    _fields_ = [(name, c.c_double) for name in ("lr", "beta1", "beta2", "eps", "weight_decay")]


class Options(c.Structure):
    _fields_ = [("struct_size", c.c_uint32), ("skip_non_finite", c.c_int32),
                ("method", c.c_char_p), ("names", c.POINTER(c.c_char_p)),
                ("values", c.POINTER(c.c_char_p)), ("n_options", c.c_uint64),
                ("groups", c.POINTER(Group)), ("n_groups", c.c_uint64),
                ("bucket_coords", c.c_uint64), ("seed", c.c_uint64),
                ("clip_global_norm", c.c_double), ("overlap", c.c_int32),
                ("exchange_threads", c.c_int32), ("node_of_rank", c.POINTER(c.c_int32)),
                ("vote_weight", c.c_int32), ("reserved", c.c_int32)]


class Report(c.Structure):
    _fields_ = [("struct_size", c.c_uint32), ("skipped", c.c_int32), ("step", c.c_int64),
                ("bytes_sent", c.c_uint64), ("bytes_received", c.c_uint64),
                ("messages_sent", c.c_uint64), ("grad_norm", c.c_double),
                ("encode_s", c.c_double), ("exchange_s", c.c_double), ("apply_s", c.c_double)]


NOTICE = c.CFUNCTYPE(None, c.c_void_p, c.c_char_p)


class CoordinatorAddress(c.Structure):
    _fields_ = [("struct_size", c.c_uint32), ("reserved", c.c_int32), ("host_port", c.c_char_p),
                ("certificates", c.c_char_p), ("name", c.c_char_p), ("secret_file", c.c_char_p),
                ("patience_ms", c.c_int64), ("notice", NOTICE), ("user", c.c_void_p)]


class Round(c.Structure):
    _fields_ = [("struct_size", c.c_uint32), ("counted", c.c_int32), ("round", c.c_int64),
                ("replayed", c.c_int64), ("voters", c.c_int32), ("took_parameters", c.c_int32),
                ("why_not", c.c_char_p)]


class Cost(c.Structure):
    _fields_ = [("bytes_up", c.c_uint64), ("bytes_down", c.c_uint64), ("bytes_local", c.c_uint64),
                ("exact", c.c_int32), ("bound", c.c_int32)]


class Method(c.Structure):
    _fields_ = [("struct_size", c.c_uint32), ("state_floats", c.c_int32), ("name", c.c_char_p),
                ("title", c.c_char_p), ("source", c.c_char_p), ("growth", c.c_char_p),
                ("bits_up", c.c_double), ("bits_down", c.c_double), ("exact_cost", c.c_int32),
                ("max_world", c.c_int32), ("defaults", Group), ("n_options", c.c_uint64)]


class PlanFacts(c.Structure):
    _fields_ = [("struct_size", c.c_uint32), ("world", c.c_int32), ("params", c.c_double),
                ("compute_s", c.c_double), ("bytes_per_s", c.c_double), ("latency_s", c.c_double),
                ("message_s", c.c_double), ("cores", c.c_double), ("exchange_threads", c.c_int32),
                ("reserved", c.c_int32)]


class PlanRow(c.Structure):
    _fields_ = [("struct_size", c.c_uint32), ("buckets", c.c_int32), ("bytes", c.c_double),
                ("in_order_s", c.c_double), ("overlapped_s", c.c_double),
                ("network_s", c.c_double), ("arithmetic_s", c.c_double), ("route", c.c_char_p),
                ("bottleneck", c.c_char_p)]


_sizes = c.POINTER(c.c_uint64)
_text = [c.c_void_p, c.c_uint64]  # where a callback writes the reason of its failure
ALL_TO_ALL_V = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.c_void_p, _sizes, c.c_void_p, _sizes,
                           c.c_int64, *_text)
ALL_REDUCE = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.c_void_p, c.c_uint64, c.c_int32, c.c_int64,
                         *_text)
GROUP = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.POINTER(c.c_int32), c.c_int32, c.c_int64,
                    c.POINTER(c.c_void_p), *_text)
CHECK = c.CFUNCTYPE(c.c_int32, c.c_void_p, *_text)
FAIL = c.CFUNCTYPE(None, c.c_void_p, c.c_char_p)
RELEASE = c.CFUNCTYPE(None, c.c_void_p)


class Transport(c.Structure):
    _fields_ = [("struct_size", c.c_uint32), ("rank", c.c_int32), ("size", c.c_int32),
                ("name", c.c_char_p), ("user", c.c_void_p), ("all_to_all_v", ALL_TO_ALL_V),
                ("all_reduce", ALL_REDUCE), ("group", GROUP), ("check", CHECK), ("fail", FAIL),
                ("release", RELEASE)]


_handle = c.c_void_p
_out = c.POINTER(c.c_void_p)
_strings = [c.POINTER(c.c_char_p)]
# name: (result, arguments); a result of None is a status, which `call` turns into an exception
_FUNCTIONS = {
    "pride_last_error": (c.c_char_p, []),
    "pride_c_version": (c.c_uint32, []),
    "pride_version": (c.c_char_p, []),
    "pride_isa": (c.c_char_p, []),
    "pride_layout_create": (None, [c.POINTER(Tensor), c.c_uint64, _out]),
    "pride_layout_destroy": ("void", [_handle]),
    "pride_layout_flat_size": (c.c_uint64, [_handle]),
    "pride_layout_digest": (c.c_uint64, [_handle]),
    "pride_layout_slot": (None, [_handle, c.c_uint64, _sizes, _sizes]),
    "pride_hash": (None, [_handle, c.c_void_p, _sizes]),
    "pride_comm_create": (None, [c.POINTER(Transport), _out]),
    "pride_comm_threads": (None, [c.c_int32, _out]),
    "pride_comm_destroy": ("void", [_handle]),
    "pride_comm_set_timeout": (None, [_handle, c.c_int64]),
    "pride_comm_all_gather": (None, [_handle, c.c_void_p, c.c_uint64, c.c_void_p]),
    "pride_comm_all_to_all_v": (None, [_handle, c.c_void_p, _sizes, c.c_void_p, _sizes]),
    "pride_comm_fail": ("void", [_handle, c.c_char_p]),
    "pride_options_init": ("void", [c.POINTER(Options), c.c_uint32]),
    "pride_optimizer_create": (None, [_handle, _handle, c.POINTER(Options), _out]),
    "pride_optimizer_destroy": ("void", [_handle]),
    "pride_coordinator_connect": (None, [c.POINTER(CoordinatorAddress), _out]),
    "pride_coordinator_destroy": ("void", [_handle]),
    "pride_optimizer_create_worker": (None, [_handle, _handle, c.POINTER(Options), c.c_char_p,
                                             _out]),
    "pride_optimizer_round": (None, [_handle, c.POINTER(Round)]),
    "pride_optimizer_begin": (None, [_handle, c.POINTER(Array), c.POINTER(Array)]),
    "pride_optimizer_ready": (None, [_handle, c.c_uint64, c.c_int32]),
    "pride_optimizer_ready_at": (None, [_handle, c.c_uint64, c.POINTER(Array)]),
    "pride_optimizer_finish": (None, [_handle, c.c_int64, c.POINTER(Report)]),
    "pride_optimizer_note": (c.c_char_p, [_handle]),
    "pride_optimizer_set_group": (None, [_handle, c.c_int32, c.POINTER(Group)]),
    "pride_optimizer_add": (None, [_handle, c.POINTER(Tensor), c.c_uint64, c.POINTER(Group),
                                   c.c_uint64]),
    "pride_optimizer_broadcast": (None, [_handle, c.POINTER(Array)]),
    "pride_optimizer_steps_done": (c.c_int64, [_handle]),
    "pride_optimizer_cost": (None, [_handle, c.c_int64, c.POINTER(Cost)]),
    "pride_optimizer_mean_cost": (None, [_handle, c.c_int64, c.POINTER(Cost)]),
    "pride_optimizer_period": (c.c_int64, [_handle]),
    "pride_optimizer_to_common": (None, [_handle, c.POINTER(Array)]),
    "pride_optimizer_to_local": (None, [_handle, c.POINTER(Array)]),
    "pride_optimizer_state_buffer": (None, [_handle, c.c_uint64, *_strings, c.POINTER(c.c_int32),
                                            _out]),
    "pride_optimizer_state_memory": (None, [_handle, _out]),
    "pride_memory_destroy": ("void", [_handle]),
    "pride_optimizer_save": (None, [_handle, _out]),
    "pride_optimizer_load": (None, [_handle, _handle]),
    "pride_optimizer_load_all": (None, [_handle, _out, c.c_uint64, c.c_int32]),
    "pride_state_create": (None, [_out]),
    "pride_state_destroy": ("void", [_handle]),
    "pride_state_tensors": (c.c_uint64, [_handle]),
    "pride_state_tensor": (None, [_handle, c.c_uint64, c.POINTER(Tensor), _out]),
    "pride_state_set_tensor": (None, [_handle, c.POINTER(Tensor), c.c_void_p]),
    "pride_state_texts": (c.c_uint64, [_handle]),
    "pride_state_text": (None, [_handle, c.c_uint64, *_strings, *_strings]),
    "pride_state_set_text": (None, [_handle, c.c_char_p, c.c_char_p]),
    "pride_method_count": (c.c_uint64, []),
    "pride_method_name": (c.c_char_p, [c.c_uint64]),
    "pride_method_info": (None, [c.c_char_p, c.c_int32, c.POINTER(Method)]),
    "pride_method_option": (None, [c.c_char_p, c.c_uint64, *_strings, *_strings, *_strings]),
    "pride_plan": (None, [_handle, c.POINTER(Options), c.POINTER(PlanFacts), c.POINTER(PlanRow)]),
    "pride_method_cost": (None, [c.POINTER(Options), _handle, c.c_int32, c.c_int32, c.c_int64,
                                 c.POINTER(Cost)]),
    "pride_method_mean_cost": (None, [c.POINTER(Options), _handle, c.c_int32, c.c_int32,
                                          c.c_int64, c.POINTER(c.c_int32), c.POINTER(Cost)]),
}


def find(name):
    """Path of a library of the package, or of the folder that PRIDE_LIBRARY_DIR names."""
    folder = os.environ.get("PRIDE_LIBRARY_DIR") or pathlib.Path(__file__).parent / "lib"
    return pathlib.Path(folder) / name


def _open():
    """libpride_coord.so, which is libpride.so with gRPC, where it was built and gRPC is there."""
    path = find("libpride_coord.so")
    try:
        return path, c.CDLL(str(path))
    except OSError:
        pass
    path = find("libpride.so")
    try:
        return path, c.CDLL(str(path))
    except OSError as error:
        raise ImportError(f"pride: cannot load {path}: {error}. Build the package with "
                          "`pip install ./python` from pride's source folder") from error


def _load():
    path, library = _open()
    for name, (result, arguments) in _FUNCTIONS.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise ImportError(f"pride: {path} is not of this package's version: it has no {name}() "
                              "(PRIDE_LIBRARY_DIR names an older build?)") from None
        function.argtypes = arguments
        function.restype = c.c_int if result is None else None if result == "void" else result
    if library.pride_c_version() < C_VERSION:
        raise ImportError(f"pride: {path} has version {library.pride_c_version()} of the C "
                          f"interface, this package needs {C_VERSION}")
    return library


lib = _load()


def check(status):
    """Raises the exception of a status; PENDING is returned."""
    if status in (OK, PENDING):
        return status
    text = lib.pride_last_error().decode("utf-8", "replace")
    raise _ERRORS.get(status, Error)(text)


def call(name, *arguments):
    return check(getattr(lib, name)(*arguments))


class Handle:
    """Owns one of the library's objects; keeps `parents` alive as long as it lives."""

    def __init__(self, kind, make, *arguments, parents=()):
        self.value, self._parents, self._pid = None, parents, os.getpid()
        self._destroy = getattr(lib, f"pride_{kind}_destroy")
        out = c.c_void_p()
        call(make, *arguments, c.byref(out))
        self.value = out.value

    @classmethod
    def owning(cls, kind, value, parents=()):
        made = cls.__new__(cls)
        made.value, made._parents, made._pid = value, parents, os.getpid()
        made._destroy = getattr(lib, f"pride_{kind}_destroy")
        return made

    @property
    def _as_parameter_(self):
        return c.c_void_p(self.value)

    def close(self, getpid=os.getpid):  # as the interpreter ends, `os` is gone
        # in a forked child the threads of the object do not exist: its memory is left as it is
        value, self.value = self.value, None
        if value and self._pid == getpid():
            self._destroy(value)

    def __del__(self):
        self.close()


def write_error(text, where, size):
    """Writes the reason of a callback's failure."""
    data = text.encode("utf-8", "replace")[: size - 1] + b"\0"
    c.memmove(where, data, len(data))


def tensors(specs):
    """Array of pride_tensor from (name, shape, group), and what must stay alive with it."""
    array = (Tensor * len(specs))()
    for slot, (name, shape, group) in zip(array, specs):
        dims = (c.c_int64 * len(shape))(*shape)
        slot.name, slot.n_dims, slot.group = name.encode(), len(shape), group
        slot.shape = c.cast(dims, c.POINTER(c.c_int64))
    return array


def make_layout(specs):
    return Handle("layout", "pride_layout_create", tensors(specs), len(specs))


def make_options(method, options, groups=(), **values):
    """pride_options; `options` are the method's own, `groups` a list of Group."""
    made = Options()
    lib.pride_options_init(c.byref(made), c.sizeof(Options))
    made.method = method.encode()
    names = [str(k).encode() for k in options]
    texts = [option_text(v).encode() for v in options.values()]
    made.names = (c.c_char_p * len(names))(*names)
    made.values = (c.c_char_p * len(texts))(*texts)
    made.n_options = len(names)
    if groups:
        made.groups = (Group * len(groups))(*groups)
        made.n_groups = len(groups)
    for name, value in values.items():
        setattr(made, name, value)
    return made


def option_text(value):
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
