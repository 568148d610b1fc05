# `pride serve` and workers as processes of their own, a wire between them that can be cut, and what
# the journal says. Standard library only.
# SPDX-License-Identifier: Apache-2.0
import json
import os
import pathlib
import resource
import signal
import socket
import subprocess
import threading
import time


class Coordinator:
    """`pride serve` in a folder; start() again goes on from its journal, on the same port."""

    def __init__(self, pride, folder, *flags):
        self.pride, self.folder, self.flags = pride, pathlib.Path(folder), flags
        self.port, self.process, self.http, self.host = 0, None, "", "127.0.0.1"
        self.drains = True  # reads its standard output
        self.descriptors = None  # (soft, hard) limit of open files

    def start(self, patience_s=240):
        command = [self.pride, "serve", "--dir", str(self.folder), "--listen", f"{self.host}:{self.port}",
                   "--json", *self.flags]
        limit = self.descriptors and (lambda: resource.setrlimit(resource.RLIMIT_NOFILE, self.descriptors))
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        preexec_fn=limit)
        late = threading.Event()
        timer = threading.Timer(patience_s, lambda: (late.set(), self.process.kill()))
        timer.start()
        for line in self.process.stdout:
            event = json.loads(line)
            if event["event"] == "ready":
                timer.cancel()
                self.port = int(event["listen"].rsplit(":", 1)[1])
                self.http = event["http"]
                if self.drains:
                    threading.Thread(target=self.drain, args=(self.process.stdout,), daemon=True).start()
                return
        timer.cancel()
        if not late.is_set():
            raise RuntimeError("pride serve: " + self.process.stderr.read())
        raise TimeoutError("pride serve is not ready")

    @staticmethod
    def drain(stream):
        for _ in stream:
            pass

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        """As a service is stopped; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)

    def events(self, kind=None):
        """Of all its lives."""
        lines = (self.folder / "coordinator.jsonl").read_text().splitlines()
        events = [json.loads(line) for line in lines if line.endswith("}")]
        return [event for event in events if kind in (None, event["event"])]

    def journal(self):
        """(description, rounds, end): what `pride journal --replay` says."""
        out = subprocess.run([self.pride, "journal", str(self.folder), "--replay"], check=True,
                             capture_output=True, text=True).stdout
        lines = [json.loads(line) for line in out.splitlines()]
        return lines[0], lines[1:-1], lines[-1]


class Worker:
    """A process that trains until a round, and says its hash at the end."""

    def __init__(self, command):
        self.command, self.process = command, None
        self.outputs = []  # of its lives

    def start(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def kill(self):
        self.process.kill()
        self.outputs.append(self.process.communicate()[0])

    def signal(self, number):
        self.process.send_signal(number)

    def result(self, patience_s):
        out, err = self.process.communicate(timeout=patience_s)
        if self.process.returncode != 0:
            raise RuntimeError(f"{self.command}: {self.process.returncode}: {err}")
        self.outputs.append(out)
        return json.loads(out[out.index("{"):])


class Wire:
    """A TCP proxy: hang() lets bytes wait without a word, cut() breaks connections off."""

    def __init__(self, port):
        self.target = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.open = threading.Event()
        self.open.set()
        self.pairs, self.lock, self.over = [], threading.Lock(), False
        self.carried = 0
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while not self.over:
            try:
                here, _ = self.listener.accept()
            except OSError:
                return
            try:
                there = socket.create_connection(("127.0.0.1", self.target), 5)
            except OSError:
                here.close()
                continue
            with self.lock:
                self.pairs.append((here, there))
            for source, sink in ((here, there), (there, here)):
                threading.Thread(target=self.carry, args=(source, sink), daemon=True).start()

    def carry(self, source, sink):
        try:
            while data := source.recv(1 << 16):
                self.open.wait()
                sink.sendall(data)
                self.carried += len(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def hang(self):
        self.open.clear()

    def mend(self):
        self.open.set()

    def cut(self):
        with self.lock:
            pairs, self.pairs = self.pairs, []
        for pair in pairs:
            for end in pair:
                try:
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def close(self):
        self.over = True
        self.mend()
        self.listener.close()
        self.cut()


def wait_until(what, is_so, patience_s=240):
    until = time.monotonic() + patience_s
    while not is_so():
        if time.monotonic() > until:
            raise TimeoutError(what)
        time.sleep(0.05)


def last_round(coordinator):
    rounds = coordinator.events("round")
    return rounds[-1]["round"] if rounds else -1


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
