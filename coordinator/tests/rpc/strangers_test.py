# Who should not call `pride serve`, and does, beside workers that should: connections without a call, floods of
# frames, requests to the status page. Workers lose nothing, and the coordinator goes on.
# usage: strangers_test.py PRIDE TEST_WORKER [NAME of one test]
# SPDX-License-Identifier: Apache-2.0
import itertools
import os
import pathlib
import re
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import http2
from processes import last_round, wait_until
from runs import FLAGS, LONG, PATIENCE_S, expect, main

if "ASAN_OPTIONS" in os.environ:  # peak memory is measured: freed memory is not to be kept
    os.environ["ASAN_OPTIONS"] += ":quarantine_size_mb=1"


def other_hosts_read_nothing(run):
    run.coordinator.stop()
    run.coordinator.flags = (*FLAGS, "--http", "127.0.0.1:0")
    run.coordinator.start()
    port = int(run.coordinator.http.rstrip("/").rsplit(":", 1)[1])
    for host, code in ((f"127.0.0.1:{port}", b"200"), (f"LocalHost:{port}", b"200"), ("evil.example", b"421"),
                       ("localhost\r\nHost: evil.example", b"421")):
        with socket.create_connection(("127.0.0.1", port), 10) as line:
            line.sendall(f"GET /status.json HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            answer = line.recv(100)
            expect(f"{host}: {answer}", answer.startswith(b"HTTP/1.1 " + code))
    with urllib.request.urlopen(run.coordinator.http + "metrics", timeout=10) as answer:
        metrics = answer.read().decode()
    rules = (pathlib.Path(__file__).parents[2] / "app/serve/pride-serve.rules.yml").read_text()
    for name in set(re.findall(r"pride_[a-z_]+", rules)):
        expect(f"{name} of the rules is no metric", f"# TYPE {name} " in metrics)
    run.coordinator.process.send_signal(signal.SIGTERM)
    expect("stopped by a second signal", run.coordinator.stop() == 0)
    run.coordinator.flags = (*FLAGS, "--http", "0.0.0.0:0")
    run.coordinator.start()
    wait_until("a warning", lambda: any("there is no password" in e["what"] for e in run.coordinator.events("warning")))
    expect("stopped", run.coordinator.stop() == 0)


def idle_connections_hold_nobody_up(run):
    """60 connections to the status page that say nothing, or half a request: others are answered, and these end."""
    run.coordinator.stop()
    run.coordinator.flags = (*FLAGS, "--http", "127.0.0.1:0")
    run.coordinator.start()
    host, port = run.coordinator.http.removeprefix("http://").rstrip("/").split(":")

    def ask(path):
        with socket.create_connection((host, int(port)), 10) as line:
            line.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            return b"".join(iter(lambda: line.recv(1 << 16), b"")).decode()

    idle = [socket.create_connection((host, int(port)), 10) for _ in range(60)]
    for line in idle[::2]:
        line.send(b"GET /status.json HT")
    began = time.monotonic()
    for path, part in (("/", "<!doctype html>"), ("/status.json?x", '"open_round":0'), ("/metrics", "pride_open_round 0")):
        answer = ask(path)
        expect(f"{path}: {answer[:200]}", answer.startswith("HTTP/1.1 200 OK\r\n") and part in answer
               and "Content-Security-Policy: default-src 'none'" in answer)
    expect(f"answers took {time.monotonic() - began:.1f} s", time.monotonic() - began < 5)
    expect("no 404", ask("/x").startswith("HTTP/1.1 404 "))
    for line in idle:
        line.settimeout(20)
        try:
            while line.recv(4096):
                pass
        except ConnectionResetError:
            pass
    expect("stopped", run.coordinator.stop() == 0)


def dripping_connections_end(run):
    """70 connections to the status page that send a byte a second, where 64 are served at a time: all end, and others
    are answered."""
    run.coordinator.stop()
    run.coordinator.flags = (*FLAGS, "--http", "127.0.0.1:0")
    run.coordinator.start()
    host, port = run.coordinator.http.removeprefix("http://").rstrip("/").split(":")
    began = time.monotonic()
    lines = [socket.create_connection((host, int(port)), 10) for _ in range(70)]
    left = lines[:64]
    for line in lines:
        line.sendall(b"GET / HTTP/1.1\r\n")
    while left and time.monotonic() < began + 30:
        for line in list(left):
            try:
                line.sendall(b"x")
                ended = select.select([line], [], [], 0)[0] and not line.recv(4096)
            except OSError:
                ended = True
            if ended:
                left.remove(line)
        time.sleep(1)
    expect(f"{len(left)} of 64 are held after 30 s", not left)
    with socket.create_connection((host, int(port)), 10) as line:
        line.settimeout(30)
        line.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        expect("no answer after the others", line.recv(4096).startswith(b"HTTP/1.1 200 OK"))
    for line in lines:
        line.close()
    expect("stopped", run.coordinator.stop() == 0)


def many_connections_end_nobody(run):
    """1,200 connections each to the port of workers and to the status page, of a process that may open 300 files."""
    run.coordinator.stop()
    run.coordinator.flags = (*FLAGS, "--http", "127.0.0.1:0")
    run.coordinator.descriptors = (300, 300)
    run.coordinator.start()
    for name in "abc":
        run.worker(name, rounds=LONG)
    run.wait_for_round(10)
    page = int(run.coordinator.http.rstrip("/").rsplit(":", 1)[1])
    lines = [socket.create_connection(("127.0.0.1", port), 10) for _ in range(1200)
             for port in (run.coordinator.port, page)]
    run.wait_for_round(60)  # parameters are written meanwhile
    late = run.worker("late", rounds=LONG)
    run.check_end(LONG)
    for line in lines:
        line.close()
    expect(f"ended with {late.process.returncode}", late.process.returncode == 0)
    whys = {e["why"] for e in run.coordinator.events("refused")}
    expect(f"refused: {whys}", any("too many connections" in why for why in whys))
    expect("failed", not run.coordinator.events("failed") and not run.coordinator.events("warning"))


def the_soft_limit_of_files_is_raised(run):
    run.coordinator.stop()
    run.coordinator.descriptors = (256, 2048)
    run.coordinator.start()
    limits = pathlib.Path(f"/proc/{run.coordinator.process.pid}/limits").read_text()
    soft = limits.split("Max open files")[1].split()[0]
    expect(f"soft limit {soft}", soft == "2048")


def ends(port, context, kind, most=20_000_000):
    """Whether the server ends a connection that sends so many bytes of frames."""
    line = None
    while line is None:
        try:
            line = http2.Line(("127.0.0.1", port), context)
        except OSError:  # after a flood its address has to wait
            time.sleep(0.1)
    frames, until = itertools.chain((http2.PREFACE,), http2.KINDS[kind]()), time.monotonic() + PATIENCE_S
    ended = False
    while not ended and line.sent < most and time.monotonic() < until:
        ended = not line.turn(lambda: b"".join(itertools.islice(frames, 200)))
    line.close()
    return ended


def check_went_on(run, end):
    status = pathlib.Path(f"/proc/{run.coordinator.process.pid}/status").read_text()
    peak_mb = int(status.split("VmHWM:")[1].split()[0]) / 1000
    expect(f"{peak_mb:.0f} MB at most", peak_mb < 700)
    last = last_round(run.coordinator) + 50
    end.write_text(str(last))
    run.check_end(last)


def floods_without_certificates_end_too(run):
    """gRPC reads them faster than through TLS, in the thread that took the connection, too."""
    end = run.folder / "end"
    end.write_text("1000000000")
    for name in "abc":
        run.worker(name, rounds=f"@{end}")
    run.wait_for_round(10)
    for kind in ("open_only",) * 6 + ("reset", "continuation"):
        expect(f"{kind} goes on", ends(run.coordinator.port, None, kind, 10**9))
    check_went_on(run, end)


def floods_of_frames_end_with_their_connection(run):
    """Calls that are opened and reset, headers without an end, and other frames that cost a server much: of strangers,
    of a worker whose certificate was revoked, and of one who has a good one."""
    run.coordinator.stop()
    certs = run.folder / "certs"

    def command(*words):
        subprocess.run([run.coordinator.pride, "certs", *map(str, words)], check=True, stdout=subprocess.DEVNULL)

    command("init", certs)
    command("server", certs, "--name", "localhost,127.0.0.1")
    for name in ("a", "b", "c", "mallory", "revoked"):
        command("worker", certs, name)
    command("revoke", certs, "revoked")
    run.coordinator.flags = ("--dead-after", "30", *FLAGS[2:], "--certificates", str(certs / "server"))
    run.coordinator.start()
    end = run.folder / "end"
    end.write_text("1000000000")
    for name in "abc":
        run.worker(name, rounds=f"@{end}", certs=certs / "workers" / name)
    run.wait_for_round(10)
    for who in (None, "revoked", "mallory"):
        context = http2.client_context(who and certs / "workers" / who)
        for kind in http2.KINDS:
            if who == "mallory" and kind == "long_header":
                continue  # as slow for the caller as for the server
            expect(f"{kind} of {who} goes on", ends(run.coordinator.port, context, kind))
    check_went_on(run, end)
    expect("a worker was lost", not run.coordinator.events("lost"))
    whys = {e["why"] for e in run.coordinator.events("refused")}
    for part in ("no certificate", "calls beyond", "bytes beyond"):
        expect(f"{part} is not among {whys}", any(part in why for why in whys))


if __name__ == "__main__":
    sys.exit(main((other_hosts_read_nothing, idle_connections_hold_nobody_up, dripping_connections_end,
                   many_connections_end_nobody, the_soft_limit_of_files_is_raised,
                   floods_of_frames_end_with_their_connection, floods_without_certificates_end_too)))
