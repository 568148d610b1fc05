# Runs of `pride train` that are killed (SIGKILL) at random moments and resumed end with the
# parameters of the run that was never stopped.
# usage: kill_test.py PRIDE KILLS TRANSPORT LAUNCHER...
# e.g. kill_test.py pride 50 mpi mpirun -n 3; without a launcher: three threads
# SPDX-License-Identifier: Apache-2.0
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

METHODS = {
    "lion-cub": [],
    "onebit-adam": ["--method-opt", "freeze_steps=4"],
    "signsgd-ef": [],
    "dgc": [],
    "local-ef": ["--method-opt", "h=3"],
}
STEPS = 60
# two threads of a worker's own keep buckets on their way when the kill comes
FLAGS = ["--steps", str(STEPS), "--lr", "1e-3", "--layers", "1", "--heads", "2", "--width", "32",
         "--context", "16", "--batch", "4", "--eval-batches", "1", "--save-every", "1", "--quiet",
         "--overlap", "--bucket-coords", "4096", "--timeout", "20"]


def start(command):
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                            start_new_session=True)


def newest(folder):
    names = [p.name for p in (folder / "checkpoints").glob("step-*") if p.name[5:].isdigit()]
    return max((int(name[5:]) for name in names), default=0)


def kill_once(command, folder, wait_for):
    """Kills the job somewhere after the checkpoint `wait_for`. False if it was over before."""
    job = start(command)
    deadline = time.monotonic() + 120
    while newest(folder) < wait_for and job.poll() is None:
        assert time.monotonic() < deadline, f"no checkpoint {wait_for} in two minutes: {command}"
        time.sleep(0.002)
    time.sleep(random.random() * 0.05)
    alive = job.poll() is None
    # a launcher leaves its group, and its ranks theirs: all that name the folder of results
    pids = subprocess.run(["pgrep", "-f", str(folder)], capture_output=True, text=True).stdout.split()
    for pid in pids:
        try:
            os.kill(int(pid), signal.SIGKILL)
        except ProcessLookupError:
            pass
    error = job.communicate()[1]
    assert alive or job.returncode == 0, error
    return alive


def final_hash(command, folder):
    job = start(command)
    error = job.communicate()[1]
    assert job.returncode == 0, error
    return json.loads((folder / "summary.json").read_text())["param_hash"]


def main():
    pride, kills, transport = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    launcher = sys.argv[4:]
    seed = random.randrange(1 << 32)
    random.seed(seed)
    print(f"seed {seed}", flush=True)
    done = passed_over = 0
    with tempfile.TemporaryDirectory(prefix="pride-kill-") as parent:
        text = pathlib.Path(parent) / "text"
        text.write_bytes(bytes(random.Random(1).choices(b"abcdefgh ", k=20000)))
        expected = {}
        while done < kills:
            for method, options in METHODS.items():
                folder = pathlib.Path(parent) / f"{method}-{done}"
                command = [*launcher, pride, "train", "--data", str(text), "--method", method,
                           *options, *FLAGS, "--transport", transport]
                if not launcher:
                    command += ["--workers", "3"]
                if method not in expected:
                    whole = folder.with_name(method + "-whole")
                    expected[method] = final_hash([*command, "--out", str(whole)], whole)
                first = [*command, "--out", str(folder)]
                again = [*first, "--resume", str(folder)]
                for n in range(3):  # the same run, three times
                    at = newest(folder)
                    killed = kill_once(again if at else first, folder,
                                       min(at + 1 + random.randrange(8), STEPS - 1))
                    if not killed:
                        break
                    assert newest(folder) > at, "no newer checkpoint"
                    done += 1
                assert final_hash(again, folder) == expected[method], \
                    f"{method}: another end after {done} kills"
                notes = json.loads((folder / "summary.json").read_text())["notes"]
                passed_over += sum("skipped: " in note for note in notes)
                if done >= kills:
                    break
    print(f"{done} kills over {len(expected)} methods on {transport}: every run came to the "
          f"parameters of the undisturbed one; {passed_over} checkpoints were skipped")


if __name__ == "__main__":
    main()
