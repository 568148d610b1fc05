# Processes, their groups and their forks: what an optimizer needs, and what it leaves behind.
# SPDX-License-Identifier: Apache-2.0
import gc
import multiprocessing
import os
import re
import time

import pytest
import torch
import torch.distributed as dist

import models
import pride
from models import ended, make
from processes import Processes, start_group
from programs import Programs

# --- Groups. ------------------------------------------------------------------------------------------


def subgroup():
    rank = dist.get_rank()
    group = dist.new_group([0, 2])
    if rank == 1:
        with pytest.raises((pride.InvalidArgument, ValueError)) as caught:
            make(process_group=group)
        return str(caught.value)
    model, optimizer = make(process_group=group)
    assert optimizer._ranks.world.size == 2
    models.train(model, optimizer, 3)
    return ended(model, optimizer)


def test_an_optimizer_of_a_group_works_and_others_are_told(world):
    first, text, third = world(3).run(subgroup)
    assert first == third and "not a member" in text and "rank 1" in text


def too_early(rank, n, pipe, file, announced, **more):
    """An optimizer, then the group; with the environment of torchrun if that is announced."""
    if announced:
        os.environ["WORLD_SIZE"] = str(n)
    try:
        model, optimizer = make(**more)
        if not more:
            models.train(model, optimizer, 1)
        start_group(rank, n, f"file://{file}")
        optimizer.step()
        pipe.send("all steps were made")
    except Exception as error:  # pylint: disable=broad-except
        pipe.send(f"{type(error).__name__}: {error}")


@pytest.mark.parametrize("announced, text", [
    (True, "^InvalidArgument: .*WORLD_SIZE is 2.*init_process_group"),
    (False, r"made before init_process_group\(\) and works alone")])
def test_an_optimizer_made_before_the_group_is_refused(tmp_path, announced, text):
    for pipe in Processes(2, too_early, tmp_path / "store", announced).pipes:
        assert pipe.poll(20)
        assert re.search(text, pipe.recv())


def played_too_early(rank, n, pipe, file):
    too_early(rank, n, pipe, file, False, workers=1)


def test_virtual_workers_made_before_the_group_are_refused(tmp_path):
    for pipe in Processes(2, played_too_early, tmp_path / "store").pipes:
        assert pipe.poll(20)
        assert re.search(r"made before init_process_group\(\) and works alone", pipe.recv())


def group_again(file):
    rank, size = dist.get_rank(), dist.get_world_size()
    for i in range(2):
        model, optimizer = make(overlap=True)
        models.train(model, optimizer, 3)
        optimizer.close()
        dist.destroy_process_group()
        start_group(rank, size, f"file://{file}.{i}")
    model, optimizer = make()
    models.train(model, optimizer, 3)
    dist.destroy_process_group()
    optimizer.zero_grad()
    models.backward(model, 4, rank)
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
    model, optimizer = make(overlap=overlap)
    models.train(model, optimizer, 3)
    loader = torch.utils.data.DataLoader(Numbers(), num_workers=2,
                                         multiprocessing_context="fork", batch_size=4)
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()
    multiprocessing.process.current_process()._config["daemon"] = False  # may have children
    optimizer.zero_grad()
    models.backward(model, 3)  # with overlap: forked in the middle of a step
    child = fork.Process(target=in_child, args=(optimizer, model, theirs))
    child.start()
    assert ours.poll(20), "the child hangs"
    texts = ours.recv()
    child.join(5)
    assert child.exitcode == 0
    optimizer.step()
    for step in range(4, 6):
        assert len(list(loader)) == 2
        models.train(model, optimizer, 1, first=step)
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
    models.train(model, optimizer, 1, first=6)
    ended(model, optimizer)
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
import gc, os, sys
import models, processes
kind, rank, port = sys.argv[1], int(os.environ["RANK"]), os.environ["MASTER_PORT"]
processes.start_group(rank, 2, "tcp://127.0.0.1:" + port)
gc.unfreeze()  # a user's imports are not frozen
model, optimizer = models.make(overlap=True)
models.train(model, optimizer, 3)
if kind == "backward":
    models.backward(model, 3)
if kind == "raise":
    raise LookupError("of the user")
print("reached the end")
"""


@pytest.fixture(name="ends", scope="module")
def _ends(tmp_path_factory):
    """(exit status, output) of the ranks of a program, in interpreters that end by themselves."""
    server = Programs(*(["torch._dynamo"] if models.NEW_TORCH else []), "torch.distributed", "pride")
    file = tmp_path_factory.mktemp("ends") / "ends.py"

    def run(text, *arguments, ranks=2):
        file.write_text(text)
        return server.results(file, *arguments, ranks=ranks, to_the_end=True)

    yield run
    server.close()


def test_a_process_that_ends_in_the_middle_of_a_step_exits_clean(ends):
    for code, output in ends(ENDS, "backward"):
        assert code == 0 and output == "reached the end\n", output


def test_a_process_with_an_unhandled_exception_exits_with_it(ends):
    for code, output in ends(ENDS, "raise"):
        assert code == 1 and "LookupError: of the user" in output, output
        assert "terminate called" not in output and "Aborted" not in output


def threads_and_files():
    with open("/proc/self/status") as status:
        threads = [int(line.split()[1]) for line in status if line.startswith("Threads:")][0]
    return threads, len(os.listdir("/proc/self/fd"))


def dropping(how):
    counts = []
    for i in range(12):
        model, optimizer = make(overlap=i % 2 == 1)
        models.train(model, optimizer, 3)
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


WATCHING = """
import datetime, threading, time, torch.distributed as dist
from pride import _world
_world.SLICE_S = 0  # always in the store
world = object.__new__(_world.World)
world.store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
world.rank, world._reason, world._lock = 0, None, threading.Lock()
world._watch_until, world._watching = 0.0, False
world.watch()
time.sleep(0.2)
"""


def test_a_process_that_ends_while_it_watches_the_store_exits_clean(ends):
    (code, output), = ends(WATCHING, ranks=1)
    assert code == 0, output
