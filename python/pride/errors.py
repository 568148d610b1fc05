# The exceptions of pride, and the checks of arguments that raise them.
# SPDX-License-Identifier: Apache-2.0
import datetime
import functools
import math
import numbers
import os

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


def number(name, value, least=-math.inf, below=math.inf):
    """The value as a finite float, from Python, numpy or a tensor of one value."""
    try:
        made = math.nan if isinstance(value, (str, bytes)) or _is_flag(value) else float(value)
    except Exception:  # pylint: disable=broad-except
        made = math.nan
    if not (least <= made < below and math.isfinite(made)):
        raise InvalidArgument(f"pride: {name} = {value!r}, must be a finite number" + (
            "" if least == -math.inf else f", {least:g} or more") + (
            "" if below == math.inf else f", and less than {below:g}"))
    return made


def _is_flag(value):
    return isinstance(value, bool) or str(getattr(value, "dtype", "")) in ("bool", "torch.bool")


def flag(name, value):
    """The value as a bool: a text such as "no" would be true."""
    if not _is_flag(value) and not (isinstance(value, numbers.Integral) and value in (0, 1)):
        raise InvalidArgument(f"pride: {name} = {value!r}, must be True or False")
    return bool(value)


def text(name, value, path=False):
    """A text that is not empty, or a path, as bytes."""
    if not isinstance(value, (str, os.PathLike) if path else str) or not str(value):
        raise InvalidArgument(f"pride: {name} = {value!r}, must be a {'path' if path else 'text'}")
    return c_text(name, os.fsencode(value))


def c_text(name, value):
    """These bytes, of a text for libpride, which would read no further than a zero."""
    if b"\0" in value:
        raise InvalidArgument(f"pride: {name} = {os.fsdecode(value)!r}, must have no zero byte")
    return value


def of_type(name, value, kind):
    """Raises InvalidArgument unless the value is one of the kind, a class."""
    if not isinstance(value, kind):
        raise InvalidArgument(f"pride: {name} is a {type(value).__name__}, must be a {kind.__name__}")


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


def duration(timeout):
    """A time-out in seconds, or as a timedelta, as a timedelta; None stays None."""
    if timeout is None:
        return None
    seconds = timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else timeout
    if isinstance(seconds, bool) or not isinstance(seconds, numbers.Real) or not (
            0 < seconds <= 1e9):
        raise InvalidArgument(f"pride: timeout = {timeout!r}, must be above 0 and at most 1e9 "
                              "seconds (30 years): a number or a datetime.timedelta")
    return datetime.timedelta(seconds=float(seconds))
