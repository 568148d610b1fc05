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
    """A worker that waits for others ends on an interrupt, and so does one whose coordinator is gone."""
    coordinator = Coordinator(pride, folder, "--min-workers", "2")
    coordinator.start()
    for gone in (False, True):
        worker = Worker([pride, "train", *FLAGS, "--coordinator", f"127.0.0.1:{coordinator.port}"])
        worker.start()
        wait_until("it has joined", lambda: len(coordinator.events("joined")) > gone, PATIENCE_S)
        time.sleep(1)
        if gone:
            coordinator.kill()
        worker.signal(signal.SIGINT)
        _, err = worker.process.communicate(timeout=40)
        if worker.process.returncode == 0 or "interrupted" not in err:
            print("interrupted worker:", worker.process.returncode, err)
            return False
    return True


def says_that_nobody_listens(pride):
    done = subprocess.run([pride, "train", *FLAGS, "--coordinator", "127.0.0.1:1", "--timeout", "6"],
                          capture_output=True, text=True, timeout=PATIENCE_S)
    good = "still trying 127.0.0.1:1" in done.stderr and "nothing listens there" in done.stderr.splitlines()[-1]
    return good or print("alone:", done.stderr)


def main():
    pride = sys.argv[1]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make_certificates(pride, folder / "certs")
        coordinator = Coordinator(pride, folder / "journal", "--certs", str(folder / "certs/server"),
                                  "--dead-after", "3", "--most-grace", "2", "--parameters-every", "20")
        # what no method changes is shown with one
        vote = sys.argv[2] == "dlion-vote"
        said = not vote or says_that_nobody_listens(pride) and ends_while_it_waits(pride, folder / "lonely")
        coordinator.start()
        workers = [Worker([pride, "train", *FLAGS, "--coordinator", f"localhost:{coordinator.port}",
                           "--certificates", str(folder / "certs/workers" / site), "--out", str(folder / site)])
                   for site in "abc"]
        try:
            for worker in workers:
                worker.start()
            wait_until("all have joined", lambda: len(coordinator.events("joined")) >= 3, PATIENCE_S)
            workers[1].signal(signal.SIGSTOP)  # the run would be over before the second process is there
            twice = subprocess.run([*workers[1].command, "--overwrite"], capture_output=True, text=True,
                                   timeout=PATIENCE_S)
            workers[1].signal(signal.SIGCONT)
            said = said and "uses this folder" in twice.stderr
            workers[0].kill()
            wait_until("rounds without a", lambda: last_round(coordinator) > 30, PATIENCE_S)
            workers[0].command.append("--overwrite")
            workers[0].start()
            wait_until("rounds with a", lambda: last_round(coordinator) > 50, PATIENCE_S)
            coordinator.kill()
            time.sleep(0.5)  # the others have failed to connect by then
            coordinator.start()
            hashes = [worker.result(PATIENCE_S)["param_hash"] for worker in workers]
            code = coordinator.stop()
            said = said and not [e for e in coordinator.events("refused") if e["kind"] == "handshake"]
            _, records, end = coordinator.journal()
        finally:
            for process in (*workers, coordinator):
                if process.process.poll() is None:
                    process.kill()
    print("twice:", twice.stderr)
    print("rounds", len(records), "hashes", hashes, "journal", end, "code", code)
    return 0 if said and code == 0 and len(records) == STEPS and set(hashes) == {end["params_hash"]} else 1


if __name__ == "__main__":
    sys.exit(main())
