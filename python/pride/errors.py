# The exceptions of pride.
# SPDX-License-Identifier: Apache-2.0
import torch


class Error(RuntimeError):
    """Base class of pride's errors."""


class InvalidArgument(Error, ValueError):
    """An unusable argument or setting. Nothing was changed."""


class CommError(Error):
    """A peer disagrees, stalls or is gone. The optimizer cannot be used any more."""


class NonFiniteGradient(Error):
    """A gradient on some rank held NaN or Inf. Raised on all ranks."""


class OutOfMemory(Error, getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)):
    """The GPU has no memory left, also after torch has freed its cache."""


class DataError(Error):
    """A saved state is damaged or of the wrong kind."""


def check_one_of(name, value, values):
    if value not in values:
        raise InvalidArgument(f"pride: {name} = {value!r}, must be one of {', '.join(values)}")
