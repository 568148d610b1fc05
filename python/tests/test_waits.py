# How a lane waits for an operation of Gloo.
# SPDX-License-Identifier: Apache-2.0
import pytest

from pride import _world


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


def _lane():
    lane = _world.Lane.__new__(_world.Lane)
    lane.pg = lane.world = None
    return lane


def test_an_operation_that_ends_as_its_slice_times_out_has_not_failed():
    work = _Work()
    _lane()._wait(lambda: work, 1000)
    assert work.waits == 2


def test_an_operation_that_fails_as_its_slice_times_out_raises_its_own_error():
    with pytest.raises(RuntimeError, match="connection closed"):
        _lane()._wait(lambda: _Work(RuntimeError("connection closed by peer")), 1000)
