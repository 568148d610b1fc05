# With local steps: whose parameters a model has between the steps.
# SPDX-License-Identifier: Apache-2.0
import weakref

import torch

from ._device import memory_at
from .errors import InvalidArgument


def keep_common(optimizer, model):
    """With local steps the model has this rank's own parameters from a forward pass with gradients
    to the end of the step, and otherwise the common ones: whatever evaluates, averages or saves it
    gets these."""
    parameters = optimizer._parameters
    if not parameters.has_local_steps() or parameters.between is not None:
        return
    delay = max(int(options.get("delay", 0)) for _, options, _ in parameters.groups.methods())
    problem = ("virtual workers" if optimizer._ranks.played else
               f"option delay={delay}, for which every step would wait" if delay else None)
    if problem:
        raise InvalidArgument(f"pride: local steps with {problem}: the model has the common parameters "
                              f"between steps here; use pride.{type(optimizer).__name__} in a loop of "
                              "your own")
    parameters.between = Between(optimizer, model)
    parameters.between.common()


class Between:
    """Switches the parameters of an optimizer's model."""

    def __init__(self, optimizer, model):
        self._optimizer = weakref.ref(optimizer)
        self._marks = []
        self._forwarded = False  # a forward pass of the present step had the rank's own parameters
        ours = {id(slot.param) for slot in optimizer._parameters.slots}
        model.register_forward_pre_hook(_InForward(self))
        # a loop may call a part of the model: a list of two networks, model.loss(x)
        for part in model.modules():
            if part is not model and any(id(p) in ours for p in part.parameters()):
                part.register_forward_pre_hook(_InPart(self))

    def common(self):
        optimizer = self._optimizer()
        if not optimizer._parameters.holds_common:
            optimizer.to_common()
        self._marks = _marks(optimizer)

    def own(self):
        optimizer = self._optimizer()
        if optimizer._parameters.holds_common:
            if _marks(optimizer) != self._marks:
                self._check_values(optimizer)
            optimizer.to_local()

    def before_step(self):
        """After an evaluation or a checkpoint between backward and step. Without such a forward pass
        the gradients are of the common parameters, which the step refuses."""
        if self._forwarded:
            self.own()

    def stepped(self):
        self._forwarded = False
        self.common()

    @torch.no_grad()
    def _check_values(self, optimizer):
        """Refuses values that were written between steps, which the rank's own would overwrite."""
        now = [slot.tensor.detach().clone() for slot in optimizer._parameters.slots]
        optimizer.to_local()
        optimizer.to_common()
        for slot, values in zip(optimizer._parameters.slots, now):
            if not torch.equal(slot.tensor, values):
                for other, kept in zip(optimizer._parameters.slots, now):
                    other.tensor.copy_(kept)
                raise InvalidArgument(
                    f"pride: '{slot.name}' was changed between steps: local steps go on from each "
                    "rank's own parameters, which would overwrite it. Load the optimizer's state "
                    "after the model's, or make a new optimizer")

    def forward(self, whole):
        """In a part of the model no_grad() may be within a forward pass with gradients."""
        optimizer = self._optimizer()
        if optimizer is None or optimizer._parameters.handle is None:
            return
        if torch.is_grad_enabled():
            self.own()
            self._forwarded = True
        elif whole and not optimizer._ranks.in_step and not optimizer._parameters.holds_common:
            self.common()


def _marks(optimizer):
    return [(memory_at(slot.tensor), slot.tensor._version) for slot in optimizer._parameters.slots]


class _InForward:
    """A hook of the model. Copies of the model have one without effect."""

    def __init__(self, between=None):
        self._between = between

    def __call__(self, module, _):
        if self._between is not None:
            self._between.forward(True)

    def __reduce__(self):
        return type(self), ()


class _InPart(_InForward):
    """The same of a module inside the model."""

    def __call__(self, module, _):
        if not _is_compiling() and self._between is not None:
            self._between.forward(False)


# a compiled model has its own hook outside
_is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)
