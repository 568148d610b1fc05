"""pride.VirtualWorkers: one process plays several workers over one copy of the model."""
# SPDX-License-Identifier: Apache-2.0
import contextlib
from typing import Any, Dict, Iterable, List, Optional, Tuple, Union

import torch

from . import _library as library
from ._ranks import locked
from ._replica import Replica
from ._tensors import arrays_of
from ._world import listed, make_world
from .errors import InvalidArgument, whole, without_frames


class VirtualWorkers(Replica):
    """An optimizer of N workers that one process plays, one after the other, over one copy of the
    model, with the bits and counted bytes of as many ranks.

        optimizer = pride.VirtualWorkers(model.parameters(), method="dlion-vote", workers=32)
        for i, batch in enumerate(batches):
            with optimizer.worker(i):
                loss_of(model, batch).backward()
        optimizer.step()

    Args:
        workers: their number N, 1 to 1024.
        node_of_rank: for each worker the number of its node.
        Others are those of :class:`Optimizer`.

    Raises:
        InvalidArgument: an argument is out of range, or the process is one of several ranks.
    """

    @without_frames
    def __init__(self, params: Iterable, lr: Optional[float] = None,
                 betas: Union[float, Tuple[float, ...], None] = None, eps: Optional[float] = None,
                 weight_decay: Optional[float] = None, *, method: Optional[str] = None,
                 workers: int, options: Optional[Dict[str, Any]] = None,
                 momentum: Optional[float] = None, maximize: bool = False,
                 bucket_size: Optional[int] = None, seed: int = 0, on_non_finite: str = "raise",
                 clip_global_norm: float = 0.0, node_of_rank: Optional[List[int]] = None,
                 run_on: str = "auto") -> None:
        self._make(params, (lr, betas, eps, weight_decay, momentum), options, dict(maximize=maximize),
                   dict(method=method, workers=workers, bucket_size=bucket_size, seed=seed,
                        on_non_finite=on_non_finite, clip_global_norm=clip_global_norm,
                        node_of_rank=node_of_rank, run_on=run_on, timeout=None))

    def _open(self, timeout):
        whole("workers", self._settings["workers"], 1, 1024)
        self._ranks.world = self._ranks.voters = make_world(None, timeout)
        self._ranks.played = self._settings["workers"]

    def _reset(self, settings):
        super()._reset(settings)
        self._handed_over = set()  # workers whose gradients libpride has

    @contextlib.contextmanager
    def worker(self, number: int):
        """``with optimizer.worker(i): loss.backward()``: the gradients of worker i.

        The block begins with gradients of None and hands them over at its end, so one set of
        buffers serves all workers. With local steps the model has the worker's own parameters
        inside the block. After one block for each worker, in any order, :meth:`step` runs the step
        of all. A block that raises hands nothing over.
        """
        self._usable()
        self._check_number(number)
        with torch.no_grad():
            self._clear_gradients()
            if not self._handed_over:
                self._parameters.prepare()
            if self._parameters.has_local_steps():
                self._ranks.call("pride_optimizer_to_worker", self._parameters.handle, number, None)
                self._parameters.table.written(self._parameters.frozen)
        yield
        with torch.no_grad():
            self._hand_over(number)
            self._clear_gradients()

    def _check_number(self, number):
        n = self._ranks.played
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < n:
            raise InvalidArgument(f"pride: worker({number!r}), there are {n}: from 0 to {n - 1}")
        if number in self._handed_over:
            raise InvalidArgument(f"pride: worker({number}) twice in a step: its gradients were "
                                  "handed over already")

    def _clear_gradients(self):
        for slot in self._parameters.slots:
            slot.param.grad = None

    @locked
    def _hand_over(self, number):
        parameters = self._parameters
        unused = parameters.hooks.unused()
        grads = parameters.with_copies(parameters.gradients(unused), unused)
        arrays = arrays_of(grads, parameters.place)
        parameters.place.follow(parameters.handle)
        self._ranks.call("pride_optimizer_hand_over", parameters.handle, number, None, arrays,
                         len(arrays))
        parameters.hooks.reset()
        self._handed_over.add(number)

    def _step(self, scaler):
        if scaler is not None or getattr(self, "found_inf", None) is not None:
            raise InvalidArgument("pride: a GradScaler with virtual workers: their gradients are "
                                  "handed over before it can check them; use bfloat16")
        missing = set(range(self._ranks.played)) - self._handed_over
        if missing:
            raise InvalidArgument(f"pride: step() without the gradients of worker(s) "
                                  f"{listed(sorted(missing))} of {self._ranks.played}: each needs a "
                                  "block `with optimizer.worker(i):` first")
        self._step_all()

    @locked
    @torch.no_grad()
    def _step_all(self):
        parameters, report = self._parameters, library.Report()
        parameters.table.fill()
        handed, self._handed_over = self._handed_over, set()
        try:
            self._ranks.call("pride_optimizer_step_workers", parameters.handle, None, report)
        except InvalidArgument:  # nothing was changed
            self._handed_over = handed
            raise
        finally:  # a failed step has written parameters, too
            parameters.table.written(parameters.frozen)
        self._traffic.add(report)
        self._saving.stepped()

    def _saved(self):
        if self._handed_over:
            raise InvalidArgument("pride: the state between the blocks of workers: save it, or copy the "
                                  "optimizer, after step()")
        return super()._saved()

    def _forget_step(self):
        self._handed_over = set()
