# What a GradScaler says of a step.
# SPDX-License-Identifier: Apache-2.0
import functools

import torch
import torch.distributed as dist

from ._tensors import local
from .errors import InvalidArgument
from .methods import method_info

# What a rank says of found-inf in the row of a step: nothing; that there is one; or that its frames
# will tell.
FOUND, IN_FRAMES = 1, 2


@functools.lru_cache(maxsize=None)
def _has_local_steps(method):
    return "h" in method_info(method).options


def _factor_of(scale):
    if not 1e-38 < scale < 1e38:
        raise InvalidArgument(f"pride: the GradScaler's scale is {scale}, must be from 1e-38 to 1e38")
    return 1.0 / scale


class Amp:
    """What a GradScaler says of a step: an argument in torch 1.13, attributes in 2.x.

    Attributes are not read on the host, which would wait for backward: the method multiplies by the
    scale where it lies, and frames tell all ranks whether gradients are finite. What is read before
    the step: an argument; and attributes with nodes, which look at their means before anyway, and
    with local steps, of whose gradients no frame tells.
    """

    def __init__(self, optimizer, scaler):
        self._optimizer, self._scaler = optimizer, scaler
        self._found = getattr(optimizer, "found_inf", None)
        self.used = scaler is not None or self._found is not None
        self._in_frames = self._found is not None and scaler is None and not (
            optimizer._nodes or optimizer._settings["coordinator"] or
            _has_local_steps(optimizer._settings["method"]))
        self.scale = None   # what gradients are to be multiplied with, known here;
        self.factor = None  # or a tensor of one value
        self._found_inf = False
        self._flags = {}  # the scaler's own, by device

    @property
    def found(self):
        """For the row of the step."""
        return IN_FRAMES if self._in_frames else FOUND if self._found_inf else 0

    def mark(self, unused):
        """Before gradients go anywhere. A found-inf makes a value of one NaN, so that frames tell of
        it even if it is of another check. Queued, without a wait."""
        if not self._in_frames:
            return
        grad = self._first_gradient(unused)
        if grad is not None:
            found = torch.as_tensor(local(self._found), device=grad.device).reshape(()) != 0
            grad[(0,) * grad.ndim].masked_fill_(found, float("nan"))
        elif not self._optimizer._shard_groups:  # there, other ranks have a value to mark
            self._in_frames = False  # nothing to wait for
            return
        scale = getattr(self._optimizer, "grad_scale", None)
        if scale is not None:
            scale = torch.as_tensor(scale, dtype=torch.float64).reshape(1)
            scale = scale.reciprocal() + 0 * scale  # NaN of an infinite one
            self.factor = self._optimizer._slots[0].place.copy(scale.float())
        if self._optimizer.scaler is not None:
            self._read_flags(self._optimizer.scaler)

    def _first_gradient(self, unused):
        """One of this rank's that has values and goes to frames, or None."""
        optimizer = self._optimizer
        params = [slot.param for slot, missing in zip(optimizer._slots, unused) if not missing]
        params += [p for assembly in optimizer._assemblies for p in assembly.params]
        grads = (local(p.grad).detach() for p in params if p.grad is not None)
        return next((g for g in grads if g.layout == torch.strided and g.numel()), None)

    def read(self):
        if self._scaler is not None:
            self._read_scaler()
        elif self._found is not None and not self._in_frames:
            scale = getattr(self._optimizer, "grad_scale", None)
            self.scale = None if scale is None else _factor_of(float(scale))
            self._found_inf = float(self._found) != 0
            if self._optimizer.scaler is not None:
                self._read_flags(self._optimizer.scaler)
            for group in self._optimizer._shard_groups:  # each saw its own shards
                flag = torch.tensor(float(self._found_inf), device=self._optimizer._slots[0].device)
                dist.all_reduce(flag, dist.ReduceOp.MAX, group=group)
                self._found_inf = float(flag) != 0

    def _read_scaler(self):
        scaler, number = self._scaler, id(self._optimizer)
        if scaler._per_optimizer_states[number]["stage"].name == "READY":
            scaler._check_inf_per_device(self._optimizer)
            self.scale = _factor_of(float(scaler._get_scale_async()))
        self._read_flags(scaler)
        self._found_inf = any(t.item() != 0 for t in self._flags.values())

    def _read_flags(self, scaler):
        self._flags = scaler._per_optimizer_states[id(self._optimizer)]["found_inf_per_device"]
        if not self._flags:  # no gradient on this rank: its scaler follows the others
            scale = scaler._get_scale_async()
            self._flags[scale.device] = torch.zeros(1, device=scale.device)

    def share_inf(self):
        """All ranks' scalers back off alike, where their flags are known: of an argument
        (torch 1.13), or of optimizer.scaler."""
        for tensor in self._flags.values():
            tensor.fill_(1.0)
