# A headless Chromium, driven over a pipe (Chrome DevTools Protocol). Standard library only.
# SPDX-License-Identifier: Apache-2.0
import json
import os
import select
import shutil
import subprocess
import tempfile
import time


def find_chromium():
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """One page; `events` collects what it reported."""

    def __init__(self, program, deadline_s=60):
        self.until = time.monotonic() + deadline_s
        self.profile = tempfile.mkdtemp(prefix="pride-chromium-")
        commands, self.to = os.pipe()
        self.back, results = os.pipe()
        # the program reads commands from 3 and writes results to 4
        spare = [os.dup(commands), os.dup(results)]
        self.process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--disable-background-networking", "--no-first-run", "--hide-scrollbars",
             "--remote-debugging-pipe", f"--user-data-dir={self.profile}", "about:blank"],
            preexec_fn=lambda: (os.dup2(spare[0], 3), os.dup2(spare[1], 4)), close_fds=False,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for file in (commands, results, *spare):
            os.close(file)
        self.buffer, self.number, self.events, self.session = b"", 0, [], {}
        targets = self.ask("Target.getTargets")["targetInfos"]
        page = next(t["targetId"] for t in targets if t["type"] == "page")
        attached = self.ask("Target.attachToTarget", targetId=page, flatten=True)
        self.session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(domain + ".enable")

    def receive(self):
        while b"\0" not in self.buffer:
            left = max(self.until - time.monotonic(), 0)
            if not select.select([self.back], [], [], left)[0]:
                raise TimeoutError("the browser does not answer")
            data = os.read(self.back, 1 << 16)
            if not data:
                raise RuntimeError("the browser has gone")
            self.buffer += data
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def ask(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params, **self.session}
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while (answer := self.receive()).get("id") != self.number:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def look(self, width, height, dark):
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                 mobile=False)
        self.ask("Emulation.setEmulatedMedia",
                 features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def open(self, address):
        self.events.clear()
        self.ask("Page.navigate", url=address)
        while not any(e.get("method") == "Page.loadEventFired" for e in self.events):
            self.events.append(self.receive())

    def value(self, script):
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"]["description"])
        return answer["result"].get("value")

    def screenshot(self):
        """PNG in base 64."""
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 6000), "scale": 1}
        return self.ask("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)["data"]

    def reported(self, method):
        return [e["params"] for e in self.events if e.get("method") == method]

    def complaints(self):
        """Errors and warnings of the console, exceptions."""
        return [json.dumps(params)[:400] for params in
                self.reported("Runtime.exceptionThrown") + self.reported("Log.entryAdded") +
                self.reported("Runtime.consoleAPICalled")]

    def requests(self):
        return [params["request"]["url"] for params in self.reported("Network.requestWillBeSent")]

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.to)
        os.close(self.back)
        shutil.rmtree(self.profile, ignore_errors=True)
