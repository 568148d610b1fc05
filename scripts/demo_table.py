#!/usr/bin/env python3
# Prints the runs of scripts/demo.sh, or of scripts/sweep_lr.sh, as a table.
# SPDX-License-Identifier: Apache-2.0
"""usage: demo_table.py RUN...             one row per run
       demo_table.py --by-rate RUN...   bits per byte of every method at every learning rate

RUN is an output folder of `pride train --task lm`; its summary.json is read.
"""
import json
import pathlib
import sys


def fail(text):
    sys.exit(f"demo_table: {text}")


def read_run(folder):
    """What the tables show of one run."""
    file = pathlib.Path(folder) / "summary.json"
    try:
        summary = json.loads(file.read_text(encoding="utf-8"))
        settings = summary["settings"]
        if summary["interrupted"]:
            fail(f"{file}: the run was interrupted after step {summary['steps']}")
        return {
            "method": settings["method"],
            "lr": float(settings["lr"]),
            "seed": settings["seed"],
            "batch": settings["batch"],
            "data": summary["data"]["hash"],
            "workers": int(summary["world"]),
            "steps": int(summary["steps"]),
            "n_params": int(summary["model"]["parameters"]),
            "bits_per_byte": summary["final"]["bits_per_byte"],  # null if it diverged
            "bytes_per_step": max(rank["sent_per_step"] for rank in summary["bytes"]["ranks"]),
            "step_ms": float(summary["step_ms"]),
        }
    except OSError as error:
        fail(f"{file}: {error.strerror}")
    except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        fail(f"{file}: not a summary of a language-model run ({error!r})")


def ring_fp32_bytes(run):
    """What a ring all-reduce of fp32 gradients sends per rank and step."""
    return 2 * (run["workers"] - 1) / run["workers"] * 4 * run["n_params"]


def format_table(head, rows):
    """Columns as wide as their widest cell; the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = []
    for row in [head, ["-" * w for w in widths], *rows]:
        cells = [row[0].ljust(widths[0])] + [c.rjust(w) for c, w in zip(row[1:], widths[1:])]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def print_runs(runs):
    rows = []
    for run in runs:
        sent, dense = run["bytes_per_step"], ring_fp32_bytes(run)
        ratio = f"1/{dense / sent:.1f}" if sent else "-"
        bits = run["bits_per_byte"]
        rows.append([run["method"], f"{run['lr']:g}", "diverged" if bits is None else f"{bits:.4f}",
                     f"{sent:,.0f}", ratio, f"{run['step_ms']:.1f}"])
    first = runs[0]
    print(f"{first['n_params']:,} parameters, {first['workers']} workers, {first['steps']} steps, "
          f"seed {first['seed']}")
    print(format_table(["method", "lr", "val bits/byte", "bytes/step/rank", "of fp32", "ms/step"],
                       rows))


def print_by_rate(runs):
    rates = sorted({run["lr"] for run in runs})
    rows, warnings = [], []
    for method in dict.fromkeys(run["method"] for run in runs):
        by_rate = {run["lr"]: run["bits_per_byte"] for run in runs if run["method"] == method}
        finite = {rate: bits for rate, bits in by_rate.items() if bits is not None}
        best = min(finite, key=finite.get) if finite else None
        cells = [method]
        for rate in rates:
            bits = by_rate.get(rate)
            text = "-" if rate not in by_rate else "diverged" if bits is None else f"{bits:.4f}"
            cells.append(text + ("*" if rate == best else " "))
        rows.append(cells)
        if best in (rates[0], rates[-1]):
            warnings.append(f"{method}: the best rate, {best:g}, is at the edge of the grid")
    first = runs[0]
    print(f"validation bits per byte by learning rate; {first['workers']} workers, "
          f"{first['steps']} steps, seed {first['seed']}; * is the method's best")
    print(format_table(["method"] + [f"{rate:g} " for rate in rates], rows))
    print("\n".join(warnings), end="\n" if warnings else "")


def main(arguments):
    if arguments in (["-h"], ["--help"]):
        print(__doc__)
        return 0
    by_rate = arguments[:1] == ["--by-rate"]
    runs = [read_run(folder) for folder in arguments[by_rate:]]
    if not runs:
        print(__doc__, file=sys.stderr)
        return 2
    for run in runs[1:]:
        for key in ("workers", "steps", "n_params", "seed", "batch", "data"):
            if run[key] != runs[0][key]:
                fail(f"runs differ in {key}: {runs[0][key]} and {run[key]} ({run['method']})")
    (print_by_rate if by_rate else print_runs)(runs)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
