# Strangers beside three honest workers under mutual TLS, with `ulimit -n 1024` (soft and hard): what becomes of
# the rate of rounds, of the workers, and of the coordinator's memory and descriptors. Not a part of the test suite.
# usage: unshare -n python3 flood.py PRIDE TEST_WORKER [ATTACK ...] [--seconds S] [--restart]   (root, for namespaces)
# --restart: a worker is killed 5 s into the attack and started again; the last column says when it was back
# attacks: tcp (5,000 connections of one address, dialled again as they end), tls (handshakes without a certificate),
# http2 (half-open HTTP/2 after TLS), namespaces (200 TCP connections from each of 20 addresses), page (5,000 to --http),
# reset and the other names in http2.py: frames on one TLS connection after the other, without a certificate;
# reset:mallory: with one; reset:namespaces: from each of 20 addresses
# SPDX-License-Identifier: Apache-2.0
import argparse
import datetime
import os
import pathlib
import select
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time

import http2
from processes import Coordinator, Worker, cpu_seconds, wait_until

ADDRESSES = 20


def raise_limit():
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (20000, 20000))


def hold(host, port, count, kind, until):
    """Keeps `count` connections, and dials again for each that ends."""
    context = ssl._create_unverified_context()
    context.set_alpn_protocols(["h2"])
    dialled = most = 0
    poll = select.poll()
    by_number = {}
    while time.monotonic() < until:
        for _ in range(min(count - len(by_number), 50)):
            line = socket.socket()
            line.settimeout(2)
            dialled += 1
            try:
                line.connect((host, port))
                if kind in ("tls", "http2"):
                    line = context.wrap_socket(line)
                    if kind == "http2":
                        line.sendall(http2.PREFACE)
            except OSError:
                line.close()
                continue
            by_number[line.fileno()] = line
            poll.register(line, select.POLLRDHUP | select.POLLHUP | select.POLLERR)
        most = max(most, len(by_number))
        for number, _ in poll.poll(1):
            poll.unregister(number)
            by_number.pop(number).close()
    print(dialled, most, len(by_number))


def attack(kind, port, page, seconds, certs):
    me = [sys.executable, __file__, "--hold"]
    kind, _, who = kind.partition(":")
    if "namespaces" in (kind, who):
        each = "tcp" if kind == "namespaces" else kind
        calls = [["ip", "netns", "exec", f"flood{i}", *me, f"10.99.{i}.1", str(port), "200", each, str(seconds)]
                 for i in range(ADDRESSES)]
    elif who:
        calls = [[*me, "127.0.0.1", str(port), str(certs / "workers" / who), kind, str(seconds)]]
    else:
        calls = [[*me, "127.0.0.1", str(page if kind == "page" else port), "5000",
                  "tcp" if kind == "page" else kind, str(seconds)]]
    return [subprocess.Popen(["nice", "-n", "19", *call], stdout=subprocess.PIPE, text=True, preexec_fn=raise_limit)
            for call in calls]


def sh(text):
    subprocess.run(text, shell=True, check=True)


def make_namespaces():
    for i in range(ADDRESSES):
        sh(f"ip netns add flood{i} && ip link add veth{i} type veth peer name eth0 netns flood{i} && "
           f"ip addr add 10.99.{i}.1/30 dev veth{i} && ip link set veth{i} up && "
           f"ip netns exec flood{i} ip addr add 10.99.{i}.2/30 dev eth0 && ip netns exec flood{i} ip link set eth0 up")


def remove_namespaces():
    for i in range(ADDRESSES):
        subprocess.run(["ip", "netns", "del", f"flood{i}"], stderr=subprocess.DEVNULL, check=False)


class Watch(threading.Thread):
    """The most memory and descriptors of a process."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.pid, self.rss, self.files, self.over = pid, 0, 0, False

    def run(self):
        while not self.over:
            status = pathlib.Path(f"/proc/{self.pid}/status").read_text()
            self.rss = max(self.rss, int(status.split("VmRSS:")[1].split()[0]) / 1000)
            self.files = max(self.files, len(os.listdir(f"/proc/{self.pid}/fd")))
            time.sleep(0.2)


def rounds(coordinator):
    return len(coordinator.events("round"))


def one(pride, program, kind, seconds, folder, restart):
    certs = folder / "certs"
    for command in (("init", certs), ("server", certs, "--name", "localhost,127.0.0.1"),
                    *(("worker", certs, name) for name in ("a", "b", "c", "mallory"))):
        subprocess.run([pride, "certs", *map(str, command)], check=True, stdout=subprocess.DEVNULL)
    coordinator = Coordinator(pride, folder / "journal", "--certs", str(certs / "server"), "--http", "127.0.0.1:0",
                              "--quorum", "2" if restart else "3")
    coordinator.descriptors = (1024, 1024)
    coordinator.host = "0.0.0.0"
    coordinator.start()
    end = folder / "end"
    end.write_text("1000000000")
    workers = [Worker([program, f"127.0.0.1:{coordinator.port}", name, f"@{end}", f"certs={certs}/workers/{name}",
                       "pause_ms=20", "coords=20000", "patience_s=120"]) for name in "abc"]
    for worker in workers:
        worker.start()
    wait_until("rounds", lambda: rounds(coordinator) > 20)
    before, began = rounds(coordinator), time.monotonic()
    time.sleep(15)
    quiet = (rounds(coordinator) - before) / (time.monotonic() - began)
    watch = Watch(coordinator.process.pid)
    watch.start()
    cpu = cpu_seconds(coordinator.process.pid)
    before, began = rounds(coordinator), time.monotonic()
    attackers = attack(kind, coordinator.port, int(coordinator.http.rstrip("/").rsplit(":", 1)[1]), seconds, certs)
    if restart:
        time.sleep(5)
        workers[2].kill()
        again = time.time()
        workers[2].start()
    said = [attacker.communicate()[0].split() for attacker in attackers]
    took = time.monotonic() - began
    under = (rounds(coordinator) - before) / took
    cpu = cpu_seconds(coordinator.process.pid) - cpu
    watch.over = True
    last = rounds(coordinator) + 20
    end.write_text(str(last))
    results = [worker.result(120) for worker in workers]
    stopped = coordinator.stop()
    _, records, ended = coordinator.journal()
    equal = all(result["hash"] == ended["params_hash"] for result in results)
    voters = min(len(record["voters"]) for record in records)
    back = ""
    if restart:
        joined = [e["time"] for e in coordinator.events("joined") if e["name"] == "c"][1:]
        seconds = [datetime.datetime.fromisoformat(text[:-1] + "+00:00").timestamp() - again for text in joined]
        back = f" {seconds[0]:.1f} |" if seconds else " - |"
    dialled, held = (sum(int(words[i]) for words in said) for i in (0, 1))
    print(f"| {kind} | {dialled:,} | {held:,} | {quiet:.1f} | {under:.1f} | {watch.rss:.0f} | {watch.files} | {cpu / took:.2f} "
          f"| {len(records)}, {voters} | {equal and stopped == 0} |{back}", flush=True)


def main():
    if sys.argv[1] == "--hold":
        host, port, count, kind, seconds = sys.argv[2:]
        until = time.monotonic() + float(seconds)
        if kind not in http2.KINDS:
            return hold(host, int(port), int(count), kind, until)
        context = http2.client_context(None if count.isdigit() else count)
        connections, _ = http2.attack((host, int(port)), context, kind, until)
        return print(connections, 1, 0)
    parser = argparse.ArgumentParser()
    parser.add_argument("pride")
    parser.add_argument("worker")
    parser.add_argument("--seconds", type=float, default=75)
    parser.add_argument("--restart", action="store_true")
    parser.add_argument("attacks", nargs="*", default=["tcp", "tls", "http2", "namespaces", "page"])
    args = parser.parse_args()
    sh("ip link set lo up")
    print("| attack | dialled | held at most | rounds/s before | under it | MB | descriptors | cores | rounds, fewest "
          "voters | alive, all hashes equal |")
    try:
        make_namespaces()
        for kind in args.attacks:
            with tempfile.TemporaryDirectory() as folder:
                one(args.pride, args.worker, kind, args.seconds, pathlib.Path(folder), args.restart)
    finally:
        remove_namespaces()
    return 0


if __name__ == "__main__":
    sys.exit(main())
