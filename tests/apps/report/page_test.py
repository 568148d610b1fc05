# The page of `pride report` in a headless Chromium: every chart has ink, wide and narrow, light and
# dark; nothing complains, nothing is fetched, nothing scrolls sideways but tables, and text of the
# runs' files stays text. Exit code 77 (skipped) where there is no Chromium.
# usage: page_test.py PRIDE [--keep FOLDER]   (FOLDER: for the page and screenshots of it)
# SPDX-License-Identifier: Apache-2.0
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from browser import Browser, find_chromium  # noqa: E402
import fixture  # noqa: E402

SKIPPED = 77
# epochs and loss for 4 and 16 workers, against workers, bits for 4 and 16 workers
CHARTS = 2 + 2 + 1 + 2

# Pixels inside the frame of each chart that are clearly coloured: lines, points, bands.
INK = """[...document.querySelectorAll('.chart canvas')].map((canvas) => {
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  let n = 0;
  for (let i = 0; i < data.length; i += 4) {
    const [r, g, b, a] = data.subarray(i, i + 4);
    if (a > 200 && Math.max(r, g, b) - Math.min(r, g, b) > 60) ++n;
  }
  return n;
})"""

faults = []


def expect(what, is_so):
    if not is_so:
        faults.append(what)
        print("FAULT:", what)


def check_look(browser, page, width, dark, keep):
    where = f"{width} px, {'dark' if dark else 'light'}"
    browser.look(width, 900, dark)
    browser.open(page.as_uri())
    ink = browser.value(INK)
    expect(f"{where}: {len(ink)} charts instead of {CHARTS}", len(ink) == CHARTS)
    for i, n in enumerate(ink):
        expect(f"{where}: chart {i} has {n} coloured pixels", n > 300)
    expect(f"{where}: the page scrolls sideways",
           browser.value("document.documentElement.scrollWidth") <= width)
    expect(f"{where}: not as wide as asked for", browser.value("innerWidth") == width)
    ground = browser.value("getComputedStyle(document.body).backgroundColor")
    light = sum(map(int, ground[4:-1].split(","))) > 380
    expect(f"{where}: ground is {ground}", light != dark)
    expect(f"{where}: complaints {browser.complaints()}", browser.complaints() == [])
    # data: is the page itself
    fetched = [r for r in browser.requests() if not r.startswith("data:") and r != page.as_uri()]
    expect(f"{where}: fetched {fetched}", fetched == [])
    if keep:
        browser.screenshot(keep / f"{page.stem}-{width}-{'dark' if dark else 'light'}.png")


def check_use(browser, page):
    """A button hides its lines, and brings them back."""
    browser.look(1280, 900, False)
    browser.open(page.as_uri())
    before = browser.value(INK)
    browser.value("document.querySelectorAll('.keys button').forEach((b) => b.click())")
    browser.value("new Promise((done) => setTimeout(done, 200))")
    hidden = browser.value(INK)
    expect(f"all lines hidden, but ink {hidden}", all(n == 0 for n in hidden))
    browser.value("document.querySelectorAll('.keys button').forEach((b) => b.click())")
    browser.value("new Promise((done) => setTimeout(done, 200))")
    expect("lines do not come back", browser.value(INK) == before)


def check_text(browser):
    expect("a label became markup", browser.value("document.images.length") == 0)
    expect("a script of a label ran", browser.value("document.title") == "Nine methods on made-up data")
    shown = browser.value("document.body.innerText")
    expect("the hostile label is not shown as it is", fixture.HOSTILE in shown)
    expect("method-8's mean and deviation", "55.20 ± 1.00" in shown or "55.2 ± 1.0" in shown)
    expect("the failed run is not named", "runs/gone" in shown and "2 runs are missing" in shown)
    # 125 bytes a step over 1000 parameters
    expect("bits per parameter", browser.value(
        "[...document.querySelectorAll('td')].some((cell) => cell.textContent === '1.00')"))


def main():
    chromium = find_chromium()
    if chromium is None:
        print("skipped: there is no chromium (Debian: apt-get install chromium)")
        return SKIPPED
    program = sys.argv[1]
    keep = pathlib.Path(sys.argv[3]) if len(sys.argv) > 3 else None
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        fixture.write_sweep(folder / "sweep")
        page = (keep or folder) / "page.html"
        subprocess.run([program, "report", str(folder / "sweep"), "--out", str(page)], check=True)
        browser = Browser(chromium)
        try:
            for width in (1280, 400):
                for dark in (False, True):
                    check_look(browser, page, width, dark, keep)
            check_use(browser, page)
            check_text(browser)
        finally:
            browser.close()
    print("faults:", len(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
