# Workers of a coordinator, `pride serve` of models.BUILD.
# SPDX-License-Identifier: Apache-2.0
import contextlib
import copy
import functools
import os
import signal
import socket
import subprocess
import threading
import time

import pytest
import torch

import models
import pride
import test_matrices
from pride import _library as library
from processes import context

PROGRAM = models.BUILD / "apps" / "pride" / "pride"
needs_program = pytest.mark.skipif(
    not (PROGRAM.exists() and library.find("libpride_coord.so").exists()),
    reason=f"no {PROGRAM}, or no libpride_coord.so in the package")


def serve(folder, *flags):
    """A coordinator's process, and its host:port."""
    served = subprocess.Popen(
        [str(PROGRAM), "serve", "--dir", str(folder / "journal"), "--listen", "127.0.0.1:0", *flags],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    ready = served.stdout.readline()
    assert ready.startswith("ready: "), ready + served.stdout.read()
    drain = threading.Thread(target=served.stdout.read, daemon=True)
    drain.start()
    return served, ready.split()[1].rstrip(",")


@pytest.fixture
def coordinator(tmp_path, request):
    """host:port of a coordinator with the flags of the parameter."""
    served, address = serve(tmp_path, *getattr(request, "param", []))
    yield address
    served.terminate()
    served.wait(30)


def model_of(seed):
    torch.manual_seed(seed)
    return torch.nn.Linear(40, 3)


worker_of = functools.partial(pride.RunWorker, method="dlion-vote")


def trained(address, name, model, steps, rounds):
    optimizer = worker_of(model.parameters(), lr=1e-2, coordinator=address,
                                      name=name, timeout=60)
    generator = torch.Generator().manual_seed(len(name or ""))
    for _ in range(steps):
        optimizer.zero_grad()
        x = torch.randn(8, 40, generator=generator)
        model(x).square().sum().backward()
        optimizer.step()
        rounds.append(optimizer.last_round())
    return optimizer


@needs_program
def test_workers_end_with_the_parameters_of_the_run(coordinator):
    models, rounds = [model_of(1), model_of(2)], [[], []]
    made = [None, None]

    def run(i, name):
        made[i] = trained(coordinator, name, models[i], 10, rounds[i])

    threads = [threading.Thread(target=run, args=(i, name)) for i, name in enumerate(["a", "bb"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(r) for r in rounds] == [10, 10]
    assert all(entry["voters"] >= 1 for entry in rounds[0] + rounds[1])
    assert any(entry["counted"] for entry in rounds[0])
    # a third that votes no more: where the run is now
    late = model_of(3)
    optimizer = worker_of(late.parameters(), lr=1e-2, coordinator=coordinator,
                                      name="late", timeout=60)
    assert optimizer.last_round() is None
    last = max(rounds[0][-1]["round"], rounds[1][-1]["round"])
    newest = [m for m, r in zip(models, rounds) if r[-1]["round"] == last]
    for model in newest:
        for p, q in zip(model.parameters(), late.parameters()):
            assert torch.equal(p, q)
    for each in made + [optimizer]:
        each.close()


def come_and_be_killed(address, secret, state):
    """Makes two steps as alice, saves and is killed without a goodbye."""
    optimizer = worker_of(model_of(1).parameters(), lr=1e-2, coordinator=address,
                                      name="alice", secret=secret, timeout=20)
    for _ in range(2):
        torch.nn.functional.linear(torch.ones(8, 40), *optimizer.param_groups[0][
            "params"]).square().sum().backward()
        optimizer.step()
    torch.save(optimizer.state_dict(), state)
    os.kill(os.getpid(), signal.SIGKILL)


@needs_program
def test_a_worker_that_was_killed_comes_back_under_its_name_with_its_secret(coordinator, tmp_path):
    secret, state = tmp_path / "alice.secret", tmp_path / "alice.pt"
    process = context.Process(target=come_and_be_killed, args=(coordinator, secret, state))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert secret.stat().st_size == 16 and secret.stat().st_mode & 0o777 == 0o600
    named = dict(lr=1e-2, coordinator=coordinator, name="alice", timeout=20)
    with pytest.raises(pride.InvalidArgument, match="another secret"):
        worker_of(model_of(1).parameters(), **named)
    optimizer = worker_of(model_of(1).parameters(), secret=str(secret),
                                      **named)
    optimizer.load_state_dict(torch.load(state))
    assert optimizer.state_dict()["state"][0]["step"] == 2
    model = torch.nn.functional.linear(torch.ones(8, 40), *optimizer.param_groups[0]["params"])
    model.square().sum().backward()
    optimizer.step()
    assert optimizer.last_round()["round"] == 2 and optimizer.last_round()["counted"]
    optimizer.close()


def test_refuses_a_secret_without_a_name():
    with pytest.raises(pride.InvalidArgument, match="secret: the file is of a worker with a name"):
        worker_of(model_of(1).parameters(), secret="s", coordinator="127.0.0.1:1")


@needs_program
def test_warns_while_the_coordinator_is_out_of_reach():
    with pytest.warns(UserWarning, match=r"still trying 127.0.0.1:1 \(registration of worker a\)"):
        with pytest.raises(pride.CommError, match="nothing listens there"):
            worker_of(model_of(1).parameters(), coordinator="127.0.0.1:1",
                                  name="a", timeout=6)


@needs_program
def test_a_listener_that_does_not_answer_is_named_when_the_timeout_ends():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(pride.CommError, match=f"coordinator {address}, registration of worker a: no "
                           "answer in .* does another program listen there"):
            worker_of(model_of(1).parameters(), coordinator=address, name="a",
                                  timeout=2)


class Stop(Exception):
    pass


@contextlib.contextmanager
def within(seconds):
    """Raises Stop in the block after this time, as a spot instance's SIGTERM handler may."""
    def stop(*_):
        raise Stop

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def stopped_after(seconds):
    with pytest.raises(Stop), within(seconds):
        yield


@needs_program
@pytest.mark.parametrize("coordinator", [["--min-workers", "2"]], indirect=True)
def test_a_handler_that_raises_ends_the_wait_for_a_round_and_keeps_the_momentum(coordinator):
    model = model_of(1)
    optimizer = worker_of(model.parameters(), lr=1e-2, coordinator=coordinator,
                                      name="alone", timeout=20)
    before = [p.detach().clone() for p in model.parameters()]
    model(torch.ones(8, 40)).square().sum().backward()
    with stopped_after(1):
        optimizer.step()
    state = optimizer.state_dict()
    assert state["state"][0]["step"] == 0 and state["state"][0]["m.rank0"].abs().max() > 0
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before))
    with pytest.raises(pride.CommError, match="was interrupted: Stop"):
        optimizer.step()
    optimizer.close()
    model = model_of(1)
    again = worker_of(model.parameters(), lr=1e-2, coordinator=coordinator,
                                  name="again", timeout=20)
    again.load_state_dict(state)
    assert torch.equal(again.state_dict()["state"][0]["m.rank0"], state["state"][0]["m.rank0"])
    again.close()


@needs_program
def test_a_handler_that_raises_ends_the_wait_to_join():
    with stopped_after(1):
        worker_of(model_of(1).parameters(), lr=1e-2, coordinator="127.0.0.1:1",
                              name="a", timeout=20)


@needs_program
def test_the_momentum_can_be_saved_once_the_coordinator_is_given_up(tmp_path):
    served, address = serve(tmp_path)
    model = model_of(1)
    optimizer = worker_of(model.parameters(), lr=1e-2, coordinator=address,
                                      name="a", timeout=4)
    served.kill()
    served.wait()
    model(torch.ones(8, 40)).square().sum().backward()
    with pytest.raises(pride.CommError, match="no answer"):
        optimizer.step()
    assert optimizer.state_dict()["state"][0]["m.rank0"].abs().max() > 0
    optimizer.close()


@needs_program
@pytest.mark.parametrize("coordinator", [["--grace", "0.05"]], indirect=True)
def test_warns_a_worker_whose_ballots_are_always_late(coordinator):
    slow, fast, rounds, over = model_of(1), model_of(1), [], threading.Event()

    def run():
        optimizer = worker_of(fast.parameters(), lr=1e-2, coordinator=coordinator,
                                          name="fast", timeout=60)
        while not over.is_set():
            fast(torch.ones(8, 40)).square().sum().backward()
            optimizer.step()
            rounds.append(optimizer.last_round())
        optimizer.close()

    other = threading.Thread(target=run)
    other.start()
    try:
        optimizer = worker_of(slow.parameters(), lr=1e-2, coordinator=coordinator,
                                          name="slow", timeout=60)
        with pytest.warns(UserWarning, match="3 of the last 3 ballots of this worker.* were not counted.*late: this worker "
                          r"computes for .* s, a round takes .* s\. Take fewer samples a step.*--min-workers"):
            for _ in range(3):
                slow(torch.ones(8, 40)).square().sum().backward()
                done = len(rounds)
                while len(rounds) < done + 12:
                    assert other.is_alive()
                    time.sleep(0.01)
                optimizer.step()
        optimizer.close()
    finally:
        over.set()
        other.join()


@needs_program
def test_take_over_joins_a_run(coordinator):
    """With schedulers of the optimizer that was taken over; the run's parameters replace the model's."""
    first, second = model_of(1), model_of(2)
    one = pride.RunWorker(first.named_parameters(), lr=3e-3 * (1 / 3), method="dlion-vote",
                          coordinator=coordinator, timeout=20)
    given = torch.optim.AdamW(second.parameters(), lr=3e-3, weight_decay=0.0)
    two = pride.take_over(given, second, coordinator=coordinator, name="b", timeout=20)
    assert type(two) is pride.RunWorker
    assert models.bits(second.parameters()) == models.bits(first.parameters())
    assert two.param_groups is given.param_groups
    one.close()
    two.close()


@needs_program
def test_a_worker_that_is_closed_has_left(coordinator):
    """Otherwise the round waits for it: one worker is enough."""
    closed = []
    for _ in range(2):
        closed.append(worker_of(model_of(1).parameters(), lr=1e-2, coordinator=coordinator, timeout=20))
        closed[-1].close()
    rounds = []
    with within(30):
        trained(coordinator, "third", model_of(1), 3, rounds).close()
    assert [each["voters"] for each in rounds] == [1, 1, 1]


@needs_program
def test_a_copy_joins_the_run(coordinator):
    rounds, model = [], model_of(1)
    optimizer = trained(coordinator, None, model, 2, rounds)
    made_model, made = copy.deepcopy((model, optimizer))
    optimizer.close()
    made_model(torch.ones(8, 40)).square().sum().backward()
    made.step()
    assert made.last_round()["counted"] and made.state_dict()["state"][0]["step"] == 3
    assert models.bits(made_model.parameters()) != models.bits(model.parameters())
    made.close()


@needs_program
def test_refuses_a_method_that_a_coordinator_cannot_serve(coordinator):
    with pytest.raises(pride.InvalidArgument, match="coordinator cannot serve"):
        pride.RunWorker(model_of(1).parameters(), method="lion-cub", coordinator=coordinator)


def by_sections(address, name, model, steps):
    """Vectors by another method."""
    optimizer = worker_of(
        [{"params": [model.weight]}, {"params": [model.bias], "method": "adamw", "lr": 1e-2}], lr=1e-2,
        coordinator=address, name=name, timeout=60)
    for step in range(steps):
        optimizer.zero_grad()
        model(models.numbers(step, 8, 40)).square().sum().backward()
        optimizer.step()
    return optimizer


@needs_program
def test_a_run_has_sections(coordinator):
    first, late, alone = model_of(1), model_of(2), model_of(1)
    one = by_sections(coordinator, "a", first, 5)
    own = [pride.DistributedLion([alone.weight], lr=1e-2), pride.Optimizer(
        [alone.bias], lr=1e-2, method="adamw")]
    for step in range(5):
        alone(models.numbers(step, 8, 40)).square().sum().backward()
        for optimizer in own:
            optimizer.step()
            optimizer.zero_grad()
    assert [each["method"] for each in one.traffic()["sections"]] == ["dlion-vote", "adamw"]
    assert models.bits(first.parameters()) == models.bits(alone.parameters())
    two = by_sections(coordinator, "b", late, 0)
    assert models.bits(late.parameters()) == models.bits(first.parameters())
    other = model_of(1)
    with pytest.raises(pride.Error, match="another run: .*group 1.*adamw"):
        worker_of([{"params": [other.weight]}, {"params": [other.bias], "lr": 1e-2}], lr=1e-2,
                              coordinator=coordinator, timeout=20)
    for each in (one, two, *own):
        each.close()


@needs_program
@test_matrices.pytestmark
def test_a_run_has_muons_groups(coordinator):
    def groups_of(model, **matrices):
        return pride.muon_groups(model, matrices=matrices, rest=dict(lr=1e-2))

    def worker(model, **matrices):
        return pride.RunWorker(groups_of(model, **matrices), coordinator=coordinator, timeout=60)

    model, alone, late = (test_matrices.model_of() for _ in range(3))
    optimizers = [worker(model), pride.Optimizer(groups_of(alone))]
    for each, optimizer in zip((model, alone), optimizers):
        test_matrices.steps(each, optimizer)
    assert models.bits(model.parameters()) == models.bits(alone.parameters())
    assert [each["method"] for each in optimizers[0].traffic()["sections"]] == ["dlion-muon", "adamw"]
    optimizers.append(worker(late))
    assert models.bits(late.parameters()) == models.bits(model.parameters())
    for method in ("dlion-muon-avg", "muon"):
        with pytest.raises(pride.Error, match=f"the run has dlion-muon, this worker {method}"):
            worker(test_matrices.model_of(), method=method)
    for each in optimizers:
        each.close()
