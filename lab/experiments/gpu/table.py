#!/usr/bin/env python3
# Markdown from the lines of runs: results beside bits sent and time on slower networks.
# SPDX-License-Identifier: Apache-2.0
"""usage: scripts/gpu_experiments.sh --table FILE..."""
import json
import pathlib
import statistics
import sys

NETWORKS = (("100 Mbit/s", 1e8), ("1 Gbit/s", 1e9), ("10 Gbit/s", 1e10))


def rows_of(files):
    for file in files:
        for text in pathlib.Path(file).read_text(encoding="utf-8").splitlines():
            yield {**json.loads(text), "folder": pathlib.Path(file).parent}


def groups(rows):
    """Groups of rows that differ only in the seed, in the order of their first lines."""
    made = {}
    for row in rows:
        same = tuple(row[key] for key in ("experiment", "workers", "length", "dtype", "label", "lr",
                                          "weight_decay", "card"))
        made.setdefault(same, []).append(row)
    return list(made.values())


def mean(rows, key, form):
    values = [row[key] for row in rows]
    made = form.format(statistics.mean(values))
    return made + (f" ± {form.format(statistics.stdev(values))}" if len(values) > 1 else "")


def seconds_per_step(row, bits_per_second):
    """Seconds of a step if each worker has its own machine: its part of the measured step, then its bytes."""
    compute = row["ms_per_step"] / 1e3 / row["workers"]
    return compute + 8 * row["bytes_sent"] / row["steps"] / bits_per_second


def minutes(rows, bits_per_second):
    return statistics.mean(row["steps"] * seconds_per_step(row, bits_per_second) / 60 for row in rows)


def line(cells):
    return "| " + " | ".join(cells) + " |"


def table(rows):
    """The table of one experiment, number of workers, length and dtype."""
    first = rows[0][0]
    accuracy = "accuracy" in first
    names = ["method", "rate, decay", "seeds", "loss", *(["accuracy"] if accuracy else []),
             "bits per parameter and step", "MB sent", "ms a step here", *(name for name, _ in NETWORKS)]
    yield (f"**{first['experiment']}, {first['workers']} workers, {first['seen']:,} {first['unit']}**, "
           f"{first['parameters']:,} parameters, {first['dtype']}, {first['card']}, torch {first['torch']}, "
           f"{first['date']}, commit {first['commit'] or 'unknown'}:")
    yield ""
    yield line(names)
    yield "|" + "---|" * len(names)
    for same in sorted(rows, key=lambda g: statistics.mean(row["loss"] for row in g)):
        one = same[0]
        computed = " (computed)" if one["bytes_are"] == "computed" else ""
        yield line([
            f"`{one['label']}`", f"{one['lr']:g}, {one['weight_decay']:g}",
            " ".join(str(row["seed"]) for row in same), mean(same, "loss", "{:.3f}"),
            *([mean(same, "accuracy", "{:.3f}")] if accuracy else []),
            f"{one['bits_per_parameter_and_step']:.3f}{computed}", f"{one['bytes_sent'] / 1e6:.3g}",
            f"{statistics.mean(row['ms_per_step'] for row in same):.1f}",
            *(f"{minutes(same, rate):.1f} min" for _, rate in NETWORKS)])


def curves(rows):
    """The table of losses during training, beside the data seen, bits sent, and time at 1 Gbit/s."""
    unit = rows[0][0]["unit"]
    yield line(["method", unit, "Gbit sent", "minutes at 1 Gbit/s", "loss"])
    yield "|---|---|---|---|---|"
    for same in rows:
        file = same[0]["folder"] / same[0]["curve"]
        if not file.exists():
            continue
        for point in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
            time = point["step"] * seconds_per_step(same[0], 1e9) / 60
            yield line([f"`{same[0]['label']}`", f"{point['seen']:,}",
                        f"{8 * point['bytes_sent'] / 1e9:.3g}", f"{time:.2f}", f"{point['loss']:.3f}"])


def tables(files):
    """For each table, its groups."""
    made = {}
    for same in groups(rows_of(files)):
        made.setdefault(tuple(same[0][key] for key in ("experiment", "workers", "length", "dtype", "card")),
                        []).append(same)
    return list(made.values())


def main(files):
    if not files or files[0] in ("-h", "--help"):
        sys.exit(__doc__)
    print("Times on networks are predicted: steps x (ms a step / workers + bytes sent / rate), without "
          "latency and without overlap.\n")
    for rows in tables(files):
        print("\n".join(table(rows)) + "\n")
        print("Curves of the first seed:\n")
        print("\n".join(curves(rows)) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
