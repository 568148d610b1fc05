# Parameters and gradients in place, or their copies if libpride cannot read them.
# SPDX-License-Identifier: Apache-2.0

import torch

from . import _library as library
from ._device import HOST, memory_at
from .errors import InvalidArgument

DTYPES = {torch.float32: library.FLOAT32, torch.bfloat16: library.BFLOAT16,
          torch.float16: library.FLOAT16}


def is_sharded(tensor):
    """True for DTensors."""
    return hasattr(tensor, "device_mesh")


@torch.no_grad()
def local(tensor):
    """This rank's shard of a DTensor, in place; other tensors unchanged."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def like(values, slot):
    """Values of this rank's shard as a DTensor, if the parameter is one."""
    p = slot.param
    if not is_sharded(p) or slot.whole is not None:
        return values
    return type(p.data).from_local(values, p.device_mesh, p.placements, run_check=False,
                                   shape=p.shape, stride=p.stride())


def shard_of(values, slot):
    """This rank's shard of a tensor of the parameter's global shape, sharded alike or whole."""
    p = slot.param
    if not is_sharded(p) or slot.whole is not None:
        return values.full_tensor() if is_sharded(values) else values
    if not is_sharded(values):
        from torch.distributed.tensor import distribute_tensor

        values = distribute_tensor(values.to(p.device_mesh.device_type), p.device_mesh, p.placements,
                                   src_data_rank=None)
    elif tuple(values.placements) != tuple(p.placements):
        values = values.redistribute(p.device_mesh, p.placements)
    return local(values)


def aligned(n):
    """Coordinates that a tensor of n values takes in a layout."""
    return (n + 63) // 64 * 64


def parts_of(slots):
    """(Specs, first coordinates in the whole model) of a layout."""
    return [slot.spec for slot in slots], [slot.first_coord for slot in slots]


def shard_begin(p):
    """The index in the whole tensor of the first value of this rank's shard; 0 if the shard is not
    contiguous there."""
    begin, dim = 0, None
    n = None
    for d, placement in enumerate(p.placements if is_sharded(p) else ()):
        size = p.device_mesh.size(d)
        if size == 1:
            continue
        if dim is None:
            dim = placement.dim
            n = p.shape[dim]
        if (placement.dim != dim or p.shape[:dim].numel() != 1 or
                hasattr(placement, "split_factor")):  # strided shards, under tensor parallelism
            return 0
        chunk = -(-n // size)
        skipped = min(n, chunk * p.device_mesh.get_local_rank(d))
        begin, n = begin + skipped, min(chunk, n - skipped)
    return 0 if dim is None else begin * p.shape[dim + 1:].numel()


def _whose_piece(p, settings):
    """For a parameter of which each rank has another piece: why pride cannot take it; or None."""
    kinds = {kind.__name__ for kind in type(p).__mro__}
    if "FlatParameter" in kinds or getattr(p, "_fsdp_flattened", False):
        return ("is a piece that FSDP1 (FullyShardedDataParallel) holds, and FSDP1 averages gradients "
                "itself: use fully_shard() of torch 2.x with replicate_mesh=, or a plain module")
    if hasattr(p, "ds_id") or "ShardedTensor" in kinds:
        return ("is a piece of a tensor that is sharded over the ranks (ZeRO-3, ShardedTensor): use "
                "fully_shard() of torch 2.x with replicate_mesh=, or a plain module")
    if getattr(p, "tensor_model_parallel", False) and settings["process_group"] is None:
        return ("is a piece of tensor parallelism (tensor_model_parallel): give process_group=, the "
                "ranks that have the same piece")
    return None


def check_parameter(name, p):
    """Raises InvalidArgument, or TypeError as torch does, for a parameter that cannot be
    optimized."""
    if not isinstance(p, torch.Tensor):
        raise TypeError(f"optimizer can only optimize Tensors, but {name} is {type(p).__name__}")
    lazy = torch.nn.parameter.is_lazy(p)
    if not lazy and not p.is_leaf and not getattr(p, "retains_grad", False):
        raise ValueError(f"can't optimize a non-leaf Tensor: {name}")
    p = p if lazy else local(p)
    problem = (
        "is not initialized: run the lazy module once first" if lazy else
        f"is complex ({p.dtype}); a sign needs an order: give the real view, "
        "torch.view_as_real(...), as a parameter" if p.is_complex() else
        f"is not a dense tensor ({p.layout})" if p.layout != torch.strided else
        f"is {p.dtype}; float32, bfloat16 and float16 are supported" if p.dtype not in DTYPES else
        "is on the device 'meta': it has no values" if p.device.type == "meta" else
        "is expanded: several of its values are one in memory; give the tensor that it expands, or "
        "its clone()" if any(n > 1 and step == 0 for n, step in zip(p.shape, p.stride())) else
        "has no memory (is it sharded, or offloaded?)" if p.numel() and not memory_at(p) else None)
    if problem:
        raise InvalidArgument(f"pride: {name} {problem}")


def check_memory(slots):
    """Raises InvalidArgument if two parameters share memory: their updates would overwrite each
    other. Tensors with gaps may interleave; they are not compared."""
    places = sorted(((memory_at(p), memory_at(p) + p.numel() * p.element_size(), slot.name)
                     for slot in slots for p in [slot.tensor] if p.numel() and _is_dense(p)),
                    key=lambda place: place[:2])
    for (_, end, first), (begin, _, second) in zip(places, places[1:]):
        if begin < end:
            raise InvalidArgument(
                f"pride: '{first}' and '{second}' share memory but are two parameters; tie them by "
                "giving both modules one Parameter (b.weight = a.weight, not b.weight.data)")


def check_shards(slots, settings, world):
    """Raises InvalidArgument if sharded parameters cannot be voted on by shards. Returns the
    process groups over which they are sharded."""
    for slot in slots:
        piece = _whose_piece(slot.param, settings)
        if piece and world.size > 1:
            raise InvalidArgument(f"pride: {slot.name} {piece}")
    sharded = [slot for slot in slots if is_sharded(slot.param)]
    if not sharded:
        return []
    replicas, groups, meshes = set(getattr(world, "global_ranks", ())), {}, set()
    for slot in sharded:
        mesh = slot.param.device_mesh
        ranks = mesh.mesh.flatten().tolist()
        whole = [str(placement) for d, placement in enumerate(slot.param.placements)
                 if mesh.size(d) > 1 and not placement.is_shard()]
        shared = sorted(replicas & set(ranks))
        problem = (
            "is sharded: give replicate_mesh, the mesh of ranks that hold the same shards, or a "
            "mesh of this rank alone" if settings["process_group"] is None and mesh.size() > 1 else
            f"is replicated over its own mesh ({', '.join(whole)}), so that FSDP averages its "
            "gradient: shard with a mesh of one dimension, fully_shard(model, mesh=mesh['fs'])"
            if whole else
            f"is sharded over ranks {ranks}, of which {shared} are replicas by replicate_mesh: they "
            "hold other shards" if len(shared) > 1 else None)
        if problem:
            raise InvalidArgument(f"pride: {slot.name} {problem}")
        key = tuple(ranks), tuple(mesh.mesh.shape)
        meshes.add(key)
        groups.update({(key, d): mesh.get_group(d) for d in range(mesh.ndim)
                       if mesh.size(d) > 1})
    if settings["overlap"]:
        raise InvalidArgument("pride: overlap=True: FSDP's gradients are complete after backward")
    if not groups:
        return []
    plain = next((slot.name for slot in slots if not is_sharded(slot.param)), None)
    refused = (
        f"{plain} is not sharded and {sharded[0].name} is: ranks of one replica would step apart. "
        "Shard it, or give it an optimizer of its own over all ranks" if plain else
        f"clip_global_norm: they lie on {len(meshes)} different meshes, whose squares would "
        "be added more than once; shard all over one mesh" if settings["clip_global_norm"] and
        len(meshes) > 1 else None)
    if refused:
        raise InvalidArgument(f"pride: sharded parameters: {refused}")
    return list(groups.values())


def _is_dense(p):
    """True if the values of p fill one range of memory."""
    expected = 1
    for stride, n in sorted((s, n) for s, n in zip(p.stride(), p.shape) if n > 1):
        if stride != expected:
            return False
        expected *= n
    return True


def is_readable(tensor, place=HOST):
    """True if libpride can read the tensor in place: row-major in the memory of the place."""
    return (tensor.layout == torch.strided and tensor.dtype in DTYPES and tensor.is_contiguous() and
            place.reads(tensor) and not tensor.is_neg())


def arrays_of(tensors, place=HOST):
    """The tensors in libpride's form; None has no address."""
    arrays = (library.Array * len(tensors))()
    for array, tensor in zip(arrays, tensors):
        if tensor is not None:
            fill_array(array, tensor, tensor.numel(), place)
    return arrays


def fill_array(array, tensor, n, place):
    array.data, array.n = place.address(tensor, tensor.dtype, n), n
    array.dtype, array.device = DTYPES[tensor.dtype], place.code


class Slot:
    """One parameter, as it was when the optimizer was made."""

    __slots__ = ("name", "param", "group", "shape", "dtype", "device", "n", "first",
                 "whole", "mean", "place", "as_matrix")

    def __init__(self, name, param, group, first):
        self.name, self.param, self.group, self.whole = name, param, group, None
        self.first = first  # its offset in the layout of the whole model
        self.mean = False  # with nodes, for this rank's tensors: the node's mean gradient, or None
        self.place = HOST  # where the method runs
        self.as_matrix = library.BY_NAME
        self._measure()

    def _measure(self):
        param = self.param
        self.shape, self.dtype, self.device = self.tensor.shape, param.dtype, param.device
        self.n = self.tensor.numel()

    @property
    def tensor(self):
        """The parameter's values on this rank: its shard, or all."""
        return local(self.param) if self.whole is None else self.whole

    @property
    def n_whole(self):
        return self.param.numel()

    def hold_whole(self):
        """Makes this rank hold all shards of the parameter, in its own tensor."""
        self.whole = torch.empty(self.param.shape, dtype=self.dtype, device=self.device)
        self._measure()

    @property
    def grad(self):
        """The gradient's values on this rank, or None."""
        if self.mean is not False:
            return self.mean
        if self.param.grad is None or self.whole is None:
            return None if self.param.grad is None else local(self.param.grad)
        return self.whole.grad

    @property
    def spec(self):
        return self.name, tuple(self.shape), self.group, self.as_matrix

    @property
    def first_coord(self):
        """The coordinate of this rank's first value, in the layout of the whole model."""
        return self.first + (shard_begin(self.param) if self.whole is None else 0)

    def narrow(self):
        """True if libpride has a float32 master of the parameter."""
        return self.dtype != torch.float32

    def check(self):
        check_parameter(self.name, self.param)
        for what in ("shape", "dtype", "device"):
            before, now = getattr(self, what), getattr(self.tensor, what)
            if before != now:
                before, now = (tuple(v) if what == "shape" else v for v in (before, now))
                raise InvalidArgument(f"pride: {self.name} has {what} {now} now and had {before} "
                                      "when the optimizer was made")

    def gradient(self):
        """The gradient if libpride can read it in place; None if it needs a copy."""
        grad = self.grad
        if is_readable(grad, self.place) and grad.shape == self.shape:
            return grad
        self.check_gradient(grad)
        return None

    def check_gradient(self, grad):
        if grad.layout != torch.strided:
            raise InvalidArgument(f"pride: the gradient of {self.name} is sparse; make it dense, "
                                  "e.g. torch.nn.Embedding(..., sparse=False)")
        if grad.is_complex():
            raise InvalidArgument(f"pride: the gradient of {self.name} is complex")
        if grad.shape != self.shape:
            raise InvalidArgument(f"pride: the gradient of {self.name} has shape "
                                  f"{tuple(grad.shape)}, the parameter {tuple(self.shape)}")


class Table:
    """The memory in which libpride reads and writes the parameters: their own, or a copy of a
    parameter that libpride cannot read."""

    def __init__(self, handle, slots, assemblies=(), nodes=None):
        self._handle, self._slots, self._assemblies = handle, slots, assemblies
        self._nodes = nodes
        self._params = []  # their values on this rank, as of the last fill()
        self._sharded = any(is_sharded(slot.param) for slot in slots)
        self._places = None
        self._copies = {}    # by index
        self._versions = []  # (index, _version_of()) of each parameter without a copy

    def _now(self):
        if self._sharded or not self._params:
            self._params = [slot.tensor for slot in self._slots]
        return [(memory_at(p), p.dtype, p.shape, p.stride()) for p in self._params]

    @torch.no_grad()
    def fill(self, collect=True):
        """Before libpride reads parameters: passes changed addresses and fills the copies. collect:
        also fills whole matrices from their shards, which is collective."""
        for assembly in self._assemblies if collect else ():
            assembly.collect_values()
        places = self._now()
        if places != self._places:
            self._find()
            self._places = places
        for i, copy in self._copies.items():
            copy.copy_(self._params[i])
        self._slots[0].place.follow(self._handle)

    def _find(self):
        for slot in self._slots:
            slot.check()
        check_memory(self._slots)
        place = self._slots[0].place
        copies = {i: self._copies[i] if i in self._copies else place.copy(p)
                  for i, p in enumerate(self._params) if not is_readable(p, place)}
        self._arrays = arrays_of([copies.get(i, p) for i, p in enumerate(self._params)], place)
        self.give()
        self._copies = copies
        self._versions = [(i, _version_of(p)) for i, p in enumerate(self._params)
                          if i not in copies]

    def give(self):
        """Passes the addresses. libpride then compares masters with their parameters."""
        self._slots[0].place.follow(self._handle)
        library.call("pride_optimizer_set_parameters", self._handle, self._arrays,
                     len(self._arrays))

    def copied_bytes(self):
        return sum(copy.numel() * copy.element_size() for copy in self._copies.values())

    def has_moved(self):
        return self._now() != self._places

    @torch.no_grad()
    def written(self, frozen=None, report=None):
        """After libpride has written all parameters except the indices `frozen`: copies back,
        counts versions and updates the node. report: of the step, if a step wrote them."""
        for i, copy in self._copies.items():
            if i not in (frozen or ()):
                self._params[i].copy_(copy)
        for i, version in self._versions:
            if i not in (frozen or ()):
                version.zero_()
        if self._nodes is not None and report is not None:
            self._nodes.stepped(report)
        elif self._nodes is not None:
            self._nodes.hand_back(frozen is not None)
        for assembly in self._assemblies:
            assembly.hand_back()

    def collect_gradients(self):
        for assembly in self._assemblies:
            assembly.collect_gradients()


def _version_of(p):
    """An empty tensor with the version counter of p. An in-place operation on it counts as one on
    p, so that a backward through the old values raises."""
    made = p.detach()
    made.data = torch.empty(0, dtype=p.dtype, device="cpu")
    return made
