#!/usr/bin/env python3
# Chaos: workers of a coordinator are killed, stopped, cut off and restarted at random, and so is the
# coordinator; at the end all have the parameters that an undisturbed replay of the journal gives.
# SPDX-License-Identifier: Apache-2.0
"""usage: chaos.py PRIDE TEST_WORKER [--minutes M] [--workers N] [--seed S] [--coords N] [--every S] [--goodput]

One fault every S seconds (default 1.5), for M minutes (default 1); a summary as JSON on the last line.
--goodput: minutes without a fault and minutes in which one worker is killed and started again, in turn.
"""
import argparse
import calendar
import collections
import json
import pathlib
import random
import signal
import statistics
import sys
import tempfile
import time

from processes import Coordinator, Wire, Worker, cpu_seconds, last_round, wait_until

PATIENCE_S = 180
EVERLASTING = 10**9


class Site:
    """A worker behind a wire of its own."""

    def __init__(self, program, name, folder, port, args):
        self.name, self.wire = name, Wire(port)
        self.end_file = folder / "rounds"
        self.worker = Worker([program, f"127.0.0.1:{self.wire.port}", name, f"@{self.end_file}",
                              f"secret={folder / (name + '.secret')}", f"coords={args.coords}",
                              f"pause_ms={args.pause_ms}", "patience_s=300"])
        self.worker.start()
        self.faulty = None  # (fault, when it is mended)

    def begin(self, fault, now, length):
        self.faulty = (fault, now + length)
        if fault == "kill":
            self.worker.kill()
        elif fault == "stop":
            self.worker.signal(signal.SIGSTOP)
        elif fault == "hang":
            self.wire.hang()
        elif fault == "cut":
            self.wire.cut()

    def mend(self):
        fault, self.faulty = self.faulty[0], None
        if fault == "kill":
            self.worker.start()
        elif fault == "stop":
            self.worker.signal(signal.SIGCONT)
        elif fault == "hang":
            self.wire.mend()


class Chaos:
    def __init__(self, args, folder):
        self.args, self.folder, self.random = args, folder, random.Random(args.seed)
        self.coordinator = Coordinator(args.pride, folder / "journal", "--dead-after", "2", "--most-grace", "1",
                                       "--parameters-every", "50", "--min-workers", "2")
        self.coordinator.start()
        self.cpu_s = 0
        (folder / "rounds").write_text(str(EVERLASTING))
        self.sites = [Site(args.program, f"w{i}", folder, self.coordinator.port, args)
                      for i in range(args.workers)]
        self.faults = collections.Counter()
        self.recovering = []  # (site's name, fault, when it was mended)
        self.goodput = collections.defaultdict(list)  # rounds per second of each minute

    def may_fail(self):
        return [site for site in self.sites if site.faulty is None]

    def step(self, now):
        for site in self.sites:
            if site.faulty and now >= site.faulty[1]:
                self.recovering.append((site.name, site.faulty[0], time.time()))
                site.mend()
        fault = self.random.choices(["kill", "stop", "hang", "cut", "coordinator"], [4, 3, 3, 3, 2])[0]
        if fault == "coordinator":
            self.cpu_s += cpu_seconds(self.coordinator.process.pid)
            self.coordinator.kill()
            self.recovering.append((None, fault, time.time()))
            time.sleep(self.random.uniform(0, 1))
            self.coordinator.start()
        else:
            sites = self.may_fail()
            if len(sites) <= 2:
                return
            self.random.choice(sites).begin(fault, now, self.random.uniform(0.2, 5))
        self.faults[fault] += 1

    def minute(self, kills):
        """Rounds per second of a minute; with kills a worker is away for up to 5 s of it."""
        began, rounds = time.monotonic(), last_round(self.coordinator)
        if kills:
            site = self.random.choice(self.sites)
            time.sleep(self.random.uniform(0, 30))
            site.begin("kill", time.monotonic(), 0)
            time.sleep(self.random.uniform(0.2, 5))
            self.recovering.append((site.name, "kill", time.time()))
            site.mend()
            self.faults["kill"] += 1
        time.sleep(max(began + 60 - time.monotonic(), 0))
        return (last_round(self.coordinator) - rounds) / (time.monotonic() - began)

    def run_goodput(self):
        wait_until("the first rounds", lambda: last_round(self.coordinator) >= 50, PATIENCE_S)
        for minute in range(int(self.args.minutes)):
            self.goodput["one kill" if minute % 2 else "none"].append(self.minute(minute % 2))

    def run(self):
        wait_until("the first rounds", lambda: last_round(self.coordinator) >= 3, PATIENCE_S)
        began = time.monotonic()
        while (now := time.monotonic()) < began + 60 * self.args.minutes:
            self.step(now)
            time.sleep(self.args.every * self.random.uniform(0.5, 1.5))
        for site in self.sites:
            if site.faulty:
                self.recovering.append((site.name, site.faulty[0], time.time()))
                site.mend()

    def end(self):
        """All come back, go on for some rounds, and stop at the same one."""
        at = last_round(self.coordinator)
        wait_until("rounds after the last fault", lambda: last_round(self.coordinator) > at + 5, PATIENCE_S)
        self.last = last_round(self.coordinator) + 40
        (self.folder / "rounds").write_text(str(self.last))
        results = {site.name: site.worker.result(PATIENCE_S) for site in self.sites}
        self.cpu_s += cpu_seconds(self.coordinator.process.pid)
        self.stopped = self.coordinator.stop()
        return results

    def close(self):
        for site in self.sites:
            if site.worker.process.poll() is None:
                site.worker.kill()
            site.wire.close()
        if self.coordinator.process.poll() is None:
            self.coordinator.kill()

    def recovery_times(self):
        """Until the next round that counts the site's vote; until the next round, for the coordinator."""
        rounds = [(parse_time(e["time"]), {v["name"] for v in e["voters"]})
                  for e in self.coordinator.events("round")]
        times = collections.defaultdict(list)
        for name, fault, mended in self.recovering:
            after = next((t for t, voters in rounds if t > mended and (name is None or name in voters)), None)
            if after is not None:
                times[fault].append(after - mended)
        return times


def parse_time(text):
    whole, ms = text[:-1].split(".")
    return calendar.timegm(time.strptime(whole, "%Y-%m-%dT%H:%M:%S")) + int(ms) / 1000


def bytes_of_recoveries(chaos):
    """What each worker that was started again received until it was back."""
    lives = [out for site in chaos.sites for out in site.worker.outputs[1:]]
    return [int(out.split()[2]) for out in lives if out.startswith("joined after")]


def check(chaos, results):
    faults = []
    _, records, end = chaos.coordinator.journal()
    if [r["round"] for r in records] != list(range(len(records))):
        faults.append("the journal's rounds have gaps")
    for record in records:
        numbers = [voter["number"] for voter in record["voters"]]
        if len(set(numbers)) != len(numbers):
            faults.append(f"counted twice in round {record['round']}: {numbers}")
    for name, result in results.items():
        if result["hash"] != end["params_hash"]:
            faults.append(f"{name} ended with {result}, the journal with {end}")
    if chaos.stopped != 0:
        faults.append(f"the coordinator ended with {chaos.stopped}")
    return faults, records


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("pride")
    parser.add_argument("program")
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--coords", type=int, default=20_000)
    parser.add_argument("--pause-ms", type=int, default=20)
    parser.add_argument("--every", type=float, default=1.5)
    parser.add_argument("--goodput", action="store_true")
    args = parser.parse_args()
    print("seed", args.seed, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        chaos = Chaos(args, pathlib.Path(folder))
        try:
            chaos.run_goodput() if args.goodput else chaos.run()
            results = chaos.end()
            faults, records = check(chaos, results)
            times = chaos.recovery_times()
        finally:
            chaos.close()
    for fault in faults:
        print("FAULT:", fault)
    received = bytes_of_recoveries(chaos) or [0]
    counted = sum(len(record["voters"]) for record in records)
    print(json.dumps({
        "minutes": args.minutes, "workers": args.workers, "seed": args.seed, "rounds": len(records),
        "votes": counted, "faults": dict(chaos.faults), "wrong": len(faults),
        "recovery_s": {fault: {"median": round(statistics.median(t), 2), "longest": round(max(t), 2)}
                       for fault, t in times.items()},
        "bytes_of_a_restarted_worker": {"median": statistics.median(received), "most": max(received)},
        "rounds_per_s": {what: [round(x, 3) for x in each] for what, each in chaos.goodput.items()},
        "record_bytes": records[-1]["bytes"], "coordinator_cpu_s": round(chaos.cpu_s, 1)}))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
