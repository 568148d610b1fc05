# The parameters that all ranks have in common, of methods whose ranks take local steps.
# SPDX-License-Identifier: Apache-2.0
import ctypes as c

import torch

from . import _library as library
from .errors import InvalidArgument


def local_steps(optimizer):
    """True if the ranks have parameters of their own between exchanges."""
    return library.lib.pride_optimizer_period(optimizer._handle) > 1


def _place(optimizer, call, flat):
    array = library.Array(data=flat.data_ptr(), n=flat.numel(), dtype=library.FLOAT32)
    optimizer._call(call, optimizer._handle, c.byref(array))


def set_parameters(optimizer, which):
    """The model's parameters become the "common" ones, or this rank's own, "local"."""
    optimizer._usable()
    if optimizer._running:
        raise InvalidArgument(f"pride: to_{which}() between backward and step() with overlap=True; "
                              "call it after step()")
    if not local_steps(optimizer):
        return
    with torch.no_grad():
        optimizer._flat.pull()
        _place(optimizer, f"pride_optimizer_to_{which}", optimizer._flat.params)
        optimizer._flat.push(optimizer._frozen)
    optimizer._holds_common = which == "common"


def check_local(optimizer):
    """Before a step: the gradients must be of this rank's own parameters."""
    if optimizer._holds_common:
        raise InvalidArgument("pride: a step while the model has the common parameters: call "
                              "to_local() before the next gradient")


def flat_common(optimizer):
    """The common parameters in a flat buffer; those of the model stay as they are."""
    flat = optimizer._flat.params
    if not local_steps(optimizer):
        return flat
    flat = flat.clone()
    _place(optimizer, "pride_optimizer_to_common", flat)
    return flat
