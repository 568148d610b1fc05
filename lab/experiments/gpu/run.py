#!/usr/bin/env python3
# Makes the runs of an experiment that fit a quarter of an hour on one GPU.
# SPDX-License-Identifier: Apache-2.0
"""usage: scripts/gpu_experiments.sh NAME [options]; --help lists the options. The rest:
lab/docs/experiments.md.

Each run adds a line to OUT/NAME.jsonl and has its curve in OUT/curves. Runs that are there already
are not made again.
"""
import argparse
import fnmatch
import gc
import json
import os
import pathlib
import platform
import sys
import time
import traceback

import plans


def arguments(given):
    parser = argparse.ArgumentParser(
        prog="gpu_experiments.sh", description=__doc__.split("\n\n", 1)[1],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="experiments:\n" + "\n".join(f"  {k:<12} {v[0]}" for k, v in plans.EXPERIMENTS.items()))
    add = parser.add_argument
    add("name", choices=list(plans.EXPERIMENTS), metavar="NAME")
    add("--data", type=pathlib.Path, help="folder of CIFAR-10's binary files, of shards of tokens or of questions, or of such folders")
    add("--out", type=pathlib.Path, default=pathlib.Path("gpu-results"), help="(gpu-results)")
    add("--list", action="store_true", help="the runs with their expected minutes; makes none")
    add("--only", default="*", help="runs whose name one of these patterns matches, as *-n4-*-s42*,*-n8-*")
    add("--tiny", action="store_true", help="the same code in seconds on two cores")
    add("--device", help="cuda where there is one, else cpu")
    add("--dtype", choices=["bfloat16", "float32"], default="bfloat16",
        help="of parameters; pride keeps float32 masters of bfloat16 (bfloat16)")
    add("--how", choices=["eager", "compile", "graph"], default="eager",
        help="torch.compile, or forward and backward captured as a CUDA graph (eager)")
    add("--at-once", type=int, default=0, metavar="N",
        help="workers in one forward and backward, by default one or all that fit, whichever is faster here")
    add("--minutes", type=float, default=5.0, help="of one run: a slower one is given up at its start (5)")
    add("--budget", type=float, help="minutes in all: a run begins only if it is expected to end by then")
    add("--rates", type=pathlib.Path, help="lines of a -tune experiment: the best rate of each method")
    return parser.parse_args(given)


def best_rates(path):
    """{label: (rate, decay)} of the lowest loss."""
    best = {}
    for row in map(json.loads, path.read_text().splitlines()):
        kept = best.get(row["label"])
        if kept is None or row["loss"] < kept["loss"]:
            best[row["label"]] = row
    return {label: (row["lr"], row["weight_decay"]) for label, row in best.items()}


def wanted(args):
    runs = plans.runs_of(args.name, args.tiny, dtype=args.dtype, how=args.how, at_once=args.at_once)
    best = best_rates(args.rates) if args.rates else {}
    for run in runs:
        run.lr, run.weight_decay = best.get(run.label, (run.lr, run.weight_decay))
    return [run for run in runs if any(fnmatch.fnmatch(run.name, one) for one in args.only.split(","))]


def finished(file):
    if not file.exists():
        return set()
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return {(row["run"], row["digest"]) for row in rows}


def show(runs, done):
    left = 0.0
    for run in runs:
        there = (run.name, run.digest()) in done
        left += 0 if there else run.minutes
        print(f"{run.name:<64} {run.minutes:5.1f} min  {'done' if there else 'missing'}")
    print(f"{len(runs)} runs, {left:.0f} minutes are missing")


def machine(device):
    import torch
    import pride

    card = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return dict(card=card, torch=torch.__version__, pride=getattr(pride, "__version__", "?"),
                date=time.strftime("%Y-%m-%d", time.gmtime()), commit=os.environ.get("PRIDE_COMMIT", ""))


def task_of(run, folder, device, cache):
    """The run's task; `folder` has its data, or a folder cifar10, shards or fewshot with them."""
    name = "fewshot" if run.init else "shards" if run.context else "cifar10"
    inside = pathlib.Path(folder or "") / name
    folder = inside if folder and inside.is_dir() else folder
    if run.init:
        import questions
        return questions.Questions(run, folder, device, cache)
    if run.context:
        import text
        return text.Text(run, folder, device, cache)
    import images
    return images.Images(run, folder, device, cache)


def make(run, args, device, cache):
    """Makes a run; returns its line and its curve."""
    import training

    begun = time.monotonic()
    task = task_of(run, args.data or os.environ.get("PRIDE_DATA"), device, cache)
    results, curve = training.train(task, run, device, None if args.tiny else 60 * args.minutes,
                                    args.out / "models")
    row = {"run": run.name, "digest": run.digest(), "data": f"{task.digest:08x}", "unit": task.unit,
           **run.settings(), **results, **machine(device)}
    row["minutes"] = round((time.monotonic() - begun) / 60, 3)
    return row, curve


def free(device):
    """Frees the memory of the last run."""
    import torch

    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def write(args, file, row, curve):
    """Writes the curve before the line: a line means that the run is complete."""
    (args.out / "curves").mkdir(parents=True, exist_ok=True)
    row["curve"] = f"curves/{row['run']}-{row['digest']}.jsonl"
    (args.out / row["curve"]).write_text("".join(json.dumps(point) + "\n" for point in curve))
    with open(file, "a", encoding="utf-8") as out:
        out.write(json.dumps(row) + "\n")


def main(given=None):
    args = arguments(given)
    runs = wanted(args)
    file = args.out / f"{args.name}.jsonl"
    done = finished(file)
    if args.list:
        show(runs, done)
        return 0
    import torch
    import images
    import training

    if args.tiny:
        torch.set_num_threads(1)
    torch.set_float32_matmul_precision("high")  # TF32 for what stays in float32
    device = torch.device(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    begun, cache, status = time.monotonic(), {}, 0
    for run in runs:
        if (run.name, run.digest()) in done:
            continue
        spent = (time.monotonic() - begun) / 60
        if args.budget and spent + run.minutes > args.budget:
            continue
        try:
            row, curve = make(run, args, device, cache)
        except images.NoData as error:
            print(f"gpu_experiments: {error}", file=sys.stderr)
            return 2
        except training.TooSlow as error:
            print(f"gpu_experiments: given up: {error}", file=sys.stderr)
            status = 1
            continue
        except Exception:  # pylint: disable=broad-except
            traceback.print_exc()  # of this run; other runs continue
            print(f"gpu_experiments: failed: {run.name}", file=sys.stderr)
            status = 1
            continue
        finally:
            free(device)
        write(args, file, row, curve)
        print(json.dumps({k: row.get(k) for k in ("run", "loss", "accuracy", "ms_per_step", "minutes")}),
              flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
