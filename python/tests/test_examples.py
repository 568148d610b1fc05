# The examples train, under torchrun with 2 processes, with small settings.
# SPDX-License-Identifier: Apache-2.0
import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from processes import environment

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "python"
SMALL = ["--layers", "1", "--width", "32", "--heads", "2", "--warmup", "2", "--eval-every", "25",
         "--save-every", "10"]


def command(script, *arguments):
    # a rendezvous of its own at a free port: two --standalone jobs on a machine would share one;
    # -r 1 -t 1: without them torchrun of torch 1.13 fails with Python 3.11 and later
    return [sys.executable, "-m", "torch.distributed.run", "--rdzv_backend", "c10d",
            "--rdzv_endpoint", "localhost:0", "-r", "1", "-t", "1", "--nproc_per_node", "2",
            str(EXAMPLES / script), *SMALL, *map(str, arguments)]


def launch(script, *arguments):
    """Runs an example on 2 processes to its end."""
    done = subprocess.run(command(script, *arguments), stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, env=environment(), timeout=400,
                          check=False)
    assert done.returncode == 0, done.stdout


def launch_and_kill(file, script, *arguments):
    """Ends both processes, and the launcher, with SIGKILL once the file is there."""
    job = subprocess.Popen(command(script, *arguments), stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL, env=environment(), start_new_session=True)
    until = time.monotonic() + 400  # on a busy machine
    while not file.exists() and job.poll() is None and time.monotonic() < until:
        time.sleep(0.005)
    children = pathlib.Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
    for pid in [job.pid, *map(int, children)]:
        os.kill(pid, signal.SIGKILL)
    job.wait()
    assert file.exists(), f"{file.name} was not there in time"


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
    launch("train_gpt.py", *arguments, "--metrics", whole)
    head, *evaluations, end = records(whole)
    assert head["ranks"] == 2 and head["first_step"] == 0
    assert [e["step"] for e in evaluations] == [25, 50]
    assert evaluations[-1]["val_bits_per_byte"] < evaluations[0]["val_bits_per_byte"]
    assert end["bytes_per_step"] < end["fp32_bytes_per_step"] / 10

    launch_and_kill(out / "step20.rank0of2.pt", "train_gpt.py", *arguments, "--out", out)
    launch("train_gpt.py", *arguments, "--out", out, "--metrics", again, "--overlap")
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
    done = subprocess.run([sys.executable, str(EXAMPLES / script), "--data", str(folder)],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env=environment(), timeout=120, check=False)
    assert done.returncode == 1
    assert text in done.stdout and str(folder) in done.stdout and "Traceback" not in done.stdout


def test_vit_trains(tmp_path):
    folder = images()
    if folder is None:
        pytest.skip("no CIFAR-10: set PRIDE_DATA to a folder with its binary files")
    log = tmp_path / "vit.jsonl"
    for name in ("data_batch_1", "test_batch"):  # one file of five: reading takes most of the time
        file = next(folder.glob(name + ".bin*"))
        (tmp_path / file.name).symlink_to(file.resolve())
    launch("train_vit.py", "--data", tmp_path, "--epochs", "0.02", "--test-images", "500",
           "--metrics", log)
    head, *evaluations, end = records(log)
    assert head["steps"] == 3 and len(evaluations) == 1
    assert 0.0 <= end["test_accuracy"] <= 1.0 and math.isfinite(end["test_loss"])
    assert end["bytes_per_step"] < end["fp32_bytes_per_step"] / 10
