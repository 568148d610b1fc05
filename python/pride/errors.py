# The exceptions of pride.
# SPDX-License-Identifier: Apache-2.0


class Error(RuntimeError):
    """Base class of pride's errors."""


class InvalidArgument(Error, ValueError):
    """An unusable argument or setting. Nothing was changed."""


class CommError(Error):
    """A peer disagrees, stalls or is gone. The optimizer cannot be used any more."""


class NonFiniteGradient(Error):
    """A gradient held NaN or Inf, on some rank. Raised on all ranks."""


class DataError(Error):
    """A saved state is damaged or of the wrong kind."""
