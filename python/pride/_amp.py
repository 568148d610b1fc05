# Scale and overflow flag (found_inf) of a GradScaler.
# SPDX-License-Identifier: Apache-2.0
import torch
import torch.distributed as dist

from ._tensors import local
from .errors import InvalidArgument

# found_inf in a rank's row of a step. 0: no scaler; FOUND, NOT_FOUND: read on the host; IN_FRAMES:
# frames carry it.
FOUND, IN_FRAMES, NOT_FOUND = 1, 2, 3


def _factor_of(scale):
    if not 1e-38 < scale < 1e38:
        raise InvalidArgument(f"pride: the GradScaler's scale is {scale}, must be from 1e-38 to 1e38")
    return 1.0 / scale


class Amp:
    """Scale and found_inf of a step: in torch 1.13 of an argument, in 2.x attributes.

    To read attributes on the host would wait for backward. So the method multiplies by the scale
    in the gradients' memory, and frames carry found_inf. Read before the step are: an argument;
    attributes with nodes, whose means are checked on the host anyway; attributes with local steps,
    because a step without exchange sends no frame; attributes with a coordinator.
    """

    def __init__(self, owner, scaler, parameters, exchanges_all):
        """owner: the optimizer, on which a GradScaler leaves its marks. exchanges_all: whether all
        steps have frames."""
        self._owner, self._scaler, self._parameters = owner, scaler, parameters
        self._found = getattr(owner, "found_inf", None)
        self.used = scaler is not None or self._found is not None
        self.in_frames = self._found is not None and scaler is None and exchanges_all
        self.is_read = self.used and not self.in_frames  # on the host, before the step
        self.scale = None   # the factor on gradients, if it was read;
        self.factor = None  # otherwise a tensor of one value with it
        self._found_inf = False
        self._flags = {}  # the scaler's found_inf tensors, by device

    @property
    def found(self):
        """The value for the row of the step."""
        if self._found_inf:
            return FOUND
        return IN_FRAMES if self.in_frames else NOT_FOUND if self.used else 0

    def mark(self, unused):
        """Before gradients are used: if found_inf is set, for whatever reason, makes a value of one
        gradient NaN, so that frames carry the flag. Queued on the device, without a wait."""
        if not self.in_frames:
            return
        grad = self._first_gradient(unused)
        if grad is not None:
            found = torch.as_tensor(local(self._found), dtype=torch.float32,
                                    device=grad.device).reshape(()) != 0
            grad[(0,) * grad.ndim].masked_fill_(found, float("nan"))
        elif not self._parameters.shard_groups:  # with shards, another rank marks a value
            self.is_read = True  # read() does not wait: this rank had no backward
            return
        scale = getattr(self._owner, "grad_scale", None)
        if scale is not None:
            scale = torch.as_tensor(scale, dtype=torch.float64,
                                    device=getattr(scale, "device", "cpu")).reshape(1)
            scale = scale.reciprocal() + 0 * scale  # NaN if the scale is infinite
            self.factor = self._parameters.place.copy(scale.float())
        if self._owner.scaler is not None:
            self._read_flags(self._owner.scaler)

    def _first_gradient(self, unused):
        """A gradient of this rank that has values and is encoded, or None."""
        parameters = self._parameters
        params = [slot.param for slot, missing in zip(parameters.slots, unused) if not missing]
        params += [p for assembly in parameters.assemblies for p in assembly.params]
        grads = (local(p.grad).detach() for p in params if p.grad is not None)
        return next((g for g in grads if g.layout == torch.strided and g.numel()), None)

    def read(self):
        if self._scaler is not None:
            self._read_scaler()
        elif self.is_read:
            scale = getattr(self._owner, "grad_scale", None)
            self.scale = None if scale is None else _factor_of(float(scale))
            self._found_inf = float(self._found) != 0
            if self._owner.scaler is not None:
                self._read_flags(self._owner.scaler)
            for group in self._parameters.shard_groups:  # each rank's flag covers its own shards
                flag = torch.tensor(float(self._found_inf), dtype=torch.float32,
                                    device=self._parameters.slots[0].device)
                dist.all_reduce(flag, dist.ReduceOp.MAX, group=group)
                self._found_inf = float(flag) != 0

    def _read_scaler(self):
        scaler, number = self._scaler, id(self._owner)
        if scaler._per_optimizer_states[number]["stage"].name == "READY":
            scaler._check_inf_per_device(self._owner)
            self.scale = _factor_of(float(scaler._get_scale_async()))
        self._read_flags(scaler)
        self._found_inf = any(t.item() != 0 for t in self._flags.values())

    def _read_flags(self, scaler):
        self._flags = scaler._per_optimizer_states[id(self._owner)]["found_inf_per_device"]
        if not self._flags:  # no gradient on this rank: a flag that share_inf() can set
            scale = scaler._get_scale_async()
            self._flags[scale.device] = torch.zeros(1, dtype=torch.float32, device=scale.device)

    def share_inf(self):
        """Sets found_inf in this rank's scaler, so that the scalers of all ranks lower their scale
        alike. It needs the scaler: an argument (torch 1.13) or optimizer.scaler."""
        for tensor in self._flags.values():
            tensor.fill_(1.0)
