# Threads for calls that may hang in torch's store: waits for them can be interrupted.
# SPDX-License-Identifier: Apache-2.0
import atexit
import threading
import time
import weakref

_threads = weakref.WeakSet()
ending = threading.Event()  # the interpreter ends


def in_thread(body, *arguments):
    thread = threading.Thread(target=body, args=arguments, daemon=True)
    _threads.add(thread)
    thread.start()
    return thread


class Work:
    """A call in a thread of its own."""

    def __init__(self, call):
        self._done, self._value, self._error = threading.Event(), None, None

        def body():
            try:
                self._value = call()
            except BaseException as error:  # of the caller
                self._error = error
            self._done.set()

        in_thread(body)

    def done(self, seconds):
        return self._done.wait(seconds)

    def result(self):
        if self._error is not None:
            raise self._error
        return self._value


@atexit.register
def _end_threads():
    """Joins threads at exit: one that returns from torch's store while the interpreter ends aborts
    the process."""
    ending.set()
    until = time.monotonic() + 5.0
    for thread in list(_threads):
        thread.join(max(0.0, until - time.monotonic()))
