# `pride serve` and three workers as processes: killed and restarted, cut off, and a second coordinator
# on the same journal. Every worker ends with the parameters that a replay of the journal gives.
# usage: run_test.py PRIDE TEST_WORKER [NAME of one test]
# SPDX-License-Identifier: Apache-2.0
import ctypes
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

from processes import Coordinator, Wire, last_round, wait_until
from runs import FLAGS, LONG, PATIENCE_S, expect, main


def workers_end_alike(run):
    for name in "abc":
        run.worker(name)
    results = run.check_end()
    expect(f"few ballots counted: {results}", all(r["counted"] > 0 for r in results))
    left, lost = ([e["name"] for e in run.coordinator.events(kind)] for kind in ("left", "lost"))
    expect(f"left {left}, lost {lost}", sorted(left) == ["a", "b", "c"] and lost == [])


def orders_are_obeyed(run):
    control = run.coordinator.folder / "control.txt"

    def order(*lines):
        before = len(run.coordinator.events("control"))
        control.write_text("".join(line + "\n" for line in lines))
        wait_until("the order", lambda: len(run.coordinator.events("control")) > before, PATIENCE_S)
        return run.coordinator.events("control")[-1]

    for name in "abc":
        run.worker(name, rounds=10**6, pause_ms=20, steps=150)
    run.wait_for_round(20)
    said = order("# longer", "steps 100000", "eject c", "quorum 2")
    expect(f"orders {said}", said["orders"] == ["steps 100000", "quorum 2", "eject c"])
    ejected = run.workers.pop()
    _, err = ejected.process.communicate(timeout=PATIENCE_S)
    expect(f"the ejected worker: {err}", ejected.process.returncode != 0 and "has ejected this worker" in err)
    run.coordinator.kill()
    run.coordinator.start()
    run.wait_for_round(151)
    control.write_text("quorum two\n")
    wait_until("a warning", lambda: any("control.txt:1: not an order: 'quorum two'" in e["what"]
                                        for e in run.coordinator.events("warning")), PATIENCE_S)
    for text, part in (("finish 3\n", "is the earliest end"), ("\ufeffquorum 0\n", "not an order: 'quorum 0'"),
                       ("eject nobody\neject c\nsteps 100000\n", "no worker of this name")):
        control.write_text(text)
        wait_until(part, lambda part=part: any(part in e["what"] for e in run.coordinator.events("warning")), PATIENCE_S)
    control.unlink()
    os.mkfifo(control)
    wait_until("a warning", lambda: any("is not a regular file" in e["what"] for e in run.coordinator.events("warning")),
               PATIENCE_S)
    control.unlink()
    last = last_round(run.coordinator) + 100
    order("steps 100000", "eject c", f"finish {last}")
    results = [worker.result(PATIENCE_S) for worker in run.workers]
    expect(f"ends {results}", all(r["rounds"] == last + 1 for r in results) and len({r["hash"] for r in results}) == 1)
    ends = [e["end"] for e in run.coordinator.events("control") if "end" in e]
    expect(f"the log's end {ends}", ends in ([], [f"the run is at its end (step {last + 1})"]))
    run.coordinator.stop()
    _, records, _ = run.coordinator.journal()
    expect(f"{len(records)} records", len(records) == last + 1)


def killed_worker_comes_back(run):
    for name in "abc":
        run.worker(name, rounds=LONG, pause_ms=20)
    run.wait_for_round(20)
    run.workers[0].kill()
    wait_until("the loss in the log", lambda: any(e["name"] == "a" for e in run.coordinator.events("lost")))
    run.workers[0].start()
    results = run.check_end(LONG)
    expect(f"a is not counted again: {results[0]}", results[0]["counted"] > 0)
    numbers = {e["number"] for e in run.coordinator.events("joined") if e["name"] == "a"}
    expect(f"a came back under another number: {numbers}", len(numbers) == 1)


def killed_coordinator_goes_on(run):
    for name in "abc":
        run.worker(name)
    for n in (15, 40, 70):
        run.wait_for_round(n)
        run.coordinator.kill()
        time.sleep(0.5)
        run.coordinator.start()
    run.check_end()


def stopped_coordinator_goes_on(run):
    for name in "abc":
        run.worker(name)
    for n in (15, 40, 70):
        run.wait_for_round(n)
        expect("stopped", run.coordinator.stop() == 0)
        run.coordinator.start()
    run.check_end()


def cut_wires_are_mended(run):
    wire = Wire(run.coordinator.port)
    run.worker("a", wire.port)
    for name in "bc":
        run.worker(name)
    for n in (10, 30, 50):
        run.wait_for_round(n)
        wire.cut()
    run.wait_for_round(60)
    wire.hang()
    run.wait_for_round(80)
    wire.mend()
    run.check_end()
    wire.close()


def unread_output_stops_nobody(run):
    """600 rounds as JSON lines, of which nobody reads more than the first."""
    run.coordinator.stop()
    run.coordinator.drains = False
    run.coordinator.start()
    for name in "abc":
        run.worker(name, rounds=600, pause_ms=1)
    run.check_end(600)
    size = (run.coordinator.folder / "coordinator.jsonl").stat().st_size
    expect(f"{size} bytes fit into a pipe", size > 1 << 17)


def another_secret_is_refused(run):
    for name in "abc":
        run.worker(name)
    run.wait_for_round(10)
    thief = run.worker("a", secret=run.folder / "thief.secret")
    run.workers.remove(thief)
    try:
        thief.result(PATIENCE_S)
        expect("a second a was taken", False)
    except RuntimeError as error:
        expect(f"refused with {error}", "refuses worker a" in str(error)
               and f"that in {run.folder / 'thief.secret'}, a new one, because there was none" in str(error))
    run.check_end()
    expect("not in the log", any("another secret" in e["why"] for e in run.coordinator.events("refused")))


def commands_say_what_is_wrong(run):
    """Exit codes and texts of `pride serve`, `certs` and `journal`."""
    pride, folder = run.coordinator.pride, run.folder

    def expect_failure(code, part, *arguments):
        done = subprocess.run([pride, *map(str, arguments)], capture_output=True, text=True, timeout=PATIENCE_S)
        expect(f"{arguments}: {done.returncode}, {done.stderr}", done.returncode == code and part in done.stderr)

    serve = ("serve", "--dir", folder / "other")
    expect_failure(2, "certificates are needed", *serve, "--listen", "0.0.0.0:0")
    expect_failure(2, "is not HOST:PORT", *serve, "--listen", "4770")
    port = run.coordinator.port
    expect_failure(1, f"127.0.0.1:{port}: the port is in use; give --listen another port than {port}", *serve,
                   "--listen", f"127.0.0.1:{port}")
    expect_failure(1, f"cannot listen on --http 127.0.0.1:{port}: Address already in use; give --http another port than "
                   f"{port}", *serve, "--listen", "127.0.0.1:0", "--http", f"127.0.0.1:{port}")
    shown = Coordinator(pride, folder / "shown", "--http", "127.0.0.1:0")
    shown.start()
    http = shown.http.split("/")[2]
    expect_failure(1, f"cannot listen on --http {http}: Address already in use", *serve, "--listen", "127.0.0.1:0",
                   "--http", http)
    expect("the other coordinator ends", shown.stop() == 0)
    expect_failure(1, "cannot read", *serve, "--listen", "127.0.0.1:0", "--certs", folder / "nothing")
    expect_failure(1, "another coordinator (process", "serve", "--dir", run.coordinator.folder, "--listen", "127.0.0.1:0")
    expect_failure(2, "is not an integer", *serve, "--quorum", "0")
    expect_failure(2, "--dir is required", "serve")
    expect_failure(1, "holds no journal", "journal", folder / "nothing")
    certs = folder / "certs"
    expect_failure(1, "has no CA", "certs", "worker", certs, "alice")
    for command in (("init", certs), ("server", certs, "--name", "localhost"), ("worker", certs, "alice"),
                    ("revoke", certs, "alice"), ("list", certs, "--json")):
        subprocess.run([pride, "certs", *map(str, command)], check=True, stdout=subprocess.DEVNULL)
    expect_failure(1, "has a CA already", "certs", "init", certs)
    expect_failure(1, "and no CA; a CA needs its own folder", "certs", "init", run.coordinator.folder)
    expect_failure(1, "--overwrite replaces it", "certs", "server", certs, "--name", "localhost")
    subprocess.run([pride, "certs", "server", str(certs), "--name", "localhost", "--overwrite"], check=True,
                   stdout=subprocess.DEVNULL)
    expect_failure(2, "the name of a worker", "certs", "worker", certs, "../bob")
    expect_failure(1, "no certificate for bob", "certs", "revoke", certs, "bob")
    revoked = (certs / "server/revoked.txt").read_text()
    expect(f"not in the server's list: {revoked}", " alice " in revoked)
    keys = [f.stat().st_mode & 0o777 for f in certs.rglob("key.pem")] + [(certs / "ca.key").stat().st_mode & 0o777]
    expect(f"modes {keys}", keys == [0o600] * 3)
    expect("stopped", run.coordinator.stop() == 0)


def damaged_journals_are_named(run):
    """What `pride journal` and `pride serve` say of a torn end and of missing files."""
    for name in "ab":
        run.worker(name, rounds=30)
    run.check_end(30)
    folder = run.coordinator.folder

    def journal(*flags):
        return subprocess.run([run.coordinator.pride, "journal", str(folder), *flags], capture_output=True, text=True,
                              timeout=PATIENCE_S)

    last = max(folder.glob("records-*"))
    size = last.stat().st_size
    os.truncate(last, size - 5)
    said = journal("--replay")
    expect(f"of a torn end: {said}", said.returncode == 0 and "pride: warning: " in said.stderr
           and "A coordinator cuts them off at its start; the journal ends before round 29" in said.stderr)
    expect("not in the JSON", "torn at byte" in json.loads(said.stdout.splitlines()[0])["notes"][0])
    run.coordinator.start()
    expect("stopped", run.coordinator.stop() == 0)
    notes = [e["note"] for e in run.coordinator.events("journal")]
    expect(f"in the log: {notes}", len(notes) == 1 and f"{last}: torn at byte" in notes[0])
    expect("it was not cut off", journal().stderr == "")
    (folder / "registrations").rename(folder / "registrations.away")
    said = journal()
    expect(f"of registrations: {said}", said.returncode == 1 and f"{folder}/registrations: missing" in said.stderr)
    try:
        run.coordinator.start()
        expect("served without registrations", False)
    except RuntimeError as error:
        expect(f"served: {error}", "/registrations: missing" in str(error))


def damaged_journals_are_repaired(run):
    """One flipped bit in old parameters, in a record, and bytes after the last one: a good copy goes on."""
    for name in "ab":
        run.worker(name, rounds=60)
    run.check_end(60)
    folder, pride = run.coordinator.folder, run.coordinator.pride
    good = run.coordinator.journal()[2]

    def flip(file, at):
        bytes_ = bytearray(file.read_bytes())
        bytes_[at] ^= 1
        file.write_bytes(bytes_)

    def call(*arguments):
        return subprocess.run([pride, "journal", *map(str, arguments)], capture_output=True, text=True, timeout=PATIENCE_S)

    old = sorted(folder.glob("parameters-*"))[1]
    flip(old, 1000)
    said = call(folder)
    expect(f"{said}", said.returncode == 1 and str(old) in said.stderr and "pride journal --repair NEW" in said.stderr)
    said = call(folder, "--repair", run.folder / "first")
    expect(f"{said}", said.returncode == 0 and f"left out: {old}, which is damaged" in said.stderr)
    end = json.loads(call(run.folder / "first", "--replay").stdout.splitlines()[-1])
    expect(f"{end} is not {good}", end == good)
    records = max(folder.glob("records-*"))
    with records.open("ab") as file:
        file.write(os.urandom(100))
    said = call(folder, "--repair", run.folder / "second")
    expect(f"{said}", said.returncode == 0 and f"left out: 100 bytes of {records}" in said.stderr)
    expect("not whole", json.loads(call(run.folder / "second", "--replay").stdout.splitlines()[-1]) == good)
    described = json.loads(call(run.folder / "second").stdout.splitlines()[5])
    flip(records, described["offset"] + 3)
    said = call(folder, "--repair", run.folder / "third")
    expect(f"{said}", said.returncode == 0 and "left out: rounds before 5: records are missing between" in said.stderr)
    end = json.loads(call(run.folder / "third", "--replay").stdout.splitlines()[-1])
    expect(f"{end}", end["params_hash"] == good["params_hash"] and end["replayed_from"] > 5)
    expect(f"no word of parameters: {said}", ", parameters before round " in said.stderr)
    said = call(run.folder / "third", "--repair", run.folder / "fourth")
    expect(f"{said}", said.returncode == 0 and "nothing was left out" in said.stderr)
    expect("into a folder with files", call(folder, "--repair", run.folder / "third").returncode == 1)
    run.coordinator.folder = run.folder / "third"
    run.coordinator.start()
    expect("stopped", run.coordinator.stop() == 0)


def samples_weigh_what_they_say(run):
    """Real numbers of samples keep their proportion without --most-weight."""
    run.coordinator.stop()
    run.coordinator.flags = (*FLAGS, "--weights", "samples", "--min-workers", "2")
    run.coordinator.start()
    workers = [run.worker("small", rounds=20, weight=5000), run.worker("large", rounds=20, weight=15000)]
    for worker in workers:
        worker.result(PATIENCE_S)
    run.coordinator.stop()
    weights = {voter["name"]: voter["weight"] for voter in run.coordinator.events("round")[5]["voters"]}
    expect(f"weights {weights}", weights == {"small": 1, "large": 3})


def a_signal_to_any_thread_stops_it(run):
    """A thread that a library began before main() does not block signals."""
    pid = run.coordinator.process.pid
    free = [int(task.name) for task in pathlib.Path(f"/proc/{pid}/task").iterdir()
            if not int((task / "status").read_text().split("SigBlk:")[1].split()[0], 16) >> (signal.SIGTERM - 1) & 1]
    ctypes.CDLL(None).tgkill(pid, max([pid, *free]), signal.SIGTERM)
    code = run.coordinator.process.wait(30)
    expect(f"{code} after a signal to one of {free}", code == 0)
    expect("not in the log", run.coordinator.events()[-1]["event"] == "stopped")


def the_end_of_a_certificate_is_named(run):
    """In hours on the last day; and once more when it has come, where `faketime` can make a certificate of yesterday."""
    run.coordinator.stop()
    certs = run.folder / "certs"
    make = [run.coordinator.pride, "certs", "server", certs, "--name", "localhost", "--days", "1", "--overwrite"]
    subprocess.run([run.coordinator.pride, "certs", "init", certs], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
    run.coordinator.flags = (*FLAGS, "--certificates", str(certs / "server"))
    run.coordinator.start()

    def warned(part):
        return any(part in e["what"] for e in run.coordinator.events("warning"))

    expect("no hours", warned("the certificate of the server, or its CA, expires in 24 hours"))
    yesterday = {**os.environ, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    if "ASAN_OPTIONS" not in os.environ and shutil.which("faketime"):  # each must be the first library
        subprocess.run(["faketime", "-f", "-86390s", *make], check=True, stdout=subprocess.DEVNULL, env=yesterday)
        wait_until("expires in 1 hour", lambda: warned("expires in 1 hour"), PATIENCE_S)
        wait_until("has expired", lambda: warned("has expired"), PATIENCE_S)


if __name__ == "__main__":
    sys.exit(main((workers_end_alike, orders_are_obeyed, killed_worker_comes_back, killed_coordinator_goes_on,
                   stopped_coordinator_goes_on, cut_wires_are_mended, unread_output_stops_nobody,
                   another_secret_is_refused, commands_say_what_is_wrong, damaged_journals_are_named,
                   samples_weigh_what_they_say, damaged_journals_are_repaired, a_signal_to_any_thread_stops_it,
                   the_end_of_a_certificate_is_named)))
