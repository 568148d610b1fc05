# Failures: each ends with an error on every living rank, which names rank and reason, in time.
# SPDX-License-Identifier: Apache-2.0
import datetime
import os
import re
import signal
import socket
import threading
import time

import pytest
import torch
import torch.distributed as dist

import models
import pride
from models import make
from processes import PATIENCE, SOON

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
        models.backward(model, step)
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
        models.train(model, optimizer, 1, first=step)


def test_a_rank_whose_own_code_raises_is_named(job):
    job = job(3, raising, 1.0)
    for rank in (0, 1):
        text, _, seconds = job.result(rank)
        assert text.startswith("CommError") and "rank(s) 2 gave no sign of life" in text, text
        assert seconds < 1 + SOON
    assert "no such file" in job.result(2)[0]
    job.close()


# --- Ctrl-C. ------------------------------------------------------------------------------------------


def waiting(where, overlap, marker):
    """Rank 1 stays away for a minute; the others wait for it. Rank 0 makes the file before it does."""
    rank = dist.get_rank()
    if rank == 0 and where != "step":
        marker.touch()
    if rank == 1 and where == "construct":
        time.sleep(60)
    if rank == 1 and where == "connect":
        pride._world.dist.ProcessGroupGloo = lambda *_, **__: time.sleep(60)
    _, optimizer = make(overlap=overlap)
    model, optimizer = make(overlap=overlap)
    models.train(model, optimizer, 3)
    if rank == 1:
        time.sleep(60)
    optimizer.zero_grad()
    models.backward(model, 3)
    if rank == 0:
        marker.touch()
    try:
        optimizer.step()
    except BaseException:
        assert optimizer.state_dict()["state"][0]["step"] == 3  # no rank has applied step 4
        raise


def sleep_until(marker):
    """Until rank 0 waits for rank 1."""
    until = time.monotonic() + PATIENCE
    while not marker.exists() and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(0.8)


@pytest.mark.parametrize("where, overlap", [("step", False), ("step", True), ("construct", False),
                                            ("connect", False)])
def test_ctrl_c_acts_within_a_second_and_the_others_end(job, tmp_path, where, overlap):
    job = job(3, waiting, where, overlap, tmp_path / "waits")
    sleep_until(tmp_path / "waits")
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


def interrupted_in_backward(overlap):
    """Ctrl-C in backward, with overlap after the step has begun; the state then."""
    model, optimizer = make(overlap=overlap, bucket_size=1 << 20)  # one bucket
    models.train(model, optimizer, 3)
    if dist.get_rank() == 0:
        model[0].register_full_backward_hook(lambda *_: ACTS["interrupt"]())
    optimizer.zero_grad()
    try:
        models.backward(model, 3)
        optimizer.step()
    except (KeyboardInterrupt, pride.CommError) as why:
        what = type(why).__name__
    return what, int(optimizer.state_dict()["state"][0]["step"])


@pytest.mark.parametrize("overlap", [False, True])
def test_a_state_can_be_saved_after_ctrl_c_in_backward(job, overlap):
    job = job(2, interrupted_in_backward, overlap)
    assert job.result(0)[:2] == (None, ("KeyboardInterrupt", 3))
    if overlap:
        assert job.result(1)[:2] == (None, ("CommError", 3))
    job.signal(1, signal.SIGKILL)
    job.close()


def saves_between():
    """state_dict() in a step that backward has begun, in `except` blocks that no interrupt entered: of
    another thread in backward, then of the thread that trains."""
    model, optimizer = make(overlap=True)
    models.train(model, optimizer, 3)
    refusals = []

    def save():
        try:
            raise OSError("a failed upload")
        except OSError:
            try:
                optimizer.state_dict()
            except pride.InvalidArgument as error:
                refusals.append(str(error))

    def save_in_a_thread(*_):
        thread = threading.Thread(target=save)
        thread.start()
        thread.join()

    hook = model[0].register_full_backward_hook(save_in_a_thread)
    optimizer.zero_grad()
    models.backward(model, 3)
    hook.remove()
    save()
    optimizer.step()
    return refusals, int(optimizer.state_dict()["state"][0]["step"])


def test_a_state_is_refused_in_a_step_that_goes_on(world):
    for refusals, step in world(2).run(saves_between):
        assert step == 4 and len(refusals) == 2
        assert all("state_dict() between backward and step()" in text for text in refusals)


def interrupted_by_rank_1():
    """With overlap, rank 1 interrupts rank 0, which waits for it, and ends its own step."""
    pride._steps.GRACE_S = 60.0
    model, optimizer = make(overlap=True)
    pid = torch.tensor([os.getpid()])
    dist.broadcast(pid, 0)
    models.train(model, optimizer, 3)
    if dist.get_rank() == 1:
        model[0].register_full_backward_hook(
            lambda *_: (time.sleep(0.3), os.kill(int(pid), signal.SIGINT)))
    optimizer.zero_grad()
    models.backward(model, 3)
    try:
        optimizer.step()
    except KeyboardInterrupt:
        assert dist.get_rank() == 0
    return f"{optimizer.check_replicas():x}", int(optimizer.state_dict()["state"][0]["step"])


def test_ctrl_c_in_a_step_that_ends_soon_leaves_all_ranks_alike(job):
    job = job(2, interrupted_by_rank_1)
    first, second = job.result(0), job.result(1)
    assert first[0] is second[0] is None, (first, second)
    assert first[1] == second[1] and first[1][1] == 4
    job.close()


class Preempted(Exception):
    pass


def preempted_while_waiting(kind, overlap, marker):
    def handler(*_):
        raise kind("spot")

    signal.signal(signal.SIGTERM, handler)
    waiting("step", overlap, marker)


@pytest.mark.parametrize("kind, overlap", [(Preempted, False), (Preempted, True),
                                           (RuntimeError, False)])
def test_what_a_signal_handler_raises_in_a_wait_comes_out_of_step(job, tmp_path, kind, overlap):
    job = job(3, preempted_while_waiting, kind, overlap, tmp_path / "waits")
    sleep_until(tmp_path / "waits")
    job.signal(0, signal.SIGTERM)
    text, _, _ = job.result(0)
    assert text == f"{kind.__name__}: spot"
    text, _, _ = job.result(2)
    assert text.startswith("CommError") and "rank 0" in text, text
    assert "spot" in text or "Preempted" in text, text
    job.signal(1, signal.SIGKILL)
    job.close()


# --- Time-outs. ------------------------------------------------------------------------------------


def default_timeouts():
    """Of an optimizer over the default group (120 s), over a group, and with its own."""
    model = models.mlp()
    group = dist.new_group([0, 1], timeout=datetime.timedelta(seconds=77))
    found = []
    for arguments in ({}, {"process_group": group}, {"timeout": 50},
                      {"timeout": datetime.timedelta(minutes=2, seconds=1)}):
        optimizer = pride.DistributedLion(model.parameters(), **arguments)
        found.append(optimizer._ranks.world.timeout.total_seconds())
        optimizer.close()
    return found


def test_the_default_timeout_is_the_groups(world):
    assert world(2).run(default_timeouts) == [[120, 77, 50, 121]] * 2


def test_the_default_timeout_of_one_rank_and_what_is_no_timeout():
    params = [models.parameter(1, 4)]
    optimizer = pride.DistributedLion(params)
    assert optimizer._ranks.world.timeout.total_seconds() == 300
    optimizer.close()
    for bad in (0, -1.0, float("nan"), float("inf"), "300", True, datetime.timedelta(0)):
        with pytest.raises(pride.InvalidArgument, match="timeout = .*above 0 and at most 1e9 seconds"):
            pride.DistributedLion(params, timeout=bad)
        with pytest.raises(pride.InvalidArgument, match="must be above 0 and at most 1e9 seconds"):
            pride.mpi(bad)


def evaluating(timeout):
    """Rank 0 works alone for longer than the time-out. Its group allows more."""
    model, optimizer = make(timeout=timeout)
    models.train(model, optimizer, 1)
    if dist.get_rank() == 0:
        time.sleep(3)
    models.train(model, optimizer, 1)


def test_the_text_of_a_timeout_names_it_first(job):
    times_out = job(2, evaluating, 1.0)
    text = times_out.result(1)[0]
    assert re.search("no response within 1 s.*gave no sign of life in step 2, the first without them. "
                     r"If they evaluate.* larger timeout=\. If they call step\(\) .* another order.*"
                     r"pride\.join", text), text
    times_out.close()


def unreachable():
    """Gloo of rank 1 waits for an address that does not respond."""
    if dist.get_rank() == 1:
        pride._world.dist.ProcessGroupGloo = lambda *_, **__: time.sleep(60)
    make(timeout=2.0)


def test_ranks_that_cannot_connect_end_at_the_timeout(job):
    apart = job(2, unreachable)
    for rank in range(2):
        text = apart.result(rank, timeout=20)[0]
        assert text.startswith("CommError") and "no connection within 2 s" in text, text
    assert "GLOO_SOCKET_IFNAME" in text
    apart.close()


# --- The network. ----------------------------------------------------------------------------------


class FakeWorld(pride._world.World):
    """A world whose ranks are said to be on two machines."""

    def __init__(self, rank):
        self.rank, self.is_first, self.handle, self.asked = rank, True, None, []

    def call(self, name, handle, used, line, problems):
        self.asked.append((name, used))
        line._obj.value, problems._obj.value = b"network: eth0", b"eth1 is faster\nlo is none"


def test_the_network_is_named_once_on_rank_0(capsys, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    world = FakeWorld(0)
    with pytest.warns(UserWarning) as warned:
        pride._network.report_network(world)
    assert world.asked == [("pride_comm_network", b"eth0")]
    assert capsys.readouterr().err == "pride: network: eth0\n"
    assert [str(w.message).split(";")[0] for w in warned] == [
        "pride: eth1 is faster", "pride: lo is none"]
    pride._network.report_network(FakeWorld(1))
    assert capsys.readouterr().err == ""


def networks():
    """On one machine nothing is said; each rank names an address of its own."""
    first = pride.DistributedLion(models.mlp().parameters())
    first.close()
    address = pride._network._gloo_address()
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as own:
        own.bind((address, 0))
    return address


def test_one_machine_has_no_line(job, capfd):
    of_job = job(2, networks)
    assert [of_job.result(rank)[0] for rank in range(2)] == [None, None]
    of_job.close()
    assert "network:" not in capfd.readouterr().err


# --- A rank makes another number of optimizers. ----------------------------------------------------


def number_of_optimizers(timeout):
    rank = dist.get_rank()
    model, optimizer = make(timeout=timeout)
    if rank == 0:
        make(timeout=timeout)
    models.train(model, optimizer, 3)


def test_another_number_of_optimizers_is_named(job):
    job = job(2, number_of_optimizers, 1.0)
    text = job.result(0)[0]
    assert "rank 0 of 2 made an optimizer, or a hook; rank(s) 1 did not within 1 s" in text, text
    text = job.result(1)[0]
    assert text.startswith("CommError") and "rank(s) 0 gave no sign of life" in text, text
    job.close()
