# How a lane waits for an operation of Gloo.
# SPDX-License-Identifier: Apache-2.0
import pytest

from pride import _lane


class _Work:
    """Its first wait times out; it has completed when asked afterwards."""

    def __init__(self, error=None):
        self.waits, self.error = 0, error

    def wait(self, timeout):
        self.waits += 1
        if self.waits == 1:
            raise RuntimeError("Operation timed out!")
        if self.error:
            raise self.error
        return True

    def is_completed(self):
        return True


class _World:
    """Nothing has failed."""

    def learn(self):
        pass

    check = watch = learn


class _Lane:
    pg, world = None, _World()


def test_an_operation_that_ends_as_its_slice_times_out_has_not_failed():
    work = _Work()
    _lane.Lane._wait(_Lane(), lambda: work, 1000)
    assert work.waits == 2


def test_an_operation_that_fails_as_its_slice_times_out_raises_its_own_error():
    work = _Work(RuntimeError("connection closed by peer"))
    with pytest.raises(RuntimeError, match="connection closed"):
        _lane.Lane._wait(_Lane(), lambda: work, 1000)
