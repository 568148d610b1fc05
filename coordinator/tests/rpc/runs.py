# A run of `pride serve` and workers for a test, in a folder of its own, and what a test finds wrong.
# SPDX-License-Identifier: Apache-2.0
import pathlib
import sys
import tempfile
import time

from processes import Coordinator, Worker, last_round, wait_until

PATIENCE_S = 120
ROUNDS = 120
LONG = 400
FLAGS = ("--dead-after", "2", "--most-grace", "1", "--parameters-every", "20")

faults = []


def expect(what, is_so):
    if not is_so:
        faults.append(what)
        print("FAULT:", what, flush=True)


class Run:
    def __init__(self, pride, program, folder):
        self.program, self.folder = program, pathlib.Path(folder)
        self.coordinator = Coordinator(pride, self.folder / "journal", *FLAGS)
        self.coordinator.start()
        self.workers = []

    def worker(self, name, port=None, rounds=ROUNDS, **settings):
        settings = {"pause_ms": 5, "secret": self.folder / f"{name}.secret", **settings}
        worker = Worker([self.program, f"127.0.0.1:{port or self.coordinator.port}", name, str(rounds),
                         *(f"{key}={value}" for key, value in settings.items())])
        worker.start()
        self.workers.append(worker)
        return worker

    def wait_for_round(self, n):
        wait_until(f"round {n}", lambda: last_round(self.coordinator) >= n, PATIENCE_S)

    def check_end(self, rounds=ROUNDS):
        results = [worker.result(PATIENCE_S) for worker in self.workers]
        expect(f"stopped with {self.coordinator.process.poll()}", self.coordinator.stop() == 0)
        _, records, end = self.coordinator.journal()
        expect(f"{len(records)} records", [r["round"] for r in records] == list(range(rounds)))
        for result in results:
            expect(f"{result} is not the journal's {end}",
                   result["hash"] == end["params_hash"] and result["rounds"] == rounds)
        for record in records:
            numbers = [voter["number"] for voter in record["voters"]]
            expect(f"voted twice: {record}", len(set(numbers)) == len(numbers))
        return results


def main(tests):
    pride, program, *names = sys.argv[1:]
    for test in tests:
        if names and test.__name__ not in names:
            continue
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            run = Run(pride, program, folder)
            try:
                test(run)
            finally:
                for process in [run.coordinator, *run.workers]:
                    if process.process.poll() is None:
                        process.kill()
        print(f"{test.__name__}: {time.monotonic() - began:.1f} s", flush=True)
    print("faults:", len(faults))
    return 1 if faults else 0
