# Processes of the tests: ranks of one default group, each with a pipe to the test.
# SPDX-License-Identifier: Apache-2.0
#
# Processes are forked from a server that has imported torch: they start in milliseconds.
import contextlib
import datetime
import gc
import multiprocessing
import os
import signal
import socket
import tempfile
import time
import traceback

import torch
import torch.distributed as dist

import pride

SOON = 4.0  # seconds for an error that needs no time-out, on a busy machine
PATIENCE = 300  # seconds for what ends unless it hangs, however busy the machine is
context = multiprocessing.get_context("forkserver")
# torch 2.x imports torch._dynamo, which takes seconds, where the first optimizer is made
context.set_forkserver_preload(["torch", "torch.distributed", "torch._dynamo", "pride"])


def environment(**more):
    """For a program of its own that imports the package and the modules of the tests."""
    here = os.path.dirname(os.path.abspath(__file__))
    package = os.path.dirname(os.path.abspath(pride.__path__[0]))
    path = filter(None, [here, package, os.environ.get("PYTHONPATH")])
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path), **more}


def free_port():
    with contextlib.closing(socket.socket()) as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start_group(rank, world, address, seconds=120):
    gc.freeze()  # optimizers look for their model among all objects: not among those of imports
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world,
                            timeout=datetime.timedelta(seconds=seconds))


class Processes:
    """n processes that run target(rank, n, pipe, *arguments)."""

    def __init__(self, n, target, *arguments):
        self.n = n
        self.pipes, self.processes = [], []
        for rank in range(n):
            ours, theirs = context.Pipe()
            process = context.Process(target=target, args=(rank, n, theirs, *arguments),
                                      daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def send(self, message):
        for pipe in self.pipes:
            pipe.send(message)

    def kill(self):
        for process in self.processes:
            if process.is_alive():
                process.kill()


def _serve(rank, world, pipe, file):
    """Runs the functions that arrive until the pipe is closed."""
    start_group(rank, world, f"file://{file}")
    while True:
        try:
            body, arguments, keywords = pipe.recv()
        except EOFError:
            return
        try:
            torch.manual_seed(0)
            pipe.send((True, body(*arguments, **keywords)))
        except BaseException as error:  # pylint: disable=broad-except
            pipe.send((False, (type(error), str(error), traceback.format_exc())))


class World(Processes):
    """Ranks that run one function after the other."""

    def __init__(self, n):
        super().__init__(n, _serve, tempfile.mktemp(prefix="pride-test-"))

    def results(self, body, *arguments, **keywords):
        """What the body returned or raised on each rank: (True, value) or (False, ...)."""
        self.send((body, arguments, keywords))
        until = time.monotonic() + PATIENCE
        results = []
        for rank, pipe in enumerate(self.pipes):
            if not pipe.poll(max(0.0, until - time.monotonic())):
                self.close()
                raise AssertionError(f"rank {rank} of {self.n} gave no result in {PATIENCE} s")
            results.append(pipe.recv())
        return results

    def run(self, body, *arguments, **keywords):
        """The values of all ranks; the first error of any rank fails the test."""
        results = self.results(body, *arguments, **keywords)
        for rank, (good, value) in enumerate(results):
            if not good:
                raise AssertionError(f"rank {rank} of {self.n}:\n{value[2]}")
        return [value for _, value in results]

    def errors(self, body, *arguments, **keywords):
        """(type, text) of the error of each rank; None where there was none."""
        return [None if good else value[:2]
                for good, value in self.results(body, *arguments, **keywords)]

    def close(self):
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.join(5)
        self.kill()


def _work(rank, world, pipe, port, body, arguments):
    # a shell's background job ignores Ctrl-C, and so would its children
    signal.signal(signal.SIGINT, signal.default_int_handler)
    start_group(rank, world, f"tcp://127.0.0.1:{port}", 60)
    pipe.send("ready")
    pipe.recv()  # all have a group
    began = time.monotonic()
    try:
        result = None, body(*arguments)
    except BaseException as error:  # pylint: disable=broad-except
        result = f"{type(error).__name__}: {error}", None
    pipe.send((*result, time.monotonic() - began))
    pipe.recv()  # the holder of the store stays until all have ended


class Job(Processes):
    """Ranks that run one function and end, or die in it: over a TCPStore that rank 0 holds, as with
    torch's env:// method."""

    def __init__(self, n, body, *arguments):
        super().__init__(n, _work, free_port(), body, arguments)
        for pipe in self.pipes:
            assert pipe.poll(PATIENCE) and pipe.recv() == "ready"
        self.send("go")

    def result(self, rank, timeout=PATIENCE):
        """(text of the error or None, value, seconds) of a rank; None if it died."""
        if not self.pipes[rank].poll(timeout):
            raise AssertionError(f"rank {rank} hangs for {timeout} s")
        try:
            return self.pipes[rank].recv()
        except EOFError:
            return None

    def signal(self, rank, number):
        os.kill(self.processes[rank].pid, number)

    def close(self):
        """All end by themselves. At its end a process may wait 5 s for a thread of pride's."""
        for pipe in self.pipes:
            with contextlib.suppress(OSError):
                pipe.send("end")
        until = time.monotonic() + 40
        hanging = []
        for rank, process in enumerate(self.processes):
            process.join(max(0, until - time.monotonic()))
            if process.is_alive():
                hanging.append(rank)
        self.kill()
        assert not hanging, f"ranks {hanging} do not exit"
