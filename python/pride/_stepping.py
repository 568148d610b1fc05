# Optimizers that step with the gradients of this rank.
# SPDX-License-Identifier: Apache-2.0
import torch

from ._agreement import Agreement
from ._amp import Amp
from ._backward import Backward
from ._groups import info_of
from ._ranks import locked
from ._replica import Replica
from ._steps import Steps


class Stepping(Replica):
    """The base of Optimizer and RunWorker."""

    def _reset(self, settings):
        super()._reset(settings)
        self._agreement = Agreement(self._parameters, self._native, self._saving, self._traffic)
        self._backward = Backward(self._parameters, self._native, settings["release_gradients"])
        self._steps = Steps(self._parameters, self._native, self._agreement, self._backward,
                            self._saving, self._traffic)
        self.scaler = None  # GradScaler of torch 2.x whose found_inf all ranks share

    def _step(self, scaler):
        with self._lock, torch.no_grad():
            between = self._parameters.between
            if between is not None:
                between.before_step()
            interrupt = self._steps.run(Amp(self, scaler, self._parameters, self._exchanges_all()))
            if between is not None:
                between.stepped()
        if interrupt is not None:
            raise interrupt

    def _exchanges_all(self):
        """True if every step has frames, which can carry an overflow to all ranks."""
        return not self._ranks.nodes and not any(
            "h" in info_of(name, options).options for name, options, _ in self._groups.methods())

    @locked
    def state_dict(self):
        if self._ranks.in_step:
            self._backward.leave()
        made = super().state_dict()
        self._saving.saved_alone = self._saving.saved_alone or self._saving.lacks_others()
        return made

    def _forget_step(self):
        self._agreement.rows_first = True
