# The examples train, with 2 processes and small settings. torchrun starts one of them: its three
# imports of torch take longer than all else here.
# SPDX-License-Identifier: Apache-2.0
import json
import math
import os
import pathlib
import shutil
import subprocess
import sys
import time

import pytest

import programs
from processes import context, environment, free_port

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "python"
SMALL = ["--layers", "1", "--width", "32", "--heads", "2", "--warmup", "2", "--eval-every", "25",
         "--save-every", "10"]


def torchrun(script, *arguments):
    """Runs an example on 2 processes to its end."""
    # a rendezvous of its own at a free port: two --standalone jobs on a machine would share one;
    # -r 1 -t 1: without them torchrun of torch 1.13 fails with Python 3.11 and later
    command = [sys.executable, "-m", "torch.distributed.run", "--rdzv_backend", "c10d",
               "--rdzv_endpoint", "localhost:0", "-r", "1", "-t", "1", "--nproc_per_node", "2",
               str(EXAMPLES / script), *SMALL, *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env=environment(), timeout=400, check=False)
    assert done.returncode == 0, done.stdout


class Job:
    """An example on forked processes, which need not import torch, with torchrun's variables."""

    def __init__(self, folder, script, *arguments, ranks=2):
        shutil.copytree(EXAMPLES, folder, dirs_exist_ok=True)
        self.file = folder / script
        task = dict(file=str(self.file), arguments=[*SMALL, *map(str, arguments)], ranks=ranks,
                    die_in=None, to_the_end=False)
        port = free_port()
        self.processes = [context.Process(target=programs.run_rank, args=(task, rank, port))
                          for rank in range(ranks)]
        for process in self.processes:
            process.start()

    def running(self):
        return all(process.is_alive() for process in self.processes)

    def kill(self):
        for process in self.processes:
            process.kill()
            process.join()

    def end(self):
        """(exit status, output) of each rank."""
        until = time.monotonic() + 400  # on a busy machine
        for process in self.processes:
            process.join(max(0.0, until - time.monotonic()))
        self.kill()
        return [(process.exitcode, programs.log_of(self.file, rank).read_text())
                for rank, process in enumerate(self.processes)]


def launch(*arguments):
    for rank, (status, output) in enumerate(Job(*arguments).end()):
        assert status == 0, f"rank {rank}: {status}\n{output}"


def launch_and_kill(file, *arguments):
    """Ends both processes with SIGKILL once the file is there."""
    job, until = Job(*arguments), time.monotonic() + 400
    while not file.exists() and job.running() and time.monotonic() < until:
        time.sleep(0.005)
    job.kill()
    assert file.exists(), f"{file.name} was not there in time: {job.end()}"


def records(log):
    return [json.loads(line) for line in log.read_text().splitlines()]


def images():
    """A folder with CIFAR-10's binary files, or None."""
    folder = pathlib.Path(os.environ.get("PRIDE_DATA") or ROOT / ".." / "shared" / "data" / "cifar10")
    for place in (folder, folder / "cifar10"):
        if any(place.glob("data_batch_*.bin*")) and any(place.glob("test_batch.bin*")):
            return place
    return None


@pytest.fixture(name="text")
def _text(tmp_path):
    file = tmp_path / "text.txt"
    file.write_bytes(pathlib.Path(__file__).read_bytes() * 20)
    return file


def test_gpt_that_was_killed_ends_as_if_it_had_not_been(tmp_path, text):
    arguments = ["--data", text, "--context", 32, "--steps", 50, "--accumulate", 2]
    whole, again, out = tmp_path / "whole.jsonl", tmp_path / "again.jsonl", tmp_path / "out"
    gpt = tmp_path / "examples", "train_gpt.py"
    launch(*gpt, *arguments, "--metrics", whole)
    head, *evaluations, end = records(whole)
    assert head["ranks"] == 2 and head["first_step"] == 0
    assert [e["step"] for e in evaluations] == [25, 50]
    assert evaluations[-1]["val_bits_per_byte"] < evaluations[0]["val_bits_per_byte"]
    assert end["bytes_per_step"] < end["fp32_bytes_per_step"] / 10

    launch_and_kill(out / "step20.rank0of2.pt", *gpt, *arguments, "--out", out)
    launch(*gpt, *arguments, "--out", out, "--metrics", again, "--overlap")
    head, *_, end_again = records(again)
    assert 10 <= head["first_step"] < 50
    assert end_again["replicas"] == end["replicas"]
    assert end_again["val_bits_per_byte"] == end["val_bits_per_byte"]
    assert sorted(f.name for f in out.glob("*.pt")) == ["step50.rank0of2.pt",
                                                        "step50.rank1of2.pt"]


@pytest.mark.parametrize("script, text", [("train_gpt.py", "no such file or folder"),
                                          ("train_vit.py", "no data_batch_*.bin")])
def test_data_that_is_missing_is_named(script, text, tmp_path):
    folder = tmp_path / "nothing"
    (status, output), = Job(tmp_path / "examples", script, "--data", folder, ranks=1).end()
    assert status == 1
    assert text in output and str(folder) in output and "Traceback" not in output


def test_vit_trains_under_torchrun(tmp_path):
    folder = images()
    if folder is None:
        pytest.skip("no CIFAR-10: set PRIDE_DATA to a folder with its binary files")
    log = tmp_path / "vit.jsonl"
    for name in ("data_batch_1", "test_batch"):  # one file of five: reading takes most of the time
        file = next(folder.glob(name + ".bin*"))
        (tmp_path / file.name).symlink_to(file.resolve())
    torchrun("train_vit.py", "--data", tmp_path, "--epochs", "0.02", "--test-images", "500",
           "--metrics", log)
    head, *evaluations, end = records(log)
    assert head["steps"] == 3 and len(evaluations) == 1
    assert 0.0 <= end["test_accuracy"] <= 1.0 and math.isfinite(end["test_loss"])
    assert end["bytes_per_step"] < end["fp32_bytes_per_step"] / 10
