"""pride: data-parallel training in PyTorch with about one bit per parameter on the wire.

    optimizer = pride.DistributedLion(model.parameters(), lr=1e-4)

replaces an optimizer of torch, under ``torchrun`` and without DDP's averaging.
"""
# SPDX-License-Identifier: Apache-2.0
import importlib

from ._comm_hooks import ddp_hook, fsdp_hook
from ._device import device_report
from ._library import lib as _lib
from ._plan import DeviceRates, PlanRow, plan
from ._world import mpi
from .errors import CommError, DataError, Error, InvalidArgument, NonFiniteGradient, OutOfMemory
from .gradients import clip_grad_norm_, join, local_gradients, mean_over_ranks
from ._muon_groups import muon_groups
from ._take_over import take_over
from .lion import DistributedLion, Lion, LionCub
from .methods import MethodInfo, beta_of_half_life, method_info, methods, step_bytes
from .optimizer import Optimizer
from .run_worker import RunWorker
from .virtual_workers import VirtualWorkers

__version__ = _lib.pride_version().decode()
__all__ = [
    "CommError", "DataError", "DeviceRates", "DistributedLion", "Error", "InvalidArgument", "Lion",
    "LionCub", "MethodInfo", "NonFiniteGradient", "Optimizer", "OutOfMemory", "PlanRow", "RunWorker",
    "VirtualWorkers", "beta_of_half_life", "clip_grad_norm_", "ddp_hook", "device_report",
    "fsdp_hook", "join", "local_gradients", "mean_over_ranks", "method_info", "methods", "mpi",
    "muon_groups", "plan", "step_bytes", "take_over",
]
_LATER = ("accelerate", "checkpoint", "lightning", "transformers")  # imported when first used


def __getattr__(name):
    if name in _LATER:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module 'pride' has no attribute '{name}'")
