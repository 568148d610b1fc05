"""What all of pride's optimizers have in common."""
# SPDX-License-Identifier: Apache-2.0
import contextlib
import ctypes as c
from typing import Any, Callable, Dict, List, Optional

import torch

from . import _groups, _load
from . import _library as library
from ._construction import Constructed, owned_ids
from ._hashes import digest, hash_as_float32
from ._outside import digests, hashes, listed_names, named
from ._ranks import locked
from ._tensors import Slot, parts_of
from ._world import MpiWorld
from .errors import Error, InvalidArgument, of_type, without_frames

NEW_TORCH = int(torch.__version__.split(".")[0]) >= 2


class Replica(Constructed):
    """The base of :class:`Optimizer`, :class:`VirtualWorkers` and :class:`RunWorker`: parameters in
    groups, their methods, their state."""

    _step_supports_amp_scaling = True

    if NEW_TORCH:

        def step(self, closure: Optional[Callable[[], float]] = None) -> Optional[float]:
            """One step; collective. Returns the closure's loss."""
            return self._step_after(closure, None)
    else:

        def step(self, closure: Optional[Callable[[], float]] = None, *,
                 grad_scaler=None) -> Optional[float]:
            """One step; collective. Returns the closure's loss."""
            return self._step_after(closure, grad_scaler)

    @without_frames
    def _step_after(self, closure, scaler):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._usable()
        self._step(scaler)
        return loss

    def zero_grad(self, set_to_none: bool = NEW_TORCH) -> None:
        """As in torch."""
        self._parameters.hooks.reset()
        super().zero_grad(set_to_none=set_to_none)

    @locked
    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """Appends a group of parameters. Collective."""
        add = super().add_param_group
        parameters, ranks, groups = self._parameters, self._ranks, self._groups
        if parameters.handle is None and self._saving.saved is None and not ranks.broken:
            # torch's constructor
            groups.append(add, param_group)
            return
        self._usable()
        first = len(self.param_groups)
        new: List[Slot] = []

        def prepare():
            of_type("add_param_group: the group", param_group, dict)
            groups.append(add, parameters.without_names([dict(param_group)])[0])
            new.extend(parameters.new_slots(first))
            parameters.table.fill()

        def row():
            group, specs = self.param_groups[first], [slot.spec for slot in new]
            return [digest(repr(specs).encode()), digest(bytes(groups.values(group, first))),
                    digest(repr([hash_as_float32(slot.tensor) for slot in new]).encode())]

        try:
            rows = ranks.agree("add_param_group", prepare, row)
            ranks.same(rows, 0, "names, shapes or matrices of the added parameters")
            ranks.same(rows, 1, "method or hyper-parameters of the added group")
            ranks.same(rows, 2, "initial values of the added parameters")
            group = self.param_groups[first]
            values = groups.values(group, first)
            ranks.call("pride_optimizer_add", parameters.handle, library.make_layout(*parts_of(new)),
                       c.byref(_groups.with_method(values, group)), 1)
        except BaseException:
            del self.param_groups[first:]
            raise
        groups.given([values])
        self._adopt(new)
        parameters.matrices.is_said = False
        parameters.matrices.say(ranks.world)

    @without_frames
    def check_replicas(self, model: Optional[torch.nn.Module] = None) -> int:
        """A 64-bit hash of all parameters, equal on all ranks. Collective. With local steps, the
        hash of the common parameters. With ``model``, its other parameters are compared, too.

        Raises:
            InvalidArgument: on all ranks, naming the ranks whose parameters differ from rank 0's.
        """
        self._usable()
        ranks = self._ranks
        rows = ranks.agree("check_replicas", lambda: model is None or of_type(
            "check_replicas: model", model, torch.nn.Module), self._parameters.hashes)
        ranks.same(rows, 0, "parameters", ranks.local_of)
        ranks.same(rows, 1, "parameters", ranks.node_of)
        self._check_model(model)
        if not ranks.nodes:
            return rows[0][2]
        return digest(repr([rows[r][2] for r in ranks.nodes.first]).encode())

    def _check_model(self, model):
        """Compares the model's parameters that no optimizer of pride's has."""
        owned = owned_ids()
        pairs = [] if model is None else [
            (name, p) for name, p in named(model) if id(p) not in owned]
        rows = self._ranks.agree("check_replicas", None, lambda: digests(pairs))
        self._ranks.same(rows, 0, "names and shapes of the model's other parameters")
        if len({row[3] for row in rows}) > 1:
            names = [pairs[i][0] for i in self._ranks.differing(hashes(pairs))]
            raise InvalidArgument(
                f"pride: the model's parameters differ between ranks: {listed_names(names or ['?'])}. "
                "No optimizer of pride's has them, so that each rank changes them by itself: give them "
                "to pride's optimizer, or average their gradients. If each rank is meant to have its "
                "own, call check_replicas() with a module that has not got them")

    def traffic(self) -> Dict[str, Any]:
        """Bytes of this rank (or virtual worker 0) in all steps so far, and in the last step.

        ``cost_bytes``: the bytes that the next step sends. ``mean_cost_bytes``: with local steps,
        their mean over the period of h steps. ``fp32_bytes``: the bytes of a ring all-reduce of
        float32 gradients. With ``node_group`` these count this rank's bytes between nodes;
        ``node_bytes_sent`` and ``node_bytes_received`` count bytes inside the node. ``sections``:
        for each method with its options a dict of its ``groups``, its number of ``parameters``, the
        bytes of its ``state``, its costs as above, and its bytes and messages in the last step.
        """
        self._refuse_copy("traffic")
        return self._traffic.all()

    def memory(self) -> Dict[str, int]:
        """Bytes that the optimizer holds beside parameters and gradients, by kind.

        ``state``: the method's state. ``masters``: 2 bytes per bfloat16 parameter, 4 per float16
        parameter. ``frames``: buffers of the exchange, in host memory. ``scratch``: the method's
        working memory, on a GPU also staged words of frames. ``copies``: copies of parameters that
        libpride cannot read in place.
        """
        self._refuse_copy("memory")
        use, nodes = library.MemoryUse(), self._ranks.nodes
        library.call("pride_optimizer_memory", self._parameters.handle, c.byref(use))
        return dict(state=use.state, masters=use.masters, frames=use.frames, scratch=use.scratch,
                    copies=self._parameters.table.copied_bytes() + (
                        nodes.copied_bytes() if nodes else 0))

    def _refuse_copy(self, what):
        if self._parameters.handle is None:
            raise Error(f"pride: no {what}: {self._ranks.broken or 'the optimizer is a copy without a step'}")

    def to_common(self) -> None:
        """With local steps: sets the model to the common parameters, to evaluate or save.

        For methods with local steps (``local-vote``, ``diloco``, ...), between steps. Call
        :meth:`to_local` before the next gradient. Other methods have the same parameters on all
        ranks anyway: nothing changes. Not collective; with the option ``delay`` it waits for
        exchanges in flight.
        """
        self._set_to("common")

    def to_local(self) -> None:
        """After :meth:`to_common`: restores this rank's own parameters, bit for bit."""
        self._set_to("local")

    @locked
    def _set_to(self, which):
        self._usable()
        if self._ranks.in_step:
            raise InvalidArgument(f"pride: to_{which}() between backward and step() with "
                                  "overlap=True; call it after step()")
        self._parameters.set_to(which)

    @contextlib.contextmanager
    def common_parameters(self):
        """``with optimizer.common_parameters(): evaluate(model)``: :meth:`to_common`, and back.

        Inside another such block, or after :meth:`to_common`, it changes nothing.
        """
        inside = self._parameters.holds_common
        if not inside:
            self.to_common()
        try:
            yield
        finally:
            if not inside:
                self.to_local()

    @locked
    def state_dict(self) -> Dict[str, Any]:
        """The state of this rank, or of all virtual workers; after :meth:`consolidate_state_dict`
        that of all ranks.

        Not collective. Returns copies, of one moment in whatever thread: it waits for the end of a
        step. Each rank's own momentum has the rank in its key, e.g. ``m.rank3``. With ``overlap``,
        after an exception that ended backward, it ends the step that had begun.
        """
        return self._saved()

    def _saved(self):
        for hook in getattr(self, "_optimizer_state_dict_pre_hooks", {}).values():
            hook(self)
        made = self._saving.save()
        for hook in getattr(self, "_optimizer_state_dict_post_hooks", {}).values():
            changed = hook(self, made)
            made = made if changed is None else changed
        return made

    @locked
    def consolidate_state_dict(self, to: int = 0) -> None:
        """Gathers the state of all ranks on rank ``to``, for its next :meth:`state_dict`.

        Collective. With virtual workers and with a coordinator there is nothing to gather.
        """
        self._usable()
        self._saving.consolidate(to)

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
        self._load(state_dict, local, with_groups=True)
        self._groups.begin_rates()
        if self._parameters.between is not None:
            self._parameters.between.common()

    def _load(self, saved, local, with_groups=False):
        def hooked(state):
            if isinstance(state, dict):
                state = state.copy()  # as torch does, for the hooks
            for hook in getattr(self, "_optimizer_load_state_dict_pre_hooks", {}).values():
                changed = hook(self, state)
                state = state if changed is None else changed
            return state

        values = _load.load(self._saving, saved, local, hooked)
        for group, each in zip(self.param_groups if with_groups else (), values):
            for key, other in (("betas", "momentum"), ("momentum", "betas")):
                if key not in each and other in each:  # one in place of the other
                    group.pop(key, None)
            group.update(each)
        self._forget_step()
        self._groups.send(self._parameters.handle)
        self.to_local()
        self._saving.stepped()
        for hook in getattr(self, "_optimizer_load_state_dict_post_hooks", {}).values():
            hook(self)

    def _forget_step(self):
        """Another state was loaded: drops what was known of the next step."""

    def close(self) -> None:
        """Ends the optimizer's threads and connections. At exit the interpreter calls it."""
        self._native.abandon("the optimizer was closed in the middle of a step")
        parameters, ranks = self._parameters, self._ranks
        parameters.hooks.remove()
        handle, parameters.handle = parameters.handle, None
        self._native.set_optimizer(None, None)
        if handle is not None:
            ranks.broken = ranks.broken or "the optimizer is closed"
            for entry in self.state.values():  # views that a caller holds keep their memory
                entry.clear()
            handle.close()
            if ranks.voters is not ranks.world:
                ranks.voters.close()
            if not isinstance(ranks.world, MpiWorld):
                ranks.world.close()
