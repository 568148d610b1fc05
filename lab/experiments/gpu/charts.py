#!/usr/bin/env python3
# Charts from the lines of runs: loss against what was seen, bits sent, and time on networks.
# SPDX-License-Identifier: Apache-2.0
"""usage: scripts/gpu_experiments.sh --charts DIR FILE...

For each experiment and number of workers: DIR/NAME.json with the numbers, which
`pride report --from NAME.json --svg NAME.svg` draws; done here where the program is in PATH or in build/.
"""
import json
import pathlib
import shutil
import statistics
import subprocess
import sys

import table

ROOT = pathlib.Path(__file__).resolve().parents[3]


def axes(unit):
    """(name, label, logarithmic, value of a point of a row)."""
    yield unit, f"{unit} seen by all workers", False, lambda row, point: point["seen"]
    yield "bits", "bits sent by a worker per parameter", True, lambda row, point: (
        8 * point["bytes_sent"] / row["parameters"])
    for network, rate in table.NETWORKS:
        name = network.lower().replace(" ", "").replace("bit/s", "")
        yield (f"time-{name}", f"seconds: a worker's compute as measured, then bytes over {network}", True,
               lambda row, point, rate=rate: point["step"] * table.seconds_per_step(row, rate))


def series_of(number, same, value):
    """The means over seeds, with one standard deviation to each side."""
    curves = [[json.loads(line) for line in (row["folder"] / row["curve"]).read_text().splitlines()] for row in same]
    points = list(zip(*curves))
    losses = [[point["loss"] for point in at] for at in points]
    return {"name": same[0]["label"], "color": number,
            "x": [statistics.mean(value(row, point) for row, point in zip(same, at)) for at in points],
            "y": [statistics.mean(loss) for loss in losses],
            "spread": [statistics.stdev(loss) for loss in losses] if len(same) > 1 else []}


def axis_of(label, values, log2):
    low, high = min(values), max(values)
    if log2:
        margin = (high / low) ** 0.04 if high > low else 1.1
        low, high = low / margin, high * margin
    else:
        margin = 0.04 * (high - low) or 0.1 * abs(high) or 1
        low, high = low - margin, high + margin
    return {"label": label, "log2": log2, "min": low, "max": high, "ticks": []}


def charts(rows):
    """(name, chart) of the groups of one experiment and number of workers, without groups that sent nothing:
    the axis of bits is logarithmic."""
    first = rows[0][0]
    rows = [same for same in rows if all(row["bytes_sent"] for row in same)]
    for name, label, log2, value in axes(first["unit"]):
        series = [series_of(number, same, value) for number, same in enumerate(rows)]
        if not series:
            continue
        xs, ys = ([v for s in series for v in s[key]] for key in "xy")
        spread = max((v for s in series for v in s["spread"]), default=0)
        title = (f"{first['experiment']}: validation loss, {first['workers']} workers, {first['seen']:,} "
                 f"{first['unit']}, {first['card']}")
        yield (f"{first['experiment']}-n{first['workers']}-{first['length']}-{name}",
               {"id": name, "title": title, "note": "", "points": False, "x": axis_of(label, xs, log2),
                "y": axis_of("validation loss", [min(ys) - spread, max(ys) + spread], False), "series": series})


def program():
    """The program `pride`, or None."""
    built = sorted(ROOT.glob("build/*/apps/pride/pride"))
    return shutil.which("pride") or (str(built[0]) if built else None)


def main(given):
    if len(given) < 2 or given[0] in ("-h", "--help"):
        sys.exit(__doc__)
    out, drawer = pathlib.Path(given[0]), program()
    out.mkdir(parents=True, exist_ok=True)
    for rows in table.tables(given[1:]):
        for name, chart in charts(rows):
            numbers = out / f"{name}.json"
            numbers.write_text(json.dumps(chart) + "\n")
            if drawer:
                subprocess.run([drawer, "report", "--from", numbers, "--svg", out / f"{name}.svg"], check=True,
                               stdout=subprocess.DEVNULL)
            print(numbers.with_suffix(".svg") if drawer else numbers)


if __name__ == "__main__":
    main(sys.argv[1:])
