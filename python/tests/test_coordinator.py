# Workers of a coordinator, `pride serve` of models.BUILD.
# SPDX-License-Identifier: Apache-2.0
import subprocess
import threading

import pytest
import torch

import models
import pride
from pride import _library as library

PROGRAM = models.BUILD / "apps" / "pride" / "pride"
needs_program = pytest.mark.skipif(
    not (PROGRAM.exists() and library.find("libpride_coord.so").exists()),
    reason=f"no {PROGRAM}, or no libpride_coord.so in the package")


@pytest.fixture
def coordinator(tmp_path):
    """host:port of a coordinator."""
    served = subprocess.Popen(
        [str(PROGRAM), "serve", "--dir", str(tmp_path / "journal"), "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    ready = served.stdout.readline()
    assert ready.startswith("ready: "), ready + served.stdout.read()
    drain = threading.Thread(target=served.stdout.read, daemon=True)
    drain.start()
    yield ready.split()[1].rstrip(",")
    served.terminate()
    served.wait(30)


def model_of(seed):
    torch.manual_seed(seed)
    return torch.nn.Linear(40, 3)


def trained(address, name, model, steps, rounds):
    optimizer = pride.DistributedLion(model.parameters(), lr=1e-2, coordinator=address,
                                      worker_name=name, timeout=60)
    generator = torch.Generator().manual_seed(len(name))
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
    optimizer = pride.DistributedLion(late.parameters(), lr=1e-2, coordinator=coordinator,
                                      worker_name="late", timeout=60)
    assert optimizer.last_round() is None
    last = max(rounds[0][-1]["round"], rounds[1][-1]["round"])
    newest = [m for m, r in zip(models, rounds) if r[-1]["round"] == last]
    for model in newest:
        for p, q in zip(model.parameters(), late.parameters()):
            assert torch.equal(p, q)
    for each in made + [optimizer]:
        each.close()


def test_refuses_a_process_group_with_a_coordinator():
    with pytest.raises(pride.InvalidArgument, match="give one of them"):
        pride.DistributedLion(model_of(1).parameters(), coordinator="127.0.0.1:1",
                              process_group=object())


@needs_program
def test_warns_while_the_coordinator_is_out_of_reach():
    with pytest.warns(UserWarning, match=r"still trying 127.0.0.1:1 \(registration of worker a\)"):
        with pytest.raises(pride.CommError, match="nothing listens there"):
            pride.DistributedLion(model_of(1).parameters(), coordinator="127.0.0.1:1",
                                  worker_name="a", timeout=6)


@needs_program
def test_refuses_a_method_that_a_coordinator_cannot_serve(coordinator):
    with pytest.raises(pride.InvalidArgument, match="coordinator cannot serve"):
        pride.LionCub(model_of(1).parameters(), coordinator=coordinator)
