"""Gradients that stay local: DistributedDataParallel, clipping, and averages for the log."""
# SPDX-License-Identifier: Apache-2.0
import contextlib
import ctypes as c
from typing import Any, Iterable, Iterator, Optional, Union

import torch
import torch.distributed as dist

from . import _hooks
from ._matrices import remember
from ._tensors import is_sharded
from ._world import MpiWorld, current_mpi_world
from .errors import InvalidArgument, of_type
from ._replica import Replica
from .optimizer import Optimizer


def local_gradients(model: torch.nn.Module) -> torch.nn.Module:
    """Makes a DistributedDataParallel model leave gradients where they are computed.

    An empty communication hook replaces the all-reduce. The rest of DDP still works (equal initial
    values, buffers, ``find_unused_parameters``). A parameter that backward did not reach on a rank
    counts as unused there, although DDP gives it a gradient of zeros. Plain modules do not need it.
    Call it once before the first backward, and before making the optimizer, which then has the
    names of the model's parameters and the types of its modules. Returns the model.
    """
    if not isinstance(model, torch.nn.parallel.DistributedDataParallel):
        raise TypeError(f"local_gradients: {type(model).__name__} is not a "
                        "DistributedDataParallel model; other modules do not need it")
    from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook

    model.register_comm_hook(None, noop_hook)
    remember(model.module)
    model.pride_watches = _hooks.Watches(
        (name, p) for name, p in model.module.named_parameters() if p.requires_grad)
    return model


@contextlib.contextmanager
def join(optimizer: Optimizer) -> Iterator[None]:
    """For ranks with unequal numbers of batches: ``with pride.join(optimizer):`` around the loop.

    A rank at the end of the block serves its shards in the others' steps and does not vote, until
    all ranks are there. Inside the block call only ``step()``; other collectives (of pride, DDP's
    buffers, the script) belong after it. Waiting ranks adopt the others' rates. Step schedulers once
    per epoch: a scheduler that counts batches falls behind on a rank with few batches.

    Raises:
        InvalidArgument: on all ranks, if some do not enter the block.
    """
    of_type("join: optimizer", optimizer, Optimizer)
    optimizer._usable()
    if optimizer._settings["node_group"] is not None:
        raise InvalidArgument("pride: join() with node_group: the ranks of a node step together; "
                              "give them equally many batches")
    optimizer._ranks.agree("join")
    yield
    between = optimizer._parameters.between
    if between is not None:
        between.own()
    with torch.no_grad():
        optimizer._steps.serve_until_all_end(optimizer._lock, optimizer._usable)
    if between is not None:
        between.common()


def clip_grad_norm_(parameters: Union[Replica, Iterable[torch.Tensor], torch.Tensor],
                    max_norm: float, norm_type: float = 2.0,
                    error_if_nonfinite: bool = False) -> torch.Tensor:
    """Clips the norm of **this rank's own** gradient, before ``step()``. Returns that norm.

    Unlike with DDP, gradients are not averaged: the norm is that of one rank's batch, and the noise
    of the batch makes it larger than the mean gradient's. With a vote the gradient's scale sets its
    weight against the momentum, not the size of the step. If the method has the mean gradient, clip
    that with ``Optimizer(..., clip_global_norm=)``.
    """
    if isinstance(parameters, Replica):
        if parameters._settings["overlap"]:
            raise InvalidArgument("pride: clip_grad_norm_ with overlap=True: the exchange has begun "
                                  "before the norm is known; use overlap=False")
        parameters = [p for group in parameters.param_groups for p in group["params"]]
    norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite)
    return norm.full_tensor() if is_sharded(norm) else norm


def mean_over_ranks(value: Union[float, torch.Tensor], process_group: Optional[Any] = None) -> float:
    """The mean of a number over the ranks, e.g. of the loss for the log. Collective.

    With :func:`pride.mpi` as the group, or without any process group, it is over the MPI job.
    """
    world = process_group if isinstance(process_group, MpiWorld) else None
    if world is None and not (dist.is_available() and dist.is_initialized()):
        world = current_mpi_world()
        if world is None:
            return float(value)
    if world is not None:
        mine, every = c.c_double(float(value)), (c.c_double * world.size)()
        world.call("pride_comm_all_gather", world.handle, c.byref(mine), 8, every)
        return sum(every) / world.size
    backend = dist.get_backend(process_group)
    device = torch.device("cuda" if backend == "nccl" else "cpu")
    total = torch.tensor([float(value)], dtype=torch.float64, device=device)
    dist.all_reduce(total, group=process_group)
    return total.item() / dist.get_world_size(process_group)
