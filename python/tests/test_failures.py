# Failures: each ends with an error on every living rank, which names rank and reason, in time.
# SPDX-License-Identifier: Apache-2.0
#
# Jobs are processes of their own, because ranks die in them, over a TCPStore that rank 0 holds, as
# with torch's env:// method.
import contextlib
import datetime
import gc
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time

import pytest
import torch
import torch.distributed as dist

import models
import pride
from conftest import _context

SOON = 4.0  # seconds for an error that needs no time-out, on a busy machine


def free_port():
    with contextlib.closing(socket.socket()) as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def _rank(rank, world, port, pipe, body, arguments):
    # a shell's background job ignores Ctrl-C, and so would its children
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank,
                            world_size=world, timeout=datetime.timedelta(seconds=60))
    pipe.send("ready")
    pipe.recv()  # all have a group
    began = time.monotonic()
    try:
        value = body(*arguments)
        result = (None, value)
    except BaseException as error:  # pylint: disable=broad-except
        result = (f"{type(error).__name__}: {error}", None)
    pipe.send((*result, time.monotonic() - began))
    pipe.recv()  # the holder of the store stays until all have ended


class Job:
    """Processes of one default group, each with a body to run."""

    def __init__(self, n, body, *arguments):
        port = free_port()
        self.pipes, self.processes = [], []
        for rank in range(n):
            ours, theirs = _context.Pipe()
            process = _context.Process(target=_rank, daemon=True,
                                       args=(rank, n, port, theirs, body, arguments))
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)
        for pipe in self.pipes:
            assert pipe.poll(60) and pipe.recv() == "ready"
        for pipe in self.pipes:
            pipe.send("go")

    def result(self, rank, timeout=30):
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
        """All end by themselves, soon."""
        for pipe, process in zip(self.pipes, self.processes):
            with contextlib.suppress(OSError):
                pipe.send("end")
        until = time.monotonic() + 5
        hanging = []
        for rank, process in enumerate(self.processes):
            process.join(max(0, until - time.monotonic()))
            if process.is_alive():
                hanging.append(rank)
        self.kill()
        assert not hanging, f"ranks {hanging} do not exit"

    def kill(self):
        for process in self.processes:
            if process.is_alive():
                process.kill()


@pytest.fixture
def job():
    made = []

    def start(n, body, *arguments):
        made.append(Job(n, body, *arguments))
        return made[-1]

    yield start
    for each in made:
        each.kill()


def make(**kwargs):
    model = models.mlp()
    return model, pride.Optimizer(model.named_parameters(), 1e-2, **{
        "method": "dlion-vote", "bucket_size": 64, "timeout": 30, **kwargs})


# --- A rank dies or stalls. ---------------------------------------------------------------------------

ACTS = {
    "exit": lambda: os._exit(3),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "sleep": lambda: time.sleep(100),
    "interrupt": lambda: signal.raise_signal(signal.SIGINT),
}


def victim(when, act, rank, overlap, timeout):
    """Trains until the rank does that: before construction, between steps or in backward."""
    mine = dist.get_rank() == rank
    if mine and when == "before":
        ACTS[act]()
    model, optimizer = make(overlap=overlap, timeout=timeout)
    for step in range(10):
        if mine and step == 4 and when == "between":
            ACTS[act]()
        optimizer.zero_grad()
        if mine and step == 4 and when == "backward":
            model[0].register_full_backward_hook(lambda *_: ACTS[act]())
        models.backward(model, dist.get_rank(), step)
        optimizer.step()
    return "all steps were made"


@pytest.mark.parametrize("when, act, overlap", [
    ("between", "kill", False), ("backward", "kill", True), ("backward", "exit", False)])
def test_a_rank_that_dies_is_named_at_once(job, when, act, overlap):
    job = job(3, victim, when, act, 1, overlap, 30.0)
    for rank in (0, 2):
        text, _, seconds = job.result(rank)
        assert text.startswith("CommError") and "rank(s) 1 gave no sign of life" in text, text
        assert seconds < SOON
    assert job.result(1) is None
    job.close()


@pytest.mark.parametrize("when, act, overlap", [
    ("between", "stop", False), ("backward", "sleep", True), ("before", "sleep", False)])
def test_a_rank_that_stalls_is_named_after_the_timeout(job, when, act, overlap):
    job = job(3, victim, when, act, 1, overlap, 1.0)
    for rank in (0, 2):
        text, _, seconds = job.result(rank)
        assert text.startswith("CommError") and "within 1 s" in text, text
        assert re.search(r"rank\(s\) 1 (gave no sign of life|did not)", text), text
        assert 0.9 < seconds < 1 + SOON
    job.kill()


def test_a_rank_that_dies_before_construction_is_named(job):
    job = job(2, victim, "before", "kill", 1, False, 1.5)
    text, _, seconds = job.result(0)
    assert "rank(s) 1 did not within 1.5 s" in text and text.count("pride:") == 1, text
    assert seconds < 1.5 + SOON
    job.close()


@pytest.mark.parametrize("act", ["kill", "stop"])
@pytest.mark.parametrize("when", ["before", "between"])
def test_the_holder_of_the_store_may_fail(job, when, act):
    """Rank 0 holds it here: nobody can look into it any more."""
    job = job(3, victim, when, act, 0, False, 1.0)
    for rank in (1, 2):
        text, _, seconds = job.result(rank)
        assert text.startswith("CommError"), text
        assert "store" in text or "rank(s) 0" in text, text
        assert seconds < 1 + 2 * SOON
    job.kill()


def raising(timeout):
    rank = dist.get_rank()
    model, optimizer = make(timeout=timeout)
    for step in range(6):
        if rank == 2 and step == 4:
            del optimizer
            raise KeyError("no such file")
        models.train(model, optimizer, 1, rank, first=step)


def test_a_rank_whose_own_code_raises_is_named(job):
    job = job(3, raising, 1.0)
    for rank in (0, 1):
        text, _, seconds = job.result(rank)
        assert text.startswith("CommError") and "rank(s) 2 gave no sign of life" in text, text
        assert seconds < 1 + SOON
    assert "no such file" in job.result(2)[0]
    job.close()


# --- Ctrl-C. ------------------------------------------------------------------------------------------


def waiting(where, overlap):
    """Rank 1 stays away for a minute; the others wait for it."""
    rank = dist.get_rank()
    model = models.mlp()
    if rank == 1 and where == "construct":
        time.sleep(60)
    if rank == 1 and where == "connect":
        pride._world.dist.ProcessGroupGloo = lambda *_, **__: time.sleep(60)
    _, optimizer = make(overlap=overlap)
    model, optimizer = make(overlap=overlap)
    models.train(model, optimizer, 3, rank)
    if rank == 1:
        time.sleep(60)
    optimizer.zero_grad()
    models.backward(model, rank, 3)
    optimizer.step()


@pytest.mark.parametrize("where, overlap", [("step", False), ("step", True), ("construct", False),
                                            ("connect", False)])
def test_ctrl_c_acts_within_a_second_and_the_others_end(job, where, overlap):
    job = job(3, waiting, where, overlap)
    time.sleep(0.8)
    began = time.monotonic()
    job.signal(0, signal.SIGINT)
    text, _, _ = job.result(0)
    assert text.startswith("KeyboardInterrupt"), text
    assert time.monotonic() - began < 1.5
    text, _, _ = job.result(2)
    assert text.startswith("CommError") and "rank 0" in text, text
    assert "KeyboardInterrupt" in text or "interrupt" in text, text
    assert time.monotonic() - began < SOON
    job.signal(1, signal.SIGKILL)
    job.close()


# --- Ranks that differ. -------------------------------------------------------------------------------


def differing(kind):
    """Rank 1 does one thing otherwise."""
    other = dist.get_rank() == 1
    shapes = {"first": (3, 4), "second": (5,)}
    dtype, device, kwargs = torch.float32, None, {}
    if kind == "shapes" and other:
        shapes["second"] = (6,)
    if kind == "number" and other:
        del shapes["second"]
    if kind == "names" and other:
        shapes = {"first": (3, 4), "zweiter": (5,)}
    if kind == "order" and other:
        shapes = dict(reversed(shapes.items()))
    if kind == "dtype" and other:
        dtype = torch.bfloat16
    params = [(name, torch.nn.Parameter(torch.ones(shape, dtype=dtype, device=device)))
              for name, shape in shapes.items()]
    if kind == "values" and other:
        params[1][1].data[3] += 1e-7 * 2
    if kind == "groups":
        params = [{"params": params[:1]}, {"params": params[1:]}] if other else params
    if kind == "complex" and other:
        params[0] = ("first", torch.nn.Parameter(torch.ones(3, 4, dtype=torch.complex64)))
    options = {"lr": ("lr", 0.5), "method": ("method", "lion"), "seed": ("seed", 3),
               "bucket": ("bucket_size", 128), "overlap": ("overlap", True),
               "options": ("options", {"tie": "zero"}), "skip": ("on_non_finite", "skip"),
               "negative": ("lr", -1.0)}
    kwargs = {"method": "dlion-vote", "lr": 1e-2, "timeout": 10}
    if kind in options and other:
        kwargs.update([options[kind]])
    optimizer = pride.Optimizer(params, **kwargs)
    for step in range(3):
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad = torch.full_like(p, 1.0 + dist.get_rank() + step)
        optimizer.step()
    optimizer.close()
    return "all steps were made"


DIFFERENCES = {
    "shapes": "rank.* 1", "number": "rank.* 1", "names": "rank.* 1", "order": "rank.* 1",
    "dtype": None, "values": r"rank\(s\) 1 .*'second'", "groups": "rank.* 1",
    "complex": "first is complex", "lr": "rank.* 1", "method": "rank.* 1", "seed": "rank.* 1",
    "bucket": "rank.* 1", "overlap": "rank.* 1", "options": "rank.* 1", "skip": "rank.* 1",
    "negative": r"rank\(s\) 1|-1",
}


@pytest.mark.parametrize("kind", DIFFERENCES)
def test_ranks_that_differ_are_refused_by_all(world, kind):
    if DIFFERENCES[kind] is None:
        # masters are float32 and equal: nothing is wrong
        assert world(3).run(differing, kind) == ["all steps were made"] * 3
        return
    began = time.monotonic()
    for rank, error in enumerate(world(3).errors(differing, kind)):
        assert error, f"rank {rank} noticed nothing"
        assert issubclass(error[0], pride.Error), error
        assert re.search(DIFFERENCES[kind], error[1]), f"rank {rank}: {error[1]}"
    assert time.monotonic() - began < SOON


def number_of_optimizers(timeout):
    rank = dist.get_rank()
    model, optimizer = make(timeout=timeout)
    if rank == 0:
        make(timeout=timeout)
    models.train(model, optimizer, 3, rank)


def test_another_number_of_optimizers_is_named(job):
    job = job(2, number_of_optimizers, 1.0)
    text = job.result(0)[0]
    assert "rank 0 of 2 made an optimizer; rank(s) 1 did not within 1 s" in text, text
    text = job.result(1)[0]
    assert text.startswith("CommError") and "rank(s) 0 gave no sign of life" in text, text
    job.close()


def operations(first, second):
    rank = dist.get_rank()
    model, optimizer = make(timeout=10)
    models.train(model, optimizer, 1, rank)
    late = torch.nn.Parameter(torch.ones(3))
    calls = {"step": optimizer.step, "check_replicas": optimizer.check_replicas,
             "load_state_dict": lambda: optimizer.load_state_dict(optimizer.state_dict()),
             "add_param_group": lambda: optimizer.add_param_group({"params": [("late", late)]}),
             "consolidate_state_dict": optimizer.consolidate_state_dict,
             "broadcast_parameters": optimizer.broadcast_parameters}
    with pytest.raises(pride.InvalidArgument) as caught:
        calls[first if rank == 0 else second]()
    assert f"rank 0: {first}(), rank 1: {second}()" in str(caught.value), caught.value
    assert len(optimizer.param_groups) == 1
    models.train(model, optimizer, 2, rank, first=1)  # nothing is lost
    optimizer.check_replicas()
    optimizer.close()


@pytest.mark.parametrize("first, second", [
    ("step", "load_state_dict"), ("step", "add_param_group"), ("check_replicas", "step"),
    ("consolidate_state_dict", "broadcast_parameters")])
def test_other_operations_are_refused_and_the_run_goes_on(world, first, second):
    world(2).run(operations, first, second)


# --- Groups. ------------------------------------------------------------------------------------------


def subgroup():
    rank = dist.get_rank()
    group = dist.new_group([0, 2])
    if rank == 1:
        with pytest.raises((pride.InvalidArgument, ValueError)) as caught:
            make(process_group=group)
        return str(caught.value)
    model, optimizer = make(process_group=group)
    assert optimizer._world.size == 2
    models.train(model, optimizer, 3, rank)
    optimizer.check_replicas()
    optimizer.close()
    return models.bits(model.parameters())


def test_an_optimizer_of_a_group_works_and_others_are_told(world):
    first, text, third = world(3).run(subgroup)
    assert first == third and "not a member" in text and "rank 1" in text


def too_early(pipe, world_size):
    os.environ["WORLD_SIZE"] = str(world_size)
    try:
        model, optimizer = make()
        models.train(model, optimizer, 1, 0)
        dist.init_process_group("gloo", init_method=f"file://{tempfile.mktemp()}",
                                rank=int(os.environ["RANK"]), world_size=2)
        model.zero_grad()
        optimizer.step()
    except Exception as error:  # pylint: disable=broad-except
        pipe.send(f"{type(error).__name__}: {error}")
    pipe.send("all steps were made")


def test_an_optimizer_made_before_the_group_is_refused(tmp_path):
    ours, theirs = _context.Pipe()
    process = _context.Process(target=too_early, args=(theirs, 2), daemon=True)
    process.start()
    assert ours.poll(20)
    text = ours.recv()
    assert text.startswith("InvalidArgument") and "WORLD_SIZE is 2" in text, text
    assert "init_process_group" in text
    process.join(5)


def alone_then_group(rank, file, pipe):
    try:
        model, optimizer = make()
        models.train(model, optimizer, 1, 0)
        dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
        optimizer.step()
    except Exception as error:  # pylint: disable=broad-except
        pipe.send(f"{type(error).__name__}: {error}")
        return
    pipe.send("all steps were made")


def test_an_optimizer_made_alone_is_refused_once_there_is_a_group(tmp_path):
    pipes = []
    for rank in range(2):
        ours, theirs = _context.Pipe()
        _context.Process(target=alone_then_group, args=(rank, tmp_path / "store", theirs),
                         daemon=True).start()
        pipes.append(ours)
    for pipe in pipes:
        assert pipe.poll(20)
        assert "made before init_process_group() and works alone" in pipe.recv()


def group_again(file):
    rank, size = dist.get_rank(), dist.get_world_size()
    for i in range(2):
        model, optimizer = make(overlap=True)
        models.train(model, optimizer, 3, rank)
        optimizer.close()
        dist.destroy_process_group()
        dist.init_process_group("gloo", init_method=f"file://{file}.{i}", rank=rank,
                                world_size=size)
    model, optimizer = make()
    models.train(model, optimizer, 3, rank)
    dist.destroy_process_group()
    optimizer.zero_grad()
    models.backward(model, rank, 4)
    optimizer.step()  # its own groups live on
    return models.bits(model.parameters())


def test_the_process_group_may_be_made_anew(job, tmp_path):
    job = job(2, group_again, str(tmp_path / "store"))
    results = [job.result(r) for r in range(2)]
    assert [r[0] for r in results] == [None, None]
    assert results[0][1] == results[1][1]
    job.close()


# --- Fork. --------------------------------------------------------------------------------------------


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        return torch.full((2,), float(i))


def in_child(optimizer, model, pipe):
    texts = []
    for call in (optimizer.step, optimizer.check_replicas, optimizer.consolidate_state_dict,
                 lambda: optimizer.load_state_dict({})):
        try:
            call()
        except pride.Error as error:
            texts.append(str(error))
    optimizer.zero_grad()
    optimizer.close()
    pipe.send(texts)


def forking(overlap):
    rank = dist.get_rank()
    model, optimizer = make(overlap=overlap)
    models.train(model, optimizer, 3, rank)
    loader = torch.utils.data.DataLoader(Numbers(), num_workers=2,
                                         multiprocessing_context="fork", batch_size=4)
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()
    multiprocessing.process.current_process()._config["daemon"] = False  # may have children
    optimizer.zero_grad()
    models.backward(model, rank, 3)  # with overlap: forked in the middle of a step
    child = fork.Process(target=in_child, args=(optimizer, model, theirs))
    child.start()
    assert ours.poll(20), "the child hangs"
    texts = ours.recv()
    child.join(5)
    assert child.exitcode == 0
    optimizer.step()
    for step in range(4, 6):
        assert len(list(loader)) == 2
        models.train(model, optimizer, 1, rank, first=step)
    pid = os.fork()
    if pid == 0:  # an ordinary end of the interpreter's work, hooks of atexit too
        import atexit

        atexit._run_exitfuncs()
        gc.collect()
        del optimizer
        gc.collect()
        os._exit(0)
    until = time.monotonic() + 5
    done = (0, 0)
    while done[0] == 0 and time.monotonic() < until:
        done = os.waitpid(pid, os.WNOHANG)
        time.sleep(0.02)
    assert done == (pid, 0), "the forked interpreter does not end"
    models.train(model, optimizer, 1, rank, first=6)
    optimizer.check_replicas()
    optimizer.close()
    return texts


@pytest.mark.parametrize("overlap", [False, True])
def test_a_forked_child_is_refused_and_the_parent_goes_on(job, overlap):
    job = job(2, forking, overlap)
    for rank in range(2):
        error, texts, _ = job.result(rank)
        assert error is None, error
        assert len(texts) == 4
        assert all("forked" in t and "make it after the fork" in t for t in texts), texts
    job.close()


# --- Ends of processes, and of optimizers. ------------------------------------------------------------

ENDS = """
    import os, sys, torch, torch.distributed as dist, datetime
    import models, pride
    kind, rank = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:" + sys.argv[3], rank=rank,
                            world_size=2)
    model = models.mlp()
    optimizer = pride.DistributedLion(model.parameters(), overlap=True, timeout=30,
                                      bucket_size=64)
    models.train(model, optimizer, 3, rank)
    if kind == "backward":
        models.backward(model, rank, 3)
    if kind == "raise":
        raise LookupError("of the user")
    print("reached the end")
"""


def run_ends(kind, seconds):
    """(exit code, output) of two real interpreters, from their first line to their end."""
    port = str(free_port())
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(
        [os.path.dirname(os.path.abspath(__file__)), os.path.dirname(pride.__path__[0])])}
    processes = [subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(ENDS), kind, str(rank), port], text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment) for rank in range(2)]
    results = []
    until = time.monotonic() + seconds
    try:
        for process in processes:
            output = process.communicate(timeout=max(0.1, until - time.monotonic()))[0]
            results.append((process.returncode, output))
    finally:
        for process in processes:
            process.kill()
    return results


def test_a_process_that_ends_in_the_middle_of_a_step_exits_clean():
    for code, output in run_ends("backward", 20):
        assert code == 0 and output == "reached the end\n", output


def test_a_process_with_an_unhandled_exception_exits_with_it():
    for code, output in run_ends("raise", 20):
        assert code == 1 and "LookupError: of the user" in output, output
        assert "terminate called" not in output and "Aborted" not in output


def threads_and_files():
    with open("/proc/self/status") as status:
        threads = [int(line.split()[1]) for line in status if line.startswith("Threads:")][0]
    return threads, len(os.listdir("/proc/self/fd"))


def dropping(how):
    rank = dist.get_rank()
    counts = []
    for i in range(12):
        model, optimizer = make(overlap=i % 2 == 1)
        models.train(model, optimizer, 3, rank)
        if how == "close":
            optimizer.close()
        del model, optimizer
        if i in (1, 11):
            dist.barrier()
            time.sleep(0.3)
            counts.append(threads_and_files())
    return counts


@pytest.mark.parametrize("how", ["close", "drop"])
def test_optimizers_give_threads_and_sockets_back(world, how):
    for (threads, files), (threads_after, files_after) in world(2).run(dropping, how):
        assert threads_after <= threads + 1, f"{threads} threads became {threads_after}"
        assert files_after <= files + 1, f"{files} files became {files_after}"
