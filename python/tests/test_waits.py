# How a lane waits for an operation of Gloo.
# SPDX-License-Identifier: Apache-2.0
import os
import signal

import pytest

from pride import _lane


@pytest.fixture(autouse=True)
def as_gloo(monkeypatch):
    """What the fake below raises counts as Gloo's: torch raises from C, without a frame."""
    monkeypatch.setattr(_lane, "_OWN_CODE", (os.path.abspath(__file__), *_lane._OWN_CODE))


class _Work:
    """Its first wait times out; it has completed when asked afterwards."""

    def __init__(self, error=None, during=lambda: None):
        self.waits, self.error, self.during = 0, error, during

    def wait(self, timeout):
        self.waits += 1
        self.during()
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


_HANDLER = {}
exec(compile("def handler(*_): raise RuntimeError('spot')", "users_program.py", "exec"), _HANDLER)


def test_an_error_that_a_signal_handler_raises_is_not_taken_for_an_end_of_the_slice():
    before = signal.signal(signal.SIGALRM, _HANDLER["handler"])
    try:
        work = _Work(during=lambda: signal.raise_signal(signal.SIGALRM))
        with pytest.raises(RuntimeError, match="spot"):
            _lane.Lane._wait(_Lane(), lambda: work, 1000)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert work.waits == 1
