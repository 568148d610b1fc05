"""pride.Optimizer: torch optimizers whose ranks exchange about one bit per parameter."""
# SPDX-License-Identifier: Apache-2.0
import contextlib
import ctypes as c
import datetime
import os
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple, Union

import torch

from . import _groups, _load, _state
from . import _library as library
from ._arguments import check_arguments, group_of
from ._construction import Construction
from ._hashes import digest, hash_as_float32
from ._world import MpiWorld
from ._tensors import Slot, parts_of
from ._ranks import locked
from .errors import Error, InvalidArgument, duration, of_type, without_frames

_NEW_TORCH = int(torch.__version__.split(".")[0]) >= 2


class Optimizer(Construction, torch.optim.Optimizer):
    """Any method of :func:`pride.methods`, as a ``torch.optim.Optimizer``.

    Every rank of ``process_group`` makes the same optimizer over its own replica of the model and
    calls :meth:`step` with the gradients of its own batch, **not averaged** (see
    :func:`pride.local_gradients` for DistributedDataParallel). Parameters must begin equal on all
    ranks and then stay so, bit for bit.

    Args:
        params: parameters, ``(name, parameter)`` pairs, or dicts of groups, as in torch. A group may
            have a ``"method"`` of its own, with ``"options"``: its other defaults are then that
            method's. ``"matrix"``, True or False, decides for its tensors whether a method that
            orthogonalises matrices treats them as such. These three keys cannot change.
        lr, betas, eps, weight_decay: of groups without a method of their own; default: those of the
            method. Weight decay is decoupled; it also changes a parameter that no rank has used in
            a step, except with ``requires_grad=False``. ``betas`` has as many values as the method
            has.
        method: a name of :func:`pride.methods`, e.g. ``"dlion-vote"``.
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
            NCCL); 300 seconds with a coordinator, and with MPI unless :func:`pride.mpi` has
            another.
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
        virtual_workers: this process plays this many workers over one copy of the model, with the
            bits and counted bytes of as many ranks: ``with optimizer.worker(i):`` around forward
            and backward of each, then one ``step()``.
        coordinator: ``"host:port"`` of ``pride serve``. This process is one worker of a run that
            others join and leave. The constructor overwrites the parameters with the run's;
            :meth:`last_round` returns the fate of a step.
        certificates: with ``coordinator``: the folder of ``pride certs worker``; without it the
            coordinator must be on this machine.
        worker_name: with ``coordinator``: this worker's name in the run; default: that of the
            certificate, or a random one.
        coordinator_secret: with ``coordinator`` and ``worker_name``: a file of 16 bytes that shows
            the coordinator that a worker of this name is the same one after a restart. If it does
            not exist it is made, readable by its owner alone. Default: only this process can use
            the name. A certificate needs no such file.

    Raises:
        InvalidArgument: on all ranks, if parameters, options or initial values differ between
            ranks, or a rank refuses its arguments; the text names the rank and the parameter.
        CommError: a rank is gone, stalls or fails; on all ranks, within ``timeout``.
    """

    _step_supports_amp_scaling = True

    @without_frames
    def __init__(self, params: Iterable, lr: Optional[float] = None,
                 betas: Union[float, Tuple[float, ...], None] = None, eps: Optional[float] = None,
                 weight_decay: Optional[float] = None, *, method: str,
                 options: Optional[Dict[str, Any]] = None, process_group: Any = None,
                 maximize: bool = False, foreach: Optional[bool] = None,
                 fused: Optional[bool] = None, capturable: bool = False,
                 differentiable: bool = False, overlap: bool = False,
                 release_gradients: bool = False, bucket_size: Optional[int] = None,
                 lanes: int = 2, seed: int = 0, vote_weight: int = 1,
                 on_non_finite: str = "raise", clip_global_norm: float = 0.0,
                 timeout: Union[float, datetime.timedelta, None] = None,
                 broadcast_parameters: bool = False, equal_gradients: str = "refuse",
                 node_of_rank: Optional[List[int]] = None, node_group: Any = None,
                 replicate_mesh: Any = None, run_on: str = "auto", virtual_workers: Optional[int] = None,
                 coordinator: Optional[str] = None, certificates: Optional[str] = None,
                 worker_name: Optional[str] = None,
                 coordinator_secret: Union[str, os.PathLike, None] = None) -> None:
        duration(timeout)
        process_group = group_of(process_group, replicate_mesh)
        self._settings = dict(
            method=method, options=dict(options) if isinstance(options, dict) else {},
            process_group=process_group, overlap=overlap, release_gradients=release_gradients,
            bucket_size=bucket_size, lanes=lanes, seed=seed, vote_weight=vote_weight,
            on_non_finite=on_non_finite, clip_global_norm=clip_global_norm, timeout=timeout,
            equal_gradients=equal_gradients, node_of_rank=node_of_rank, node_group=node_group,
            virtual_workers=virtual_workers, run_on=run_on, coordinator=coordinator,
            certificates=certificates, worker_name=worker_name,
            coordinator_secret=coordinator_secret)
        self._reset()

        def take():
            check_arguments(self._settings, options, dict(
                broadcast_parameters=broadcast_parameters, capturable=capturable,
                differentiable=differentiable))
            info = _groups.info_of(method, self._settings["options"])
            rates = _groups.rates_of(info, lr, betas, eps, weight_decay)
            self._settings["betas"] = {key: rates[key] for key in rates if key == "betas"}
            torch.optim.Optimizer.__init__(self, self._unnamed(params), dict(
                rates, maximize=maximize, foreach=foreach, fused=fused, capturable=False,
                differentiable=False))
            if hasattr(params, "share"):  # groups of an optimizer that is taken over
                params.share(self)

        self._build(broadcast_parameters, take)

    if _NEW_TORCH:

        def step(self, closure: Optional[Callable[[], float]] = None) -> Optional[float]:
            """One step with the gradients of this rank; collective. Returns the closure's loss."""
            return self._step(closure, None)
    else:

        def step(self, closure: Optional[Callable[[], float]] = None, *,
                 grad_scaler=None) -> Optional[float]:
            """One step with the gradients of this rank; collective. Returns the closure's loss."""
            return self._step(closure, grad_scaler)

    def no_sync(self) -> "contextlib.AbstractContextManager[None]":
        """With ``overlap=True``: backwards in the block accumulate gradients and exchange nothing.

        Without overlap nothing is exchanged before :meth:`step` anyway.
        """
        return self._hooks.paused()

    def zero_grad(self, set_to_none: bool = _NEW_TORCH) -> None:
        """As in torch."""
        self._hooks.reset()
        super().zero_grad(set_to_none=set_to_none)

    @locked
    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """Appends a group of parameters. Collective."""
        if self._handle is None and self._saved is None:  # torch's constructor
            self._append(param_group)
            return
        self._usable()
        first = len(self.param_groups)
        new: List[Slot] = []

        def prepare():
            of_type("add_param_group: the group", param_group, dict)
            self._append(self._unnamed([dict(param_group)])[0])
            new.extend(self._new_slots(first))
            self._table.fill()

        def row():
            group, specs = self.param_groups[first], [slot.spec for slot in new]
            return [digest(repr(specs).encode()), digest(bytes(self._group_values(group, first))),
                    digest(repr([hash_as_float32(slot.tensor) for slot in new]).encode())]

        try:
            rows = self._ranks.agree("add_param_group", prepare, row)
            self._ranks.same(rows, 0, "names, shapes or matrices of the added parameters")
            self._ranks.same(rows, 1, "method or hyper-parameters of the added group")
            self._ranks.same(rows, 2, "initial values of the added parameters")
            group = self.param_groups[first]
            values = self._group_values(group, first)
            self._ranks.call("pride_optimizer_add", self._handle,
                             library.make_layout(*parts_of(new)),
                             c.byref(_groups.with_method(values, group)), 1)
        except BaseException:
            del self.param_groups[first:]
            raise
        self._layout = library.make_layout(*parts_of(self._slots + new))
        self._sent_groups.append(bytes(values))
        self._first_rates.append(self._first_rate(group, values))
        self._adopt(new)
        self._matrices.is_said = False
        self._matrices.say(self._ranks.world)
        self._checks_left = max(1, self._checks_left)  # ranks compare the new gradients, too

    def last_round(self) -> Optional[Dict[str, Any]]:
        """With a coordinator: the fate of the ballot in the last step; None if no round ended."""
        if self._handle is None:
            return None
        out = library.Round()
        library.call("pride_optimizer_round", self._handle, c.byref(out))
        if out.round < 0:
            return None
        return dict(round=out.round, voters=out.voters, counted=bool(out.counted),
                    why_not=out.why_not.decode(), replayed=out.replayed,
                    took_parameters=bool(out.took_parameters))

    @locked
    def broadcast_parameters(self) -> None:
        """Copies rank 0's parameters to all ranks. Collective. With a coordinator: overwrites the
        parameters with the run's, at the open round."""
        self._usable()
        self._ranks.agree("broadcast_parameters", self._table.fill)
        self._ranks.call("pride_optimizer_broadcast", self._handle, None)
        self._table.written()

    @without_frames
    def check_replicas(self, model: Optional[torch.nn.Module] = None) -> int:
        """A 64-bit hash of all parameters, equal on all ranks. Collective. With local steps, the
        hash of the common parameters. With ``model``, its other parameters are compared, too.

        Raises:
            InvalidArgument: on all ranks, naming the ranks whose parameters differ from rank 0's.
        """
        self._usable()
        rows = self._ranks.agree("check_replicas", lambda: model is None or of_type(
            "check_replicas: model", model, torch.nn.Module), self._hashes)
        self._ranks.same(rows, 0, "parameters", self._ranks.local_of)
        self._ranks.same(rows, 1, "parameters", self._ranks.node_of)
        self._check_model(model)
        if not self._ranks.nodes:
            return rows[0][2]
        return digest(repr([rows[r][2] for r in self._ranks.nodes.first]).encode())

    def traffic(self) -> Dict[str, Any]:
        """Bytes of this rank (or virtual worker 0) in all steps so far, and in the last step.

        ``cost_bytes``: the bytes that the next step sends. ``mean_cost_bytes``: with local steps,
        their mean over the period of h steps. ``fp32_bytes``: the bytes of a ring all-reduce of
        float32 gradients. With ``node_group`` these count this rank's bytes between nodes;
        ``node_bytes_sent`` and ``node_bytes_received`` count bytes inside the node. ``sections``:
        for each method with its options a dict of its ``groups``, its number of ``parameters``, the
        bytes of its ``state``, its costs as above, and its bytes and messages in the last step.
        """
        if self._handle is None:
            raise Error("pride: no traffic before the first step of a copied optimizer")
        cost, mean = library.Cost(), library.Cost()
        steps = library.lib.pride_optimizer_steps_done(self._handle)
        library.call("pride_optimizer_cost", self._handle, steps, c.byref(cost))
        library.call("pride_optimizer_mean_cost", self._handle, steps, c.byref(mean))
        n = sum(slot.n for slot in self._slots)
        world = self._n_ranks()
        fp32 = 8 * n * (world - 1) // world
        last = dict(self._last, fp32_bytes=fp32) if self._last else {}
        return dict(self._totals, last_step=last,
                    cost_bytes=cost.bytes_up + cost.bytes_down, cost_exact=bool(cost.exact),
                    mean_cost_bytes=mean.bytes_up + mean.bytes_down, fp32_bytes=fp32,
                    sections=_groups.sections_of(self._handle, self._methods(), self._slots, steps))

    def memory(self) -> Dict[str, int]:
        """Bytes that the optimizer holds beside parameters and gradients, by kind.

        ``state``: the method's state. ``masters``: 2 bytes per bfloat16 parameter, 4 per float16
        parameter. ``frames``: buffers of the exchange, in host memory. ``scratch``: the method's
        working memory, on a GPU also staged words of frames. ``copies``: copies of parameters that
        libpride cannot read in place.
        """
        if self._handle is None:
            raise Error("pride: no memory before the first step of a copied optimizer")
        use = library.MemoryUse()
        library.call("pride_optimizer_memory", self._handle, c.byref(use))
        return dict(state=use.state, masters=use.masters, frames=use.frames, scratch=use.scratch,
                    copies=self._table.copied_bytes() + (
                        self._ranks.nodes.copied_bytes() if self._ranks.nodes else 0))

    def to_common(self) -> None:
        """With local steps: sets the model to the common parameters, to evaluate or save.

        For methods with local steps (``local-vote``, ``diloco``, ...), between steps. Call
        :meth:`to_local` before the next gradient. Other methods have the same parameters on all
        ranks anyway: nothing changes. Not collective; with the option ``delay`` it waits for
        exchanges in flight.
        """
        self._replace_parameters("common")

    def to_local(self) -> None:
        """After :meth:`to_common`: restores this rank's own parameters, bit for bit."""
        self._replace_parameters("local")

    @locked
    def _replace_parameters(self, which):
        self._usable()
        if self._ranks.in_step:
            raise InvalidArgument(f"pride: to_{which}() between backward and step() with "
                                  "overlap=True; call it after step()")
        if library.lib.pride_optimizer_period(self._handle) > 1:
            self._table.fill()
            self._send_frozen()
            self._ranks.call(f"pride_optimizer_to_{which}", self._handle, None)
            self._table.written(self._frozen)
            self._holds_common = which == "common"

    @contextlib.contextmanager
    def common_parameters(self):
        """``with optimizer.common_parameters(): evaluate(model)``: :meth:`to_common`, and back.

        Inside another such block, or after :meth:`to_common`, it changes nothing.
        """
        inside = self._holds_common
        if not inside:
            self.to_common()
        try:
            yield
        finally:
            if not inside:
                self.to_local()

    @locked
    def state_dict(self) -> Dict[str, Any]:
        """This rank's state; after :meth:`consolidate_state_dict` the state of all ranks.

        Not collective. Returns copies, of one moment in whatever thread: it waits for the end of a
        step. Each rank's own momentum has the rank in its key, e.g. ``m.rank3``. With virtual
        workers it is the state of all workers. With ``overlap``, after an exception that ended
        backward, it ends the step that had begun.
        """
        if self._ranks.in_step:
            self._leave_backward()
        made = _state.state_dict(self)
        self._saved_alone = self._saved_alone or _state.lacks_others(self)
        return made

    @locked
    def load_state_dict(self, state_dict: Dict[str, Any], *, local: str = "keep") -> None:
        """Loads what :meth:`state_dict` returned. Collective: all ranks load, or none does.

        Load the model first. With local steps this call sets the model to this rank's own
        parameters. A loaded master is kept only if the 16-bit parameter has its rounded value.

        Args:
            state_dict: this rank's state, the state of all ranks (consolidated), or one rank's
                state on all ranks, with a warning on ranks that get another rank's momentum.
            local: each rank's own momentum: ``"keep"`` (rank r gets that of saved rank r modulo
                their number), ``"average"`` over the saved ranks, or ``"reset"`` to zero.
        """
        self._usable()
        _load.load(self, state_dict, local)
        self._first_rates = [self._first_rate(group, self._group_values(group))
                             for group in self.param_groups]
        if self._between is not None:
            self._between.common()
        if self._settings.get("coordinator") is not None:
            self.broadcast_parameters()

    @locked
    def consolidate_state_dict(self, to: int = 0) -> None:
        """Gathers the state of all ranks on rank ``to``, for its next :meth:`state_dict`.

        Collective.
        """
        self._usable()
        _state.consolidate(self, to)

    def close(self) -> None:
        """Ends the optimizer's threads and connections. At exit the interpreter calls it."""
        self._native.abandon("the optimizer was closed in the middle of a step")
        self._hooks.remove()
        handle, self._handle = self._handle, None
        self._native.set_optimizer(None, None)
        if handle is not None:
            self._ranks.broken = self._ranks.broken or "the optimizer is closed"
            for entry in self.state.values():  # views that a caller holds keep their memory
                entry.clear()
            handle.close()
            if self._ranks.voters is not self._ranks.world:
                self._ranks.voters.close()
            if not isinstance(self._ranks.world, MpiWorld):
                self._ranks.world.close()
