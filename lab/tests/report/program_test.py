# `pride report` as a command: files of --metrics beside folders, in any order, and --png, whose
# pictures are decoded here. Exit code 77 (skipped) if all else passes but there is no rsvg-convert.
# usage: program_test.py PRIDE
# SPDX-License-Identifier: Apache-2.0
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import fixture  # noqa: E402

SKIPPED = 77
WIDTH, HEIGHT = 1600, 985  # 640 by 394 of the drawing, scaled

faults = []


def expect(what, is_so):
    if not is_so:
        faults.append(what)
        print("FAULT:", what)


def pixels_of(png):
    """(width, height, rows of RGB bytes) of a PNG without alpha; 8 bits per channel."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n", "not a PNG"
    at, data = 8, b""
    while at < len(png):
        length, kind = struct.unpack(">I4s", png[at:at + 8])
        body = png[at + 8:at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, color = struct.unpack(">IIBB", body[:10])
            assert (depth, color) == (8, 2), f"depth {depth}, colour type {color}"
        if kind == b"IDAT":
            data += body
        at += 12 + length
    flat, stride, rows = zlib.decompress(data), 3 * width, [bytes(3 * width)]
    for y in range(height):
        kind, line = flat[y * (stride + 1)], flat[y * (stride + 1) + 1:(y + 1) * (stride + 1)]
        above, row = rows[-1], bytearray(stride)
        for i in range(stride):
            left, up = row[i - 3] if i > 2 else 0, above[i]
            corner = above[i - 3] if i > 2 else 0
            if kind == 4:  # Paeth: the neighbour that is nearest to left + up - corner
                guess = min((left, up, corner), key=lambda n, p=left + up - corner: abs(p - n))
            else:
                guess = (0, left, up, (left + up) // 2)[kind]
            row[i] = line[i] + guess & 255
        rows.append(bytes(row))
    return width, height, rows[1:]


def check_picture(file):
    width, height, rows = pixels_of(file.read_bytes())
    expect(f"{file.name}: {width} x {height}", (width, height) == (WIDTH, HEIGHT))
    colors = {}
    for row in rows:
        for i in range(0, len(row), 3):
            colors[row[i:i + 3]] = colors.get(row[i:i + 3], 0) + 1
    expect(f"{file.name}: corner {rows[0][:3].hex()}", rows[0][:3] == b"\xff\xff\xff")
    expect(f"{file.name}: mostly white", colors.get(b"\xff\xff\xff", 0) > 0.8 * width * height)
    for name, color in (("first line", "0072b2"), ("second line", "d55e00"), ("text", "333333")):
        n = colors.get(bytes.fromhex(color), 0)
        expect(f"{file.name}: {n} pixels of the {name}", n > 300)


def lines_of(method, losses):
    head = dict(method=method, workers=2, parameters=1000, seed=1, data="made up", model="m")
    steps = [dict(step=10 * i, loss=v, val_loss=v, bytes_sent=1000 * i, seconds=i)
             for i, v in enumerate(losses, 1)]
    return "".join(json.dumps(line) + "\n" for line in [head, *steps])


def main():
    program, converter = sys.argv[1], shutil.which("rsvg-convert")

    def report(*words, ok=True, **others):
        done = subprocess.run([program, "report", *map(str, words)], cwd=folder, text=True,
                              capture_output=True, check=False, **others)
        expect(f"{words}: exit code {done.returncode}: {done.stderr}", (done.returncode == 0) == ok)
        return done.stderr

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        fixture.write_run(folder / "train", "lion", 4, 1, 0.5, 125)
        (folder / "a.jsonl").write_text(lines_of("adamw", [4, 3, 2]))
        (folder / "b.jsonl").write_text(lines_of("dlion-vote", [5, 3, 1])[:-9])
        files = "--metrics", "a.jsonl", "--metrics", "vote=b.jsonl"
        expect("a page says nothing", report(*files, "train", "--out", "page.html") == "")
        page = (folder / "page.html").read_text()
        for text in ("vit-small", "PyTorch: m, 1,000 parameters", ">vote</text>", ">adamw</text>",
                     "b.jsonl: line 4 is incomplete", "runs end at different steps, 20 to 30"):
            expect(f"no '{text}' in the page", text in page)
        notes = report(*files, "--svg", "a.svg", "--numbers", "a.json")
        expect(f"notes of a chart: {notes}", "pride: note: b.jsonl: line 4 is incomplete" in notes)
        error = report(*files, "train", "--x", "time", "--link", "1Mbit/s", ok=False)
        expect(f"--link: {error}", "--link needs the time of computing alone" in error)
        error = report("a.jsonl", ok=False)
        expect(f"without --metrics: {error}", "needs --metrics" in error)

        words = "--from", "a.json", "--png", "from.png"
        error = report(*words, ok=False, env=dict(os.environ, PATH=str(folder)))
        expect(f"without the converter: {error}", "apt-get install librsvg2-bin" in error)
        if converter:
            report(*words)
            report(*files, "--png", "new.png", "--svg", "again.svg")
            check_picture(folder / "from.png")
            for new, known in (("new.png", "from.png"), ("again.svg", "a.svg")):
                same = (folder / new).read_bytes() == (folder / known).read_bytes()
                expect(f"{new} is not {known}", same)
            error = report(*files, "--png", folder / "none" / "a.png", ok=False)
            expect(f"no folder: {error}", "rsvg-convert failed" in error)
    print("faults:", len(faults))
    if not faults and not converter:
        print("skipped: --png, without rsvg-convert (Debian: apt-get install librsvg2-bin)")
        return SKIPPED
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
