# `pride report` as a command: files of --metrics beside folders, in any order.
# usage: program_test.py PRIDE
# SPDX-License-Identifier: Apache-2.0
import json
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import fixture  # noqa: E402

faults = []


def expect(what, is_so):
    if not is_so:
        faults.append(what)
        print("FAULT:", what)


def lines_of(method, losses):
    head = dict(method=method, workers=2, parameters=1000, seed=1, data="made up", model="m")
    steps = [dict(step=10 * i, loss=v, val_loss=v, bytes_sent=1000 * i, seconds=i)
             for i, v in enumerate(losses, 1)]
    return "".join(json.dumps(line) + "\n" for line in [head, *steps])


def main():
    program = sys.argv[1]

    def report(*words, ok=True):
        done = subprocess.run([program, "report", *map(str, words)], cwd=folder, text=True,
                              capture_output=True, check=False)
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
    print("faults:", len(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
