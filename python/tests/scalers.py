# Gradient scalers for tensors on the CPU: torch's own, with Python instead of two kernels that
# torch 1.13 has for CUDA alone.
# SPDX-License-Identifier: Apache-2.0
import contextlib
from unittest import mock

import torch

from models import NEW_TORCH


def check_and_unscale(grads, found_inf, inverse):
    """torch._amp_foreach_non_finite_check_and_unscale_"""
    for g in grads:
        if not torch.isfinite(g).all():
            found_inf.fill_(1.0)
        if inverse.item() != 1:
            g.mul_(inverse.to(g.dtype))


def update_scale(scale, tracker, found_inf, growth, backoff, interval):
    """torch._amp_update_scale_"""
    if found_inf.item():
        scale.mul_(backoff)
        tracker.zero_()
    elif tracker.item() + 1 == interval:
        scale.mul_(growth)
        tracker.zero_()
    else:
        tracker.add_(1)


class Replicator:
    """torch 1.13's refuses tensors on the CPU."""

    def __init__(self, master):
        self.master = master
        self._per_device_tensors = {}

    def get(self, device):
        return self._per_device_tensors.setdefault(device, self.master)


@contextlib.contextmanager
def cpu_kernels():
    if NEW_TORCH:
        yield
        return
    kernels = {"_amp_foreach_non_finite_check_and_unscale_": check_and_unscale,
               "_amp_update_scale_": update_scale}
    module = torch.cuda.amp.grad_scaler
    with mock.patch.multiple(torch, **kernels), mock.patch.object(
            module, "_MultiDeviceReplicator", Replicator):
        yield


if NEW_TORCH:
    class Scaler(torch.amp.GradScaler):
        def __init__(self, **options):
            super().__init__("cpu", **options)
else:
    class Scaler(torch.cuda.amp.GradScaler):
        """torch 1.13's, for tensors on the CPU."""

        def __init__(self, **options):
            with mock.patch.object(torch.cuda.amp.grad_scaler, "amp_definitely_not_available",
                                   lambda: False):
                super().__init__(**options)

        def scale(self, outputs):
            if self._scale is None:
                self._lazy_init_scale_growth_tracker(outputs.device)
            return outputs * self._scale


class AttributeScaler(Scaler):
    """step() as torch 2.x has it for optimizers without an argument grad_scaler."""

    def step(self, optimizer, *args, **kwargs):
        state = self._per_optimizer_states[id(optimizer)]
        if state["stage"].name == "READY":
            self._check_inf_per_device(optimizer)
        optimizer.grad_scale = None if state["stage"].name == "UNSCALED" else self._scale
        optimizer.found_inf = sum(state["found_inf_per_device"].values())
        result = optimizer.step(*args, **kwargs)
        state["stage"] = type(state["stage"]).STEPPED
        del optimizer.grad_scale
        del optimizer.found_inf
        return result


KINDS = {"own": Scaler, "attributes": AttributeScaler}
