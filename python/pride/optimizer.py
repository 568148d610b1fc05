"""pride.Optimizer: torch optimizers whose ranks exchange about one bit per parameter."""
# SPDX-License-Identifier: Apache-2.0
import contextlib
import datetime
from typing import Any, Dict, Iterable, List, Optional, Tuple, Union

import torch

from ._arguments import group_of
from ._construction import owned_ids
from ._hashes import hash_as_float32
from ._nodes import find_nodes
from ._outside import Outside, digests, hashes
from ._ranks import locked
from ._stepping import Stepping
from ._world import World, listed, make_world
from .errors import InvalidArgument, without_frames


class Optimizer(Stepping):
    """Any method of :func:`pride.methods`, as a ``torch.optim.Optimizer``.

    Every rank of ``process_group`` makes the same optimizer over its own replica of the model and
    calls :meth:`step` with the gradients of its own batch, **not averaged** (see
    :func:`pride.local_gradients` for DistributedDataParallel). Parameters must begin equal on all
    ranks and then stay so, bit for bit.

    Args:
        params: parameters, ``(name, parameter)`` pairs, or dicts of groups, as in torch. A group may
            have a ``"method"`` of its own, with ``"options"``: its other defaults are then that
            method's. ``"matrix"``, True or False, decides for its tensors whether a method that
            orthogonalises matrices treats them as such. These three keys cannot change; rates,
            betas, eps, momentum and decay are read in every step.
        lr, betas, eps, weight_decay: of groups without a method of their own; default: those of the
            method. Weight decay is decoupled; it also changes a parameter that no rank has used in
            a step, except with ``requires_grad=False``. ``betas`` has as many values as the method
            has.
        momentum: mu of the matrices of ``muon``'s rule. In place of ``betas`` of a method with one
            beta, or of votes on orthogonalised momenta: ``(mu^2, mu)``, which is Nesterov's.
        method: a name of :func:`pride.methods`, e.g. ``"dlion-vote"``; of groups without a method of
            their own. It may be left out if there are none.
        options: the method's own options, e.g. ``{"tie": "zero"}``.
        process_group: default: torch's default group; or a group; or :func:`pride.mpi`.
        maximize: maximize the loss.
        foreach, fused: without effect: the step is one fused native call already.
        capturable, differentiable: True is refused.
        overlap: exchange during backward. Each backward outside :meth:`no_sync` must then be
            followed by one ``step()``, and gradients must not be changed in between.
        release_gradients: with ``overlap``, backward sets a gradient to None as soon as it is
            encoded, so that memory never holds all gradients. Only for methods that do not read
            gradients again; not under DistributedDataParallel.
        bucket_size: coordinates per exchange, equal on all ranks that give it; the others follow.
            Default: 4 Mi, or 16 Mi if a rank runs the method on a GPU.
        lanes: number of buckets exchanged at the same time, each on its own thread and Gloo group,
            in parallel with arithmetic and, with overlap, with backward. 0: one after the other.
        seed: of the bits for zeros, ties and stochastic rounding; the same on all ranks.
        vote_weight: votes of this rank, 1 to 65535, e.g. its number of samples. A rank of weight w
            counts as w ranks with its signs. For methods that exchange signs.
        on_non_finite: ``"raise"`` NonFiniteGradient on all ranks, or ``"skip"`` the step on all.
        clip_global_norm: scales the mean gradient down to this 2-norm, over all groups, shards and
            tensors of a node. 0: no clipping. All methods must have the mean gradient.
        timeout: longest time of one wait for other ranks, in seconds or as a ``timedelta``.
            Default: the process group's (torch's own default is 30 minutes with Gloo and 10 with
            NCCL); with MPI 300 seconds, unless :func:`pride.mpi` has another.
        broadcast_parameters: copy rank 0's parameters to all ranks, instead of refusing others.
        equal_gradients: ``"refuse"`` gradients that are bit-equal on all ranks in the first steps
            (DDP has averaged them, or all ranks have the same data); or ``"allow"`` them.
        node_of_rank: for each rank the number of its node. It selects the hierarchical route.
        node_group: the ranks of this node: ``"auto"`` (those on this host) or a process group. They
            average their gradients, and nodes vote. Each rank has the state of some tensors: it
            averages their gradients, votes on them with its same-local-rank peers, and sends its
            node the results, or the values if the method's results do not determine them.
        replicate_mesh: for a model sharded by ``fully_shard(model, mesh=mesh["fs"])``: the mesh of
            one dimension whose ranks hold the same shards, ``mesh["dp"]``. They vote on their
            shards, and state is sharded alike.
        run_on: ``"auto"``: the methods run on the GPU that holds all parameters if all have kernels
            for it (:func:`pride.method_info`), otherwise on the host, to which gradients are
            copied. ``"host"``: on the host. ``"device"``: on the GPU, or an error. Results have the
            same bits, except for products of matrices.

    Raises:
        InvalidArgument: on all ranks, if parameters, options or initial values differ between
            ranks, or a rank refuses its arguments; the text names the rank and the parameter.
        CommError: a rank is gone, stalls or fails; on all ranks, within ``timeout``.
    """

    @without_frames
    def __init__(self, params: Iterable, lr: Optional[float] = None,
                 betas: Union[float, Tuple[float, ...], None] = None, eps: Optional[float] = None,
                 weight_decay: Optional[float] = None, *, method: Optional[str] = None,
                 options: Optional[Dict[str, Any]] = None, momentum: Optional[float] = None,
                 process_group: Any = None,
                 maximize: bool = False, foreach: Optional[bool] = None,
                 fused: Optional[bool] = None, capturable: bool = False,
                 differentiable: bool = False, overlap: bool = False,
                 release_gradients: bool = False, bucket_size: Optional[int] = None,
                 lanes: int = 2, seed: int = 0, vote_weight: int = 1,
                 on_non_finite: str = "raise", clip_global_norm: float = 0.0,
                 timeout: Union[float, datetime.timedelta, None] = None,
                 broadcast_parameters: bool = False, equal_gradients: str = "refuse",
                 node_of_rank: Optional[List[int]] = None, node_group: Any = None,
                 replicate_mesh: Any = None, run_on: str = "auto") -> None:
        self._make(
            params, (lr, betas, eps, weight_decay, momentum), options,
            dict(maximize=maximize, foreach=foreach, fused=fused, capturable=capturable,
                 differentiable=differentiable),
            dict(method=method, process_group=group_of(process_group, replicate_mesh),
                 overlap=overlap, release_gradients=release_gradients, bucket_size=bucket_size,
                 lanes=lanes, seed=seed, vote_weight=vote_weight, on_non_finite=on_non_finite,
                 clip_global_norm=clip_global_norm, timeout=timeout,
                 equal_gradients=equal_gradients, node_of_rank=node_of_rank,
                 node_group=node_group, run_on=run_on),
            broadcast_parameters or getattr(params, "broadcasts", False))

    def _open(self, timeout):
        ranks = self._ranks
        ranks.world = ranks.voters = make_world(self._settings["process_group"], timeout)
        if self._settings["node_group"] is not None:
            self._traffic.count_nodes()
            ranks.nodes = find_nodes(self._settings, ranks)
            ranks.voters = ranks.nodes.voters if ranks.nodes else ranks.world

    def _native_options(self, groups, place):
        options = super()._native_options(groups, place)
        if isinstance(self._ranks.world, World) and not self._ranks.nodes:
            self._native.ask_permission(options)
        return options

    def _adopt(self, new):
        super()._adopt(new)
        if self._settings["overlap"] and self._ranks.world.size > 1:
            self._parameters.hooks.watch(
                new, len(self._parameters.slots) - len(new), self._gradient_complete)

    @locked
    def _gradient_complete(self, index):
        """Called in backward, with overlap."""
        self._native.check_usable()
        if not self._agreement.checks_left:  # the first steps run as a whole
            with torch.no_grad():
                self._backward.complete(index)

    def _start(self, broadcast):
        if broadcast:
            self.broadcast_parameters()
        elif self._ranks.world.size > 1:
            self._check_start()
        if self._ranks.world.size > 1:
            self._find_outside(self._model() if self._model else None)

    def _check_start(self):
        """Compares the ranks' initial values now; libpride would do so in the first step. With local
        steps copies begin with each rank's own."""
        if self._saving.saved is not None and self._parameters.has_local_steps():
            return
        ranks, slots = self._ranks, self._parameters.of_node
        rows = ranks.agree("check_replicas", None, self._parameters.hashes)
        others = [r for r, row in enumerate(rows) if row[3 if ranks.nodes else 2] != (
            rows[0][3 if ranks.nodes else 2])]
        if not others:
            return
        differing = ranks.differing([hash_as_float32(slot.tensor) for slot in slots])
        name = next((f"'{slots[i].name}' of shape {tuple(slots[i].shape)}" for i in differing),
                    "unknown")
        # where most differ they may be pieces of one model, which a broadcast would destroy
        advice = ("Seed all ranks alike, wrap the model in DistributedDataParallel first, or give "
                  "broadcast_parameters=True") if 10 * len(differing) <= len(slots) else (
                      "The ranks hold different models, or pieces of one. If each rank builds the whole model: seed all ranks alike. If each has a "
                      "piece of it (tensor or pipeline parallelism): give process_group=, the ranks "
                      "with the same piece")
        raise InvalidArgument(
            f"pride: initial parameters of rank(s) {listed(others)} are not those of rank 0; the "
            f"first of {len(differing)} (of {len(slots)}) that differ is {name}. {advice}")

    def _find_outside(self, model=None):
        """Finds the model's other parameters, and which of them are equal on all ranks."""
        outside = self._agreement.outside = Outside(self._own_ids(), owned_ids, model)
        pairs = outside.pairs()
        rows = self._ranks.agree("check_replicas", None, lambda: digests(pairs))
        if len({row[2] for row in rows}) > 1:
            outside.leave(pairs)
        elif len({row[3] for row in rows}) > 1:
            outside.leave([pairs[i] for i in self._ranks.differing(hashes(pairs))])

    def _check_model(self, model):
        super()._check_model(model)
        if model is not None and self._agreement.outside is not None:
            self._agreement.outside.add(model)

    def no_sync(self) -> "contextlib.AbstractContextManager[None]":
        """With ``overlap=True``: backwards in the block accumulate gradients and exchange nothing.

        Without overlap nothing is exchanged before :meth:`step` anyway.
        """
        return self._parameters.hooks.paused()

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """Appends a group of parameters. Collective."""
        super().add_param_group(param_group)
        self._agreement.check_next()  # ranks compare the new gradients, too

    @locked
    def broadcast_parameters(self) -> None:
        """Copies rank 0's parameters to all ranks. Collective."""
        self._usable()
        self._ranks.agree("broadcast_parameters", self._parameters.table.fill)
        self._ranks.call("pride_optimizer_broadcast", self._parameters.handle, None)
        self._parameters.table.written()
