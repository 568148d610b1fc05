"""Communication hooks of DistributedDataParallel and FSDP2: quantized gradients, for any optimizer."""
# SPDX-License-Identifier: Apache-2.0
import functools
import weakref

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ._arguments import group_of
from ._mean_lanes import MeanLanes
from ._tensors import is_sharded, local
from .errors import InvalidArgument, duration

_hooks = weakref.WeakKeyDictionary()  # by model


class GradientHook:
    """Returned by :func:`ddp_hook` and :func:`fsdp_hook`. The model keeps it; copies of the model share
    it."""

    def __init__(self, lanes, bits, coordinates):
        self.bits, self._lanes, self._before = bits, lanes, None
        self._fp32_bytes = 8 * coordinates * (lanes.size - 1) // lanes.size

    def __deepcopy__(self, memo):
        return self

    def traffic(self):
        """Bytes of gradients that this rank sent: ``bytes_sent`` so far, and ``fp32_bytes``, of a ring
        all-reduce of float32 gradients. With DDP ``last_step`` has those of the last backward with an
        exchange. Bytes are counted once an exchange is done."""
        total = self._lanes.bytes_sent()
        made = {"bytes_sent": total, "fp32_bytes": self._fp32_bytes}
        if self._before is not None:
            made["last_step"] = {"bytes_sent": total - self._before}
        return made

    def start(self, bucket):
        """The future of a DDP bucket's mean."""
        if bucket.index() == 0:  # buckets come in order, and a backward waits for its own
            self._before = self._lanes.bytes_sent()
        return self._lanes.start(bucket.buffer(), [p.numel() for p in bucket.parameters()],
                                 bucket.index())

    def average(self, names, sizes, values):
        """Replaces the shard of FSDP's module by its mean over the replicas."""
        if sum(sizes) != values.numel():
            text = (f"pride: fsdp_hook: of the parameters {names} that one module of FSDP holds some have "
                    "no gradient, or were frozen or unfrozen later. Freeze them before fsdp_hook(), shard "
                    "them by themselves, or call set_reduce_scatter_unused_params(True), of newer torch")
            self._lanes.fail(text)
            raise InvalidArgument(text)
        self._lanes.run(values, sizes)


def ddp_hook(model, bits=4, *, timeout=None, lanes=2):
    """Makes DistributedDataParallel exchange quantized gradients. The optimizer stays yours.

        model = DistributedDataParallel(model)
        pride.ddp_hook(model, bits=4)

    Registers a communication hook. Each 64 gradients of a parameter share a block-wise scale and are
    rounded to levels, on the way to the mean and back (docs/methods/dense.md, option ``dense``). That is
    8.25, 4.25 or 2.25 bits each way. Rounding errors are dropped: there is no error feedback, so no
    state to save, and none to lose when DDP rebuilds its buckets. Means are equal on all ranks, bit for
    bit. If a gradient is NaN or Inf on a rank, all means of its bucket are NaN on all ranks, so a
    GradScaler skips the step everywhere. A world of one rank rounds, too.

    Buckets are exchanged on threads, while backward goes on, over torch.distributed. Gradients on a
    GPU are rounded and added there, and their frames travel through the host. If libpride cannot use the
    GPU (:func:`device_report` says why), gradients are copied to the host, with a warning.

    Args:
        model: a DistributedDataParallel without a communication hook. Call this on all ranks, before
            the first backward.
        bits: 8, 4 or 2; or 16 (bfloat16) or 32 (float32), to compare.
        timeout: seconds, or a timedelta, that an exchange may take; by default the process group's.
        lanes: buckets that are exchanged at the same time, 1 to 16.

    Returns: an object whose ``traffic()`` has the bytes sent.

    Raises:
        InvalidArgument: an argument cannot be used, or differs between ranks.
        RuntimeError: in backward, with the reason: a rank failed or is silent, or gradients are neither
            float32, bfloat16 nor float16. DDP gives errors of hooks this type.
    """
    if not isinstance(model, DistributedDataParallel):
        raise InvalidArgument("pride: ddp_hook: model is a "
                              f"{type(model).__name__}: give a DistributedDataParallel")
    if type(lanes) is not int or not 1 <= lanes <= 16:
        raise InvalidArgument(f"pride: ddp_hook: lanes is {lanes!r}: must be from 1 to 16")
    _check_new(model, "ddp_hook")
    hook = GradientHook(MeanLanes("ddp_hook", model.process_group, bits, duration(timeout), lanes), bits,
                        sum(p.numel() for p in model.parameters() if p.requires_grad))
    model.register_comm_hook(hook, GradientHook.start)
    _hooks[model] = hook
    return hook


def fsdp_hook(model, replicate_mesh, bits=4, *, timeout=None):
    """Averages the gradients of FSDP2's replicas, quantized. The optimizer stays yours.

        fully_shard(model, mesh=mesh["fs"])
        pride.fsdp_hook(model, mesh["dp"], bits=4)

    Hybrid sharding whose slow dimension travels in few bits: FSDP averages over the shards, in full
    precision, and this all-reduce hook over the ranks that hold the same shard. Levels, scales and what
    becomes of NaN are those of :func:`ddp_hook`. Backward waits for each module's exchange. Replicas must
    run the same modules in each step: nothing compares which module an exchange is of. For gradient
    accumulation use ``model.set_requires_gradient_sync(False)``, else every backward exchanges;
    ``set_requires_all_reduce()`` has no effect.

    Args:
        model: a module after ``fully_shard()`` over a mesh of shards alone, with all of its modules, and
            with parameters that are equal on all replicas. Call this on all ranks, before the first
            backward.
        replicate_mesh: the mesh, of one dimension, of ranks that hold the same shards.
        bits: 8, 4 or 2; or 16 (bfloat16) or 32 (float32), to compare.
        timeout: seconds, or a timedelta, that an exchange may take; by default the process group's.

    Returns: an object whose ``traffic()`` has the bytes sent.

    Raises:
        InvalidArgument: an argument cannot be used, or differs between ranks; replicas differ; in
            backward: a parameter has no gradient, but others of its FSDP module have one.
        CommError: in backward: a rank failed or is silent.
    """
    modules = [m for m in model.modules() if hasattr(m, "set_all_reduce_hook")]
    if model not in modules:
        raise InvalidArgument(f"pride: fsdp_hook: model is a {type(model).__name__}: give a module after "
                              "fully_shard() of torch 2.6 or newer")
    group = group_of(None, replicate_mesh)
    if group is None:
        raise InvalidArgument("pride: fsdp_hook: give replicate_mesh, e.g. mesh['dp']")
    for module in modules:
        module.reshard()  # after an evaluation the outermost may be whole
    replicas = set(dist.get_process_group_ranks(group))
    for name, p in model.named_parameters():
        if not p.requires_grad:
            continue
        if not (is_sharded(p) and p.device_mesh.ndim == 1 and p.placements[0].is_shard()):
            raise InvalidArgument(
                f"pride: fsdp_hook: {name} is not sharded alone: use fully_shard(model, mesh=mesh['fs']), "
                "whose mesh has one dimension, on all of the model, without tensor parallelism")
        ranks = p.device_mesh.mesh.flatten().tolist()
        if len(replicas & set(ranks)) > 1:
            raise InvalidArgument(f"pride: fsdp_hook: {name} is sharded over ranks {ranks}; replicate_mesh "
                                  f"has ranks {sorted(replicas)}: they hold other shards")
    _check_new(model, "fsdp_hook")
    trained = [p for p in model.parameters() if p.requires_grad]
    lanes = MeanLanes("fsdp_hook", group, bits, duration(timeout), 1, **{
        "index of the shard": trained[0].device_mesh.get_local_rank() if trained else 0,
        "hash of the parameters' values": sum(map(_sum_of_bits, model.parameters())) % (1 << 32)})
    hook = GradientHook(lanes, bits, sum(p.to_local().numel() for p in trained))
    names = {p: name for name, p in model.named_parameters()}
    for module in modules:
        own = _own_parameters(module)
        text = ", ".join(names[p] for p in own[:3]) + (", ..." if len(own) > 3 else "")
        module.set_all_reduce_hook(functools.partial(hook.average, text, list(map(_padded_size, own))))
    _hooks[model] = hook
    return hook


def hook_of(model):
    """What one of the functions above has returned for the model; or None."""
    return _hooks.get(model)


def _check_new(model, who):
    if model in _hooks:
        raise InvalidArgument(f"pride: {who}: the model has a communication hook of pride already")


def _own_parameters(root):
    """A module's own trained parameters in FSDP2's order: modules in post-order, without those that are
    sharded by themselves."""
    own, modules = {}, set()  # in their order

    def visit(module):
        modules.add(module)
        for child in module.children():
            if child not in modules and not hasattr(child, "set_all_reduce_hook"):
                visit(child)
        for p in module.parameters(recurse=False):
            if p.requires_grad:
                own[p] = None

    visit(root)
    return list(own)


def _padded_size(p):
    """Values of a rank's shard, equal on all ranks of the shards."""
    dim = p.placements[0].dim
    return -(-p.shape[dim] // p.device_mesh.size()) * (p.numel() // max(1, p.shape[dim]))


def _sum_of_bits(p):
    values = local(p).detach().contiguous()
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[values.element_size()]
    return int(values.view(kind).sum(dtype=torch.int64))
