# Holds a step of libpride before its first change, until the ranks have compared their rows.
# SPDX-License-Identifier: Apache-2.0
import threading

from . import _library as library


class Permission:
    """libpride calls `function` on its own thread."""

    def __init__(self):
        self._given, self._refusal = threading.Event(), None
        self._given.set()
        self.function = library.BEFORE_APPLY(self._wait)

    def ask(self, asks):
        """Whether the step that begins now waits for give()."""
        self.give()
        if asks:
            self._given.clear()

    def give(self, refusal=None):
        """With a refusal the step ends with its text."""
        self._refusal = refusal
        self._given.set()

    def _wait(self, _, why, size):
        self._given.wait()
        if self._refusal is None:
            return 0
        library.write_error(self._refusal, why, size)
        return 1
