# `pride serve` and three `pride train --coordinator`, as people start them, with certificates: a worker
# is killed and started again, and so is the coordinator. All end with the hash that a replay of the
# journal gives.
# usage: train_test.py PRIDE METHOD [FLAG...]
# SPDX-License-Identifier: Apache-2.0
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

from processes import Coordinator, Worker, last_round, wait_until

STEPS, PATIENCE_S = 300, 240
FLAGS = ["--task", "lm", "--method", *sys.argv[2:], "--steps", str(STEPS), "--lr", "1e-3", "--layers", "1", "--heads",
         "2", "--width", "32", "--context", "16", "--batch", "4", "--eval-batches", "1", "--json"]


def make_certificates(pride, folder):
    for command in (["init", folder], ["server", folder, "--name", "localhost,127.0.0.1"],
                    *(["worker", folder, name] for name in "abc")):
        subprocess.run([pride, "certs", *map(str, command)], check=True, stdout=subprocess.DEVNULL)


def ends_while_it_waits(pride, folder):
    """A worker that waits for others, for its coordinator, or to join it, ends on a signal and
    leaves a checkpoint with its momentum, from which it resumes."""
    coordinator = Coordinator(pride, folder / "journal", "--min-workers", "2")
    coordinator.start()
    out = folder / "out"
    command = [pride, "train", *FLAGS, "--coordinator", f"127.0.0.1:{coordinator.port}", "--worker-name", "a",
               "--out", str(out), "--save-every", "100000"]
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        worker = Worker(command + (["--resume", str(out)] if out.exists() else []))
        if number == signal.SIGTERM:  # nothing listens
            worker.start()
            while "trying" not in worker.process.stderr.readline():
                pass
        else:
            joined = len(coordinator.events("joined"))
            worker.start()
            wait_until("it has joined", lambda: len(coordinator.events("joined")) > joined, PATIENCE_S)
            time.sleep(1)
        if number == signal.SIGHUP:
            coordinator.kill()
        worker.signal(number)
        _, err = worker.process.communicate(timeout=PATIENCE_S)
        saved = out / "checkpoints/step-0/state-rank0.safetensors"
        if worker.process.returncode != 130 or "interrupted" not in err or not any(saved.read_bytes()[-4000:]):
            print("interrupted worker:", number, worker.process.returncode, err)
            return False
    return True


def says_that_nobody_listens(pride):
    done = subprocess.run([pride, "train", *FLAGS, "--coordinator", "127.0.0.1:1", "--timeout", "6"],
                          capture_output=True, text=True, timeout=PATIENCE_S)
    good = "still trying 127.0.0.1:1" in done.stderr and "nothing listens there" in done.stderr.splitlines()[-1]
    return good or print("alone:", done.stderr)


def votes_of(coordinator, name):
    return sum(voter["name"] == name for event in coordinator.events("round") for voter in event["voters"])


def main():
    pride, vote = sys.argv[1], sys.argv[2] == "dlion-vote"
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make_certificates(pride, folder / "certs")
        # what no method changes is shown with one
        wrong = ["said"] if vote and not (says_that_nobody_listens(pride) and
                                          ends_while_it_waits(pride, folder / "lonely")) else []
        flags = ["--certs", str(folder / "certs/server"), "--dead-after", "3", "--most-grace", "2",
                 "--parameters-every", "20", "--min-workers"]
        # rounds stand still while a worker of the least number is stopped or missing: without that a
        # fast worker would end the run before another one has started
        coordinator = Coordinator(pride, folder / "journal", *flags, "3")
        coordinator.start()
        a, b, c = workers = [
            Worker([pride, "train", *FLAGS, "--coordinator", f"localhost:{coordinator.port}", "--certificates",
                    str(folder / "certs/workers" / site), "--out", str(folder / site)]) for site in "abc"]

        def wait_for(what, is_so):
            def is_so_now():
                ended = [w for w in workers if w.process and w.process.poll() is not None]
                if ended:
                    raise RuntimeError(f"{what}: ended: {[(w.command[-3:], w.process.communicate()) for w in ended]}")
                return is_so()
            wait_until(what, is_so_now, PATIENCE_S)

        try:
            a.start()
            b.start()
            wait_for("a and b have joined", lambda: len(coordinator.events("joined")) >= 2)
            b.signal(signal.SIGSTOP)
            c.start()
            wait_for("c has joined", lambda: len(coordinator.events("joined")) >= 3)
            twice = subprocess.run([*b.command, "--overwrite"], capture_output=True, text=True, timeout=PATIENCE_S)
            if "uses this folder" not in twice.stderr:
                wrong.append(f"a second process in b's folder: {twice.stderr}")
            a.kill()
            a.process = None
            b.signal(signal.SIGCONT)
            coordinator.kill()
            coordinator.flags = (*flags, "2")
            time.sleep(0.5)  # the others have failed to connect by then
            coordinator.start()
            wait_for("rounds without a", lambda: last_round(coordinator) > 30)
            c.signal(signal.SIGSTOP)
            before = votes_of(coordinator, "a")
            a.command.append("--overwrite")
            a.start()
            wait_for("rounds with a", lambda: votes_of(coordinator, "a") > before + 5)
            coordinator.kill()
            killed_at = last_round(coordinator)
            time.sleep(0.5)
            coordinator.start()
            c.signal(signal.SIGCONT)
            hashes = [worker.result(PATIENCE_S)["param_hash"] for worker in workers]
            code = coordinator.stop()
            wrong += [e for e in coordinator.events("refused") if e["kind"] == "handshake"]
            _, records, end = coordinator.journal()
        finally:
            for process in (*workers, coordinator):
                if process.process and process.process.poll() is None:
                    process.process.send_signal(signal.SIGCONT)
                    process.kill()
    print("killed at round", killed_at, "rounds", len(records), "hashes", hashes, "journal", end, "code", code)
    print("wrong:", *wrong, sep="\n")
    good = not wrong and code == 0 and len(records) == STEPS and set(hashes) == {end["params_hash"]}
    return 0 if good and killed_at < STEPS - 1 else 1


if __name__ == "__main__":
    sys.exit(main())
