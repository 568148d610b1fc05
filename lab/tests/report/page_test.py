# The page of `pride report` in a headless Chromium: every chart has ink, wide and narrow, light and
# dark; nothing complains, nothing is fetched, nothing scrolls sideways but tables, and text of the
# runs' files stays text. Exit code 77 (skipped) where there is no Chromium.
# usage: page_test.py PRIDE [--keep FOLDER]   (FOLDER: for the page and screenshots of it)
# SPDX-License-Identifier: Apache-2.0
import base64
import pathlib
import subprocess
import sys
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).resolve().parents[3] / "tests/support")]
from browser import Browser, find_chromium  # noqa: E402
import fixture  # noqa: E402

SKIPPED = 77
# epochs, loss and rate for 4 and 16 workers, against workers, bits for 4 and 16 workers
CHARTS = 2 + 2 + 2 + 1 + 2

# Pixels of each chart in a screenshot that are clearly coloured: lines, points, bands, names.
INK = """(async () => {
  const image = new Image();
  image.src = 'data:image/png;base64,%s';
  await image.decode();
  const canvas = document.createElement('canvas');
  [canvas.width, canvas.height] = [image.width, image.height];
  const context = canvas.getContext('2d', { willReadFrequently: true });
  context.drawImage(image, 0, 0);
  return [...document.querySelectorAll('.plot')].map((plot) => {
    const box = plot.getBoundingClientRect();
    const { data } = context.getImageData(box.left, box.top + scrollY, box.width, box.height);
    let n = 0;
    for (let i = 0; i < data.length; i += 4) {
      const rgb = data.subarray(i, i + 3);
      if (Math.max(...rgb) - Math.min(...rgb) > 60) ++n;
    }
    return n;
  });
})()"""

# Charts whose text lies on other text, or ends outside of the picture; a letter does not fill its box.
UNREADABLE = """[...document.querySelectorAll('.plot')].filter((plot) => {
  const [outer, label] = [plot, plot.querySelector('text[transform]')].map((e) => e.getBoundingClientRect());
  const shown = [...plot.querySelectorAll('text')].map((e) => e.getBoundingClientRect()).filter((b) => b.width > 0);
  const numbers = [...plot.querySelectorAll('text[text-anchor=end]')].map((e) => e.getBoundingClientRect());
  return shown.some((b) => b.left < outer.left - 3 || b.right > outer.right + 1) ||
    numbers.some((b) => b.left < label.right && b.top < label.bottom && b.bottom > label.top);
}).map((plot) => plot.querySelector('svg').getAttribute('aria-label'))"""

faults = []


def expect(what, is_so):
    if not is_so:
        faults.append(what)
        print("FAULT:", what)


def ink_of(browser):
    return browser.value(INK % browser.screenshot())


def check_look(browser, page, width, dark, keep):
    where = f"{width} px, {'dark' if dark else 'light'}"
    browser.look(width, 900, dark)
    browser.open(page.as_uri())
    ink = ink_of(browser)
    expect(f"{where}: {len(ink)} charts instead of {CHARTS}", len(ink) == CHARTS)
    for i, n in enumerate(ink):
        expect(f"{where}: chart {i} has {n} coloured pixels", n > 300)
    unreadable = browser.value(UNREADABLE)
    expect(f"{where}: unreadable charts {unreadable}", unreadable == [])
    expect(f"{where}: the page scrolls sideways",
           browser.value("document.documentElement.scrollWidth") <= width)
    if width >= 1280:
        expect(f"{where}: the table of results is cut off",
               browser.value("(() => { const t = document.querySelector('.scroll');"
                             "return t.scrollWidth <= t.clientWidth; })()"))
    expect(f"{where}: not as wide as asked for", browser.value("innerWidth") == width)
    ground = browser.value("getComputedStyle(document.body).backgroundColor")
    light = sum(map(int, ground[4:-1].split(","))) > 380
    expect(f"{where}: ground is {ground}", light != dark)
    expect(f"{where}: complaints {browser.complaints()}", browser.complaints() == [])
    # data: is the page itself
    fetched = [r for r in browser.requests() if not r.startswith("data:") and r != page.as_uri()]
    expect(f"{where}: fetched {fetched}", fetched == [])
    if keep:
        shot = keep / f"{page.stem}-{width}-{'dark' if dark else 'light'}.png"
        shot.write_bytes(base64.b64decode(browser.screenshot()))


def check_use(browser, page):
    """A button hides its lines, and brings them back."""
    browser.look(1280, 900, False)
    browser.open(page.as_uri())
    before = ink_of(browser)
    click = "document.querySelectorAll('.keys button').forEach((b) => b.click())"
    browser.value(click)
    hidden = ink_of(browser)
    expect(f"all lines hidden, but ink {hidden}", all(n == 0 for n in hidden))
    browser.value(click)
    expect("lines do not come back", ink_of(browser) == before)


def check_values(browser):
    """The pointer at the end of method-8's line of 4 workers names its mean and deviation."""
    place = browser.value("""(() => {
      const line = document.querySelector('#s1-epoch-workers-4 [data-name=method-8] path');
      line.scrollIntoView({ block: 'center' });
      const end = line.getPointAtLength(line.getTotalLength()).matrixTransform(line.getScreenCTM());
      return [end.x, end.y];
    })()""")
    browser.ask("Input.dispatchMouseEvent", type="mouseMoved", x=place[0] + 3, y=place[1] + 3)
    tip = browser.value("document.querySelector('#s1-epoch-workers-4 .tip:not([hidden])')?.textContent")
    expect(f"the pointer shows {tip}", tip == "method-8: 55.2 ± 1 at 2 epochs")
    browser.value("document.querySelectorAll('.keys button')[8].click()")
    browser.ask("Input.dispatchMouseEvent", type="mouseMoved", x=place[0] + 2, y=place[1] + 2)
    tip = browser.value("document.querySelector('#s1-epoch-workers-4 .tip').textContent")
    expect(f"the pointer shows a hidden line: {tip}", not tip.startswith("method-8:"))


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
    if keep:
        keep.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        fixture.write_sweep(folder / "sweep")
        page = (keep or folder) / "page.html"
        subprocess.run([program, "report", str(folder / "sweep"), "--out", str(page)], check=True)
        browser = Browser(chromium)
        try:
            for width in (1920, 1280, 400):
                for dark in (False, True):
                    check_look(browser, page, width, dark, keep)
            check_use(browser, page)
            check_text(browser)
            check_values(browser)
        finally:
            browser.close()
    print("faults:", len(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
