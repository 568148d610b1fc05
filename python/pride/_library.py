# libpride.so by ctypes: structs, functions, and errors as exceptions.
# SPDX-License-Identifier: Apache-2.0
import collections.abc
import ctypes as c
import os
import pathlib
import traceback

from ._blas import warn_of_kernels
from .errors import (CommError, DataError, Error, InvalidArgument, NonFiniteGradient, OutOfMemory,
                     c_text, number, of_type, text, whole)

C_VERSION = 15
OK, PENDING, INVALID, COMM_ERROR, NON_FINITE, DATA_ERROR, NO_MEMORY, _, NO_DEVICE_MEMORY = range(9)
FLOAT32, BFLOAT16, FLOAT16 = range(3)
LOCAL, SHARED, SERVER = range(3)  # kinds of state
BY_NAME, MATRIX, NO_MATRIX, UNNAMED = range(4)

_ERRORS = {INVALID: InvalidArgument, COMM_ERROR: CommError, NON_FINITE: NonFiniteGradient,
           DATA_ERROR: DataError, NO_MEMORY: MemoryError,
           NO_DEVICE_MEMORY: OutOfMemory}


_RANGES = {kind: (-(1 << 8 * c.sizeof(kind) - 1), (1 << 8 * c.sizeof(kind) - 1) - 1)
           for kind in (c.c_int32, c.c_int64)}
_RANGES.update((kind, (0, (1 << 8 * c.sizeof(kind)) - 1)) for kind in (c.c_uint32, c.c_uint64))


def integers(kind, name, values):
    """An array of a type of C."""
    return (kind * len(values))(*(whole(name, value, *_RANGES[kind]) for value in values))


def _struct(name, *fields):
    """A structure; each field is a type and the names of one or more members. A member struct_size
    begins as the size."""
    members = [(member, kind) for kind, names in fields for member in names.split()]

    kinds = dict(members)
    ranges = {member: _RANGES[kind] for member, kind in members if kind in _RANGES}

    def begin(self, *values, **more):
        c.Structure.__init__(self, *values, **more)
        if members[0][0] == "struct_size":
            self.struct_size = c.sizeof(self)

    def put(self, member, value):
        if member in ranges:
            value = whole(member, value, *ranges[member])
        elif kinds[member] is c.c_double and not isinstance(value, float):
            value = number(member, value)
        c.Structure.__setattr__(self, member, value)

    # Array's are addresses and sizes of tensors, set for each gradient of a step
    return type(name, (c.Structure,), {"_fields_": members, "__init__": begin,
                                       **({"__setattr__": put} if name != "Array" else {})})


NOTICE = c.CFUNCTYPE(None, c.c_void_p, c.c_char_p)
_i32, _i64, _u32, _u64, _double = c.c_int32, c.c_int64, c.c_uint32, c.c_uint64, c.c_double
_pointer, _string = c.c_void_p, c.c_char_p
Array = _struct("Array", (_pointer, "data"), (_u64, "n"),
                (_i32, "dtype device device_index reserved"), (_pointer, "stream"))
Tensor = _struct("Tensor", (_string, "name"), (c.POINTER(_i64), "shape"), (_i32, "n_dims group"))
Group = _struct("Group", (_double, "lr beta1 beta2 eps weight_decay momentum"), (_string, "method"),
                (c.POINTER(_string), "names values"), (_u64, "n_options"))
Matrices = _struct("Matrices", (c.POINTER(_pointer), "data"), (_u64, "n rows cols stride"),
                   (_i32, "iterations reserved"))
ORTHOGONALISE = c.CFUNCTYPE(c.c_int, _pointer, c.POINTER(Matrices), _pointer, _pointer, _u64)
MAKE_ROOM = c.CFUNCTYPE(None, _pointer)
MODEL_PARALLEL_SUM = c.CFUNCTYPE(c.c_int, _pointer, c.POINTER(_double), _u64, _pointer, _u64)
BEFORE_APPLY = c.CFUNCTYPE(c.c_int, _pointer, _pointer, _u64)
Options = _struct(
    "Options", (_u32, "struct_size"), (_i32, "skip_non_finite"), (_string, "method"),
    (c.POINTER(_string), "names values"), (_u64, "n_options"), (c.POINTER(Group), "groups"),
    (_u64, "n_groups bucket_coords seed"), (_double, "clip_global_norm"),
    (_i32, "overlap exchange_threads"), (c.POINTER(_i32), "node_of_rank"),
    (_i32, "vote_weight virtual_workers"), (_pointer, "device"), (ORTHOGONALISE, "orthogonalise"),
    (_pointer, "orthogonalise_user"), (MODEL_PARALLEL_SUM, "model_parallel_sum"),
    (_pointer, "model_parallel_sum_user"), (BEFORE_APPLY, "before_apply"),
    (_pointer, "before_apply_user"))
Report = _struct("Report", (_u32, "struct_size"), (_i32, "skipped"), (_i64, "step"),
                 (_u64, "bytes_sent bytes_received messages_sent"),
                 (_double, "grad_norm encode_s exchange_s apply_s"))
CoordinatorAddress = _struct(
    "CoordinatorAddress", (_u32, "struct_size"), (_i32, "reserved"),
    (_string, "host_port certificates name secret_file"), (_i64, "patience_ms"),
    (NOTICE, "notice"), (_pointer, "user"))
Round = _struct("Round", (_u32, "struct_size"), (_i32, "counted"), (_i64, "round replayed"),
                (_i32, "voters took_parameters"), (_string, "why_not"))
Cost = _struct("Cost", (_u64, "bytes_up bytes_down bytes_local"), (_i32, "exact bound"))
Section = _struct("Section", (_u32, "struct_size"), (_i32, "index"), (_string, "method options"),
                  (_u64, "n_coords state"), (Cost, "cost mean_cost"),
                  (_u64, "bytes_sent bytes_received messages_sent"))
StateBuffer = _struct("StateBuffer", (_string, "name"), (_pointer, "data"),
                      (_i32, "kind dtype section reserved"))
MemoryUse = _struct("MemoryUse", (_u32, "struct_size reserved"),
                    (_u64, "state masters frames scratch"))
Method = _struct("Method", (_u32, "struct_size"), (_i32, "state_floats"),
                 (_string, "name title source growth"), (_double, "bits_up bits_down"),
                 (_i32, "exact_cost max_world"), (Group, "defaults"), (_u64, "n_options"))
PlanFacts = _struct(
    "PlanFacts", (_u32, "struct_size"), (_i32, "world"),
    (_double, "params compute_s bytes_per_s latency_s message_s cores"),
    (_i32, "exchange_threads reserved"),
    (_double, "device_bytes_per_s device_host_bytes_per_s device_operations_per_s"))
PlanRow = _struct(
    "PlanRow", (_u32, "struct_size"), (_i32, "buckets"),
    (_double, "bytes in_order_s overlapped_s network_s arithmetic_s"),
    (_string, "route bottleneck"))

_sizes = c.POINTER(_u64)
_text = [_pointer, _u64]  # where a callback writes why it failed
ALL_TO_ALL_V = c.CFUNCTYPE(_i32, _pointer, _pointer, _sizes, _pointer, _sizes,
                           _i64, *_text)
ALL_REDUCE = c.CFUNCTYPE(_i32, _pointer, _pointer, _u64, _i32, _i64,
                         *_text)
GROUP = c.CFUNCTYPE(_i32, _pointer, c.POINTER(_i32), _i32, _i64,
                    c.POINTER(_pointer), *_text)
CHECK = c.CFUNCTYPE(_i32, _pointer, *_text)
FAIL = c.CFUNCTYPE(None, _pointer, _string)
RELEASE = c.CFUNCTYPE(None, _pointer)
Transport = _struct(
    "Transport", (_u32, "struct_size"), (_i32, "rank size"), (_string, "name"), (_pointer, "user"),
    (ALL_TO_ALL_V, "all_to_all_v"), (ALL_REDUCE, "all_reduce"), (GROUP, "group"),
    (CHECK, "check"), (FAIL, "fail"), (RELEASE, "release"))

_handle = c.c_void_p
_out = c.POINTER(_pointer)
_text_out = c.POINTER(_string)
_array, _tensor, _group, _options, _report, _round, _cost = map(
    c.POINTER, (Array, Tensor, Group, Options, Report, Round, Cost))
# name: (result, arguments); None is a status, which `call` turns into an exception
_FUNCTIONS = {
    "pride_last_error": (_string, []),
    "pride_c_version": (_u32, []),
    "pride_version": (_string, []),
    "pride_isa": (_string, []),
    "pride_layout_create_at": (None, [_tensor, _sizes, _u64, _out]),
    "pride_layout_set_matrices": (None, [_handle, c.POINTER(_i32), _u64]),
    "pride_layout_digest": (_u64, [_handle]),
    "pride_hash": (None, [_handle, _pointer, _sizes]),
    "pride_hash_tensors": (None, [_array, _u64, _sizes]),
    "pride_comm_create": (None, [c.POINTER(Transport), _out]),
    "pride_comm_threads": (None, [_i32, _out]),
    "pride_comm_set_timeout": (None, [_handle, _i64]),
    "pride_comm_network": (None, [_handle, _string, c.POINTER(_string), c.POINTER(_string)]),
    "pride_comm_all_gather": (None, [_handle, _pointer, _u64, _pointer]),
    "pride_comm_all_to_all_v": (None, [_handle, _pointer, _sizes, _pointer, _sizes]),
    "pride_comm_fail": ("void", [_handle, _string]),
    "pride_mean_create": (None, [_handle, _string, _handle, _out]),
    "pride_mean_run": (None, [_handle, _array, _sizes, _u64, c.POINTER(_i32)]),
    "pride_mean_bytes_sent": (_u64, [_handle]),
    "pride_options_init": ("void", [_options, _u32]),
    "pride_optimizer_create": (None, [_handle, _handle, _options, _out]),
    "pride_coordinator_connect": (None, [c.POINTER(CoordinatorAddress), _out]),
    "pride_coordinator_interrupt": ("void", [_handle]),
    "pride_optimizer_create_worker": (None, [_handle, _handle, _options, _string, _out]),
    "pride_optimizer_round": (None, [_handle, _round]),
    "pride_optimizer_set_parameters": (None, [_handle, _array, _u64]),
    "pride_optimizer_take_released": (None, [_handle, _sizes, _u64, _sizes]),
    "pride_optimizer_memory": (None, [_handle, c.POINTER(MemoryUse)]),
    "pride_optimizer_check_memory": (None, [_handle, _options, _u64]),
    "pride_cuda_report": (None, [_text_out]),
    "pride_cuda_device": (None, [_i32, _out]),
    "pride_device_set_make_room": (None, [_handle, MAKE_ROOM, _pointer]),
    "pride_device_rates": (None, [_handle, _u64, _double, c.POINTER(_double), c.POINTER(_double)]),
    "pride_method_why_host_only": (None, [_options, c.POINTER(_string)]),
    "pride_optimizer_set_stream": (None, [_handle, _pointer]),
    "pride_optimizer_set_frozen": (None, [_handle, c.POINTER(c.c_uint8)]),
    "pride_optimizer_set_gradient_factor": (None, [_handle, c.c_float]),
    "pride_optimizer_scale_next_step": (None, [_handle, _array]),
    "pride_optimizer_hash": (None, [_handle, _sizes]),
    "pride_optimizer_read": (None, [_handle, _u64, _u64, _u64, _pointer]),
    "pride_optimizer_begin": (None, [_handle, _array, _array]),
    "pride_optimizer_ready": (None, [_handle, _u64, _i32]),
    "pride_optimizer_ready_at": (None, [_handle, _u64, _array]),
    "pride_optimizer_finish": (None, [_handle, _i64, _report]),
    "pride_optimizer_to_worker": (None, [_handle, _i32, _array]),
    "pride_optimizer_hand_over": (None, [_handle, _i32, _array, _array, _u64]),
    "pride_optimizer_step_workers": (None, [_handle, _array, _report]),
    "pride_optimizer_save_worker": (None, [_handle, _i32, _out]),
    "pride_optimizer_routes": (None, [_handle, _text_out]),
    "pride_optimizer_note": (_string, [_handle]),
    "pride_optimizer_follow": (None, [_handle, _handle, c.POINTER(_i32)]),
    "pride_optimizer_results": (None, [_handle, _out, _sizes]),
    "pride_optimizer_result_bytes": (None, [_handle, _i32, _sizes]),
    "pride_optimizer_apply_results": (None, [_handle, _i32, _array, _u64, c.POINTER(c.c_uint8),
                                             _pointer, _u64]),
    "pride_optimizer_set_group": (None, [_handle, _i32, _group]),
    "pride_optimizer_add": (None, [_handle, _handle, _group, _u64]),
    "pride_optimizer_broadcast": (None, [_handle, _array]),
    "pride_optimizer_steps_done": (_i64, [_handle]),
    "pride_optimizer_cost": (None, [_handle, _i64, _cost]),
    "pride_optimizer_mean_cost": (None, [_handle, _i64, _cost]),
    "pride_optimizer_period": (_i64, [_handle]),
    "pride_optimizer_to_common": (None, [_handle, _array]),
    "pride_optimizer_to_local": (None, [_handle, _array]),
    "pride_optimizer_section": (None, [_handle, _i32, _i64, c.POINTER(Section)]),
    "pride_optimizer_state_buffer": (None, [_handle, _u64, c.POINTER(StateBuffer)]),
    "pride_optimizer_state_memory": (None, [_handle, _out]),
    "pride_optimizer_save": (None, [_handle, _out]),
    "pride_optimizer_load": (None, [_handle, _handle]),
    "pride_optimizer_load_all": (None, [_handle, _out, _u64, _i32]),
    "pride_state_create": (None, [_out]),
    "pride_state_tensors": (_u64, [_handle]),
    "pride_state_tensor": (None, [_handle, _u64, _tensor, _out]),
    "pride_state_set_tensor": (None, [_handle, _tensor, _pointer]),
    "pride_state_texts": (_u64, [_handle]),
    "pride_state_text": (None, [_handle, _u64, _text_out, _text_out]),
    "pride_state_set_text": (None, [_handle, _string, _string]),
    "pride_method_count": (_u64, []),
    "pride_method_name": (_string, [_u64]),
    "pride_method_info": (None, [c.POINTER(Options), _i32, c.POINTER(Method)]),
    "pride_method_option": (None, [_string, _u64, _text_out, _text_out, _text_out]),
    "pride_method_operations": (None, [_options, _handle, _i32, c.POINTER(_double)]),
    "pride_method_matrices": (None, [_options, _handle, c.POINTER(_i32), c.POINTER(_string)]),
    "pride_plan": (None, [_handle, _options, c.POINTER(PlanFacts), c.POINTER(PlanRow)]),
    "pride_method_cost": (None, [_options, _handle, _i32, _i32, _i64, _cost]),
    "pride_method_mean_cost": (None, [_options, _handle, _i32, _i32, _i64, c.POINTER(_i32), _cost]),
    **{f"pride_{kind}_destroy": ("void", [_handle]) for kind in (
        "layout", "comm", "mean", "optimizer", "coordinator", "memory", "state", "device")},
}


def find(name):
    """Path of a library of the package, or of the folder that PRIDE_LIBRARY_DIR names."""
    folder = os.environ.get("PRIDE_LIBRARY_DIR") or pathlib.Path(__file__).parent / "lib"
    return pathlib.Path(folder) / name


def _open():
    """Opens libpride_coord.so (libpride.so with gRPC) if it was built and gRPC is installed;
    otherwise libpride.so."""
    for name in ("libpride_coord.so", "libpride.so"):
        path = find(name)
        try:
            return path, c.CDLL(str(path))
        except OSError as error:
            problem = error
    raise ImportError(f"pride: cannot load {path}: {problem}. Build the package with "
                      "`pip install ./python` from pride's source folder")


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
    warn_of_kernels(library)
    return library


lib = _load()
_kept = {}  # exceptions of callbacks, by the beginning of their text, until a call raises it


def check(status):
    """Raises the exception of a status; PENDING is returned."""
    if status in (OK, PENDING):
        return status
    text = lib.pride_last_error().decode("utf-8", "replace")
    cause = next((_kept.pop(begin, None) for begin in list(_kept) if begin in text), None)
    if cause is not None and not isinstance(cause, Exception):  # Ctrl-C
        raise cause
    kind = OutOfMemory if isinstance(cause, OutOfMemory.__bases__[1]) else _ERRORS.get(status, Error)
    raise kind(text) from cause


def keep_error(error, where, size):
    """write_error() of an exception of a callback, which check() then raises from."""
    traceback.clear_frames(error.__traceback__)  # their tensors are the memory that is missing
    text = f"{type(error).__name__}: {error}"
    _kept[text[:100]] = error
    write_error(text, where, size)


def call(name, *arguments):
    function = getattr(lib, name)
    for value, kind in zip(arguments, function.argtypes):
        if kind in _RANGES and isinstance(value, int):
            whole(f"an argument of {name}()", value, *_RANGES[kind])
    return check(function(*arguments))


class Handle:
    """Owns one of the library's objects; keeps `parents` alive as long as it lives."""

    def __init__(self, kind, make, *arguments, parents=()):
        self.value, self._parents, self._pid = None, parents, os.getpid()
        self._destroy = getattr(lib, f"pride_{kind}_destroy")
        out = c.c_void_p()
        call(make, *arguments, c.byref(out))
        self.value = out.value

    @property
    def _as_parameter_(self):
        return c.c_void_p(self.value)

    def close(self, getpid=os.getpid):  # as the interpreter ends, `os` is gone
        # in a forked child the object's threads do not exist, so it is not destroyed
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
    """Array of pride_tensor from (name, shape, group, ...). It keeps names and shapes alive."""
    array = (Tensor * len(specs))()
    for slot, (name, shape, group, *_) in zip(array, specs):
        dims = integers(c.c_int64, f"a dimension of {name}", shape)
        slot.name, slot.n_dims, slot.group = name.encode(), len(shape), group
        slot.shape = c.cast(dims, c.POINTER(c.c_int64))
    return array


def coords(first):
    """Array of flat coordinates, or None."""
    return None if first is None else (c.c_uint64 * len(first))(*first)


def make_layout(specs, first_coords=None):
    """specs: (name, shape, group) or (name, shape, group, as_matrix). first_coords: with model
    parallelism, each tensor's first coordinate in the whole model."""
    layout = Handle("layout", "pride_layout_create_at", tensors(specs), coords(first_coords),
                    len(specs))
    as_matrix = [spec[3] if len(spec) > 3 else BY_NAME for spec in specs]
    call("pride_layout_set_matrices", layout, (c.c_int32 * len(specs))(*as_matrix), len(specs))
    return layout


def matrices_of(method, options, layout):
    """What the method makes of each tensor of a whole model's layout: a form above 0 is a matrix.
    And a line for the log; "": the method orthogonalises nothing."""
    forms = (c.c_int32 * lib.pride_layout_tensors(layout))()
    text = c.c_char_p()
    call("pride_method_matrices", c.byref(make_options(method, options)), layout, forms,
         c.byref(text))
    return list(forms), text.value.decode()


def texts_of(options):
    """A method's own options, as libpride reads them."""
    of_type("options", options, collections.abc.Mapping)
    return {c_text("options", str(k).encode()): c_text(f"options: {k}", _option_text(v).encode())
            for k, v in options.items()}


def _option_text(value):
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, collections.abc.Mapping):  # items, such as those of split
        return ",".join(str(k) if v is None else f"{k}={_listed(v, '+')}" for k, v in value.items())
    return _listed(value, ",")


def _listed(value, between):
    return between.join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def set_method(made, method, options):
    """Writes a method and its own options to pride_options, or to a pride_group (None: none)."""
    made.method = None if method is None else text("method", method)
    texts = texts_of(options)
    made.names = (c.c_char_p * len(texts))(*texts)
    made.values = (c.c_char_p * len(texts))(*texts.values())
    made.n_options = len(texts)


def make_options(method, options, groups=(), **values):
    """pride_options; `options` are the method's own, `groups` a list of Group."""
    made = Options()
    lib.pride_options_init(c.byref(made), c.sizeof(Options))
    set_method(made, method, options)
    if groups:
        made.groups = (Group * len(groups))(*groups)
        made.n_groups = len(groups)
    for name, value in values.items():
        setattr(made, name, value)
    return made


def why_host_only(method, options):
    """The reason why the method with these options cannot run on a device; "": it can."""
    why = c.c_char_p()
    call("pride_method_why_host_only", c.byref(make_options(method, options)), c.byref(why))
    return why.value.decode()
