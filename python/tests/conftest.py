# Ranks of the tests: processes that live as long as the session, each with a default Gloo group.
# SPDX-License-Identifier: Apache-2.0
#
# @ranks(n) runs a test function on n processes, which are rank 0..n-1 of the default group of a
# world of n. Processes are forked from a server that has imported torch: they start in milliseconds.
import datetime
import multiprocessing
import tempfile
import time
import traceback

import pytest

WORLDS = (1, 2, 3, 4)
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch", "torch.distributed", "pride"])


def start_group(rank, world, file, timeout=120):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=world,
                            timeout=datetime.timedelta(seconds=timeout))


def _serve(rank, world, file, pipe):
    """Runs the functions that arrive until the pipe is closed."""
    import torch

    start_group(rank, world, file)
    while True:
        try:
            body, arguments = pipe.recv()
        except EOFError:
            return
        try:
            torch.manual_seed(0)
            pipe.send((True, body(*arguments)))
        except BaseException as error:  # pylint: disable=broad-except
            pipe.send((False, (type(error), str(error), traceback.format_exc())))


class World:
    """n processes of one default group."""

    def __init__(self, n):
        self.n = n
        file = tempfile.mktemp(prefix="pride-test-")
        self.pipes, self.processes = [], []
        for rank in range(n):
            ours, theirs = _context.Pipe()
            process = _context.Process(target=_serve, args=(rank, n, file, theirs), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def results(self, body, *arguments, timeout=100):
        """What body(*arguments) returned or raised on each rank: (True, value) or (False, ...)."""
        for pipe in self.pipes:
            pipe.send((body, arguments))
        until = time.monotonic() + timeout
        results = []
        for rank, pipe in enumerate(self.pipes):
            if not pipe.poll(max(0.0, until - time.monotonic())):
                self.close()
                raise AssertionError(f"rank {rank} of {self.n} gave no result in {timeout} s")
            results.append(pipe.recv())
        return results

    def run(self, body, *arguments, timeout=100):
        """The values of all ranks; the first error of any rank fails the test."""
        results = self.results(body, *arguments, timeout=timeout)
        for rank, (good, value) in enumerate(results):
            if not good:
                raise AssertionError(f"rank {rank} of {self.n}:\n{value[2]}")
        return [value for _, value in results]

    def errors(self, body, *arguments, timeout=100):
        """(type, text) of the error of each rank; None where there was none."""
        return [None if good else value[:2]
                for good, value in self.results(body, *arguments, timeout=timeout)]

    def close(self):
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.join(5)
            if process.is_alive():
                process.kill()


_worlds = {}


def _world(n):
    alive = n in _worlds and all(p.is_alive() for p in _worlds[n].processes)
    if not alive:
        _worlds[n] = World(n)
    return _worlds[n]


@pytest.fixture
def world():
    """world(n): n processes, kept for the next tests."""
    return _world


@pytest.fixture
def fresh_world():
    """fresh_world(n): n processes of this test alone, for tests in which some die."""
    made = []

    def make(n):
        made.append(World(n))
        return made[-1]

    yield make
    for each in made:
        each.close()


def pytest_sessionfinish():
    for each in _worlds.values():
        each.close()
