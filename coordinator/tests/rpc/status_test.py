# The status page of `pride serve` in a headless Chromium: workers, rounds and refusals are shown, wide
# and narrow, light and dark; nothing complains, nothing scrolls sideways but tables, and what a worker
# calls itself stays text. Exit code 77 (skipped) where there is no Chromium.
# usage: status_test.py PRIDE TEST_WORKER [--keep FOLDER]   (FOLDER: for screenshots)
# SPDX-License-Identifier: Apache-2.0
import base64
import json
import pathlib
import sys
import tempfile
import time
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tests/support"))
from browser import Browser, find_chromium  # noqa: E402
from processes import Coordinator, Worker, last_round, wait_until  # noqa: E402

SKIPPED = 77
HOSTILE = "<img src=x onerror=\"document.title='stolen'\"><script>document.title='run'</script>"

faults = []


def expect(what, is_so):
    if not is_so:
        faults.append(what)
        print("FAULT:", what)


def get(address):
    with urllib.request.urlopen(address, timeout=10) as answer:
        return answer.headers, answer.read().decode()


def check_texts(coordinator):
    headers, page = get(coordinator.http)
    expect("a policy for the page", "default-src 'none'" in headers["Content-Security-Policy"])
    expect("the page fetches from elsewhere", "://" not in page.replace("http://www.w3.org/2000/svg", ""))
    status = json.loads(get(coordinator.http + "status.json")[1])
    expect(f"workers {status['workers']}", {w["name"] for w in status["workers"]} == {"lab", "home"})
    expect("rounds", status["open_round"] > 3 and status["rounds"][-1]["voters"] in (1, 2))
    expect("losses", all(w["loss"] is not None for w in status["workers"]))
    metrics = dict(line.rsplit(" ", 1) for line in get(coordinator.http + "metrics")[1].splitlines()
                   if not line.startswith("#"))
    expect(f"metrics {metrics}", float(metrics["pride_rounds_total"]) > 3
           and metrics['pride_worker_live{worker="lab"}'] == "1"
           and float(metrics['pride_refused_total{kind="other_owner"}']) >= 1)
    try:
        get(coordinator.http + "../../etc/passwd")
        expect("another address was served", False)
    except urllib.error.HTTPError as error:
        expect(f"another address: {error.code}", error.code == 404)


def check_look(browser, address, width, dark, keep):
    where = f"{width} px, {'dark' if dark else 'light'}"
    browser.look(width, 900, dark)
    browser.open(address)
    until = time.monotonic() + 20
    while browser.value("document.querySelectorAll('#workers tr').length") < 3 and time.monotonic() < until:
        time.sleep(0.2)
    expect(f"{where}: workers", browser.value("document.querySelectorAll('#workers tr').length") == 3)
    expect(f"{where}: bars", browser.value("document.querySelectorAll('#times rect').length") > 3)
    expect(f"{where}: losses", browser.value("document.querySelectorAll('#losses path').length") == 1)
    expect(f"{where}: refusals", browser.value("document.querySelectorAll('#refusals tr').length") > 1)
    expect(f"{where}: scrolls sideways", browser.value("document.documentElement.scrollWidth") <= width)
    ground = browser.value("getComputedStyle(document.body).backgroundColor")
    expect(f"{where}: ground is {ground}", (sum(map(int, ground[4:-1].split(","))) > 380) != dark)
    expect(f"{where}: complaints {browser.complaints()}", browser.complaints() == [])
    foreign = [r for r in browser.requests() if not r.startswith((address, "data:"))]
    expect(f"{where}: fetched {foreign}", foreign == [])
    if keep:
        (keep / f"status-{width}-{'dark' if dark else 'light'}.png").write_bytes(
            base64.b64decode(browser.screenshot()))


def check_hostile(browser, address):
    """A name that the coordinator would not take, put into the JSON on its way to the page; read before the page
    looks again."""
    browser.open(address)
    images, text = browser.value("""(async () => {
      const status = await (await fetch('/status.json')).json();
      status.workers[0].name = status.method = status.failed = status.listen = %s;
      status.refusals = [{ time: 'now', call: status.listen, worker: status.listen, address: '', why: status.listen }];
      show(status);
      return [document.images.length, document.body.innerText];
    })()""" % json.dumps(HOSTILE))
    expect("a name became markup", images == 0)
    expect("the hostile name is not shown as it is", HOSTILE in text)
    time.sleep(0.5)  # of a picture that fails to load
    expect("a script of a name ran", browser.value("document.title") == "pride serve")


def main():
    chromium = find_chromium()
    if chromium is None:
        print("skipped: there is no chromium (Debian: apt-get install chromium)")
        return SKIPPED
    pride, program = sys.argv[1:3]
    keep = pathlib.Path(sys.argv[4]) if len(sys.argv) > 4 else None
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        coordinator = Coordinator(pride, folder / "journal", "--http", "127.0.0.1:0")
        coordinator.start()
        address = f"127.0.0.1:{coordinator.port}"
        workers = [Worker([program, address, site, "1000000", "pause_ms=50"]) for site in ("lab", "home")]
        browser = None
        try:
            for worker in workers:
                worker.start()
            wait_until("rounds", lambda: last_round(coordinator) > 20)
            thief = Worker([program, address, "lab", "1"])
            thief.start()
            thief.process.wait(60)
            check_texts(coordinator)
            browser = Browser(chromium, 120)
            for width in (1280, 400):
                for dark in (False, True):
                    check_look(browser, coordinator.http, width, dark, keep)
            check_hostile(browser, coordinator.http)
        finally:
            if browser:
                browser.close()
            for process in (*workers, coordinator):
                process.kill()
    print("faults:", len(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
