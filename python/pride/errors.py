# The exceptions of pride.
# SPDX-License-Identifier: Apache-2.0
import functools
import numbers

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


def whole(name, value, least, most):
    """The value as an int. ctypes would keep the low bits of a number that does not fit."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or not (
            least <= value <= most):
        raise InvalidArgument(f"pride: {name} = {value!r}, must be a whole number from {least} to "
                              f"{most}")
    return int(value)


def without_frames(method):
    """For what users call: a traceback of an error that explains itself ends where they called."""
    @functools.wraps(method)
    def call(*arguments, **keywords):
        try:
            return method(*arguments, **keywords)
        except Error as error:
            raise error.with_traceback(None)

    return call


def check_one_of(name, value, values):
    if value not in values:
        raise InvalidArgument(f"pride: {name} = {value!r}, must be one of {', '.join(values)}")
