# What a GradScaler says of a step.
# SPDX-License-Identifier: Apache-2.0
import torch
import torch.distributed as dist

from .errors import InvalidArgument


def _factor_of(scale):
    if not 1e-38 < scale < 1e38:
        raise InvalidArgument(f"pride: the GradScaler's scale is {scale}, must be from 1e-38 to 1e38")
    return 1.0 / scale


class Amp:
    """What a GradScaler says of a step: an argument in torch 1.13, attributes in 2.x."""

    def __init__(self, optimizer, scaler):
        self._optimizer, self._scaler = optimizer, scaler
        self._found = getattr(optimizer, "found_inf", None)
        self.used = scaler is not None or self._found is not None
        self.scale = None  # what gradients are to be multiplied with
        self.found_inf = False
        self._flags = {}  # the scaler's own, by device

    def read(self):
        if self._scaler is not None:
            self._read_scaler()
        elif self._found is not None:
            scale = getattr(self._optimizer, "grad_scale", None)
            self.scale = None if scale is None else _factor_of(float(scale))
            self.found_inf = float(self._found) != 0
            if self._optimizer.scaler is not None:
                self._read_flags(self._optimizer.scaler)
            for group in self._optimizer._shard_groups:  # each saw its own shards
                flag = torch.tensor(float(self.found_inf), device=self._found.device)
                dist.all_reduce(flag, dist.ReduceOp.MAX, group=group)
                self.found_inf = float(flag) != 0

    def _read_scaler(self):
        scaler, number = self._scaler, id(self._optimizer)
        if scaler._per_optimizer_states[number]["stage"].name == "READY":
            scaler._check_inf_per_device(self._optimizer)
            self.scale = _factor_of(float(scaler._get_scale_async()))
        self._read_flags(scaler)
        self.found_inf = any(t.item() != 0 for t in self._flags.values())

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
