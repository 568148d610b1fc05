#!/usr/bin/env python3
# What k bad voters of a coordinator do to a training, with equal and with learned weights.
# SPDX-License-Identifier: Apache-2.0
"""Trains a small ViT on CIFAR-10 with a coordinator and k bad workers; a JSON line for each run.

    PRIDE_LIBRARY_DIR=build/release/src/c python3 lab/experiments/bad_voters.py --data DIR --out FILE

Every worker is a process with the package `pride` (installed, or PYTHONPATH=python), and a
coordinator (`pride serve`) counts their votes. A bad worker's gradients are
  inverted    the opposite of the true ones
  random      noise of its own
  colluding   noise that all bad workers share
Runs that FILE has already are not run again. lab/docs/results/federated.md has the results.
"""
import argparse
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import threading

ROOT = pathlib.Path(__file__).resolve().parents[2]
KINDS = ["inverted", "random", "colluding"]
KEY = ["kind", "bad", "workers", "weights", "seed", "lr", "steps", "batch"]


def arguments():
    made = argparse.ArgumentParser(description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
    add = made.add_argument
    add("--data", type=pathlib.Path, required=True, help="folder of CIFAR-10's binary files")
    add("--out", type=pathlib.Path, required=True, help="file of JSON lines; it is added to")
    add("--pride", default=str(ROOT / "build/release/apps/pride/pride"), help="the program")
    add("--workers", type=int, default=8, help="(8)")
    add("--bad", type=int, nargs="+", default=[0, 1, 2, 3], help="numbers of bad workers (0 1 2 3)")
    add("--kinds", nargs="+", choices=KINDS, default=KINDS)
    add("--weights", nargs="+", choices=["equal", "learned"], default=["equal", "learned"])
    add("--honest-alone", action="store_true", help="also the honest workers without the bad ones")
    add("--steps", type=int, default=400, help="(400)")
    add("--batch", type=int, default=8, help="images of a worker in a step (8)")
    add("--lr", type=float, default=3e-4, help="(3e-4)")
    add("--seed", type=int, default=42)
    add("--worker", type=int, help=argparse.SUPPRESS)  # this process is worker K ...
    add("--coordinator", help=argparse.SUPPRESS)       # ... of the one there
    return made.parse_args()


def train(args):
    """One worker. Prints test loss and accuracy if it is the last, which is always honest."""
    sys.path.insert(0, str(ROOT / "examples/python"))
    import torch
    from torch.nn import functional as F

    import pride
    import train_vit

    torch.set_num_threads(1)
    torch.manual_seed(args.seed)  # equal parameters everywhere
    args.width, args.heads, args.layers, args.patch = 128, 4, 4, 8
    model = train_vit.ViT(args)
    optimizer = pride.RunWorker(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.005,
                                method="dlion-vote", coordinator=args.coordinator,
                                name=f"worker{args.worker}", timeout=120)
    pixels, labels = train_vit.read_images(args.data, "data_batch_*")
    pixels, labels = (x[args.worker::args.workers] for x in (pixels, labels))  # this worker's shard
    bad = args.worker < args.bad[0]
    kind = args.kinds[0]
    drawn = torch.Generator().manual_seed(args.seed * 1000 + args.worker)
    noise = torch.Generator().manual_seed(
        args.seed * 1000 + 500 + (0 if kind == "colluding" else args.worker))
    for step in range(args.steps):
        rate = 0.5 * (1 + math.cos(math.pi * step / args.steps)) * min(1.0, (step + 1) / 40)
        optimizer.param_groups[0]["lr"] = args.lr * rate
        optimizer.zero_grad()
        if not bad or kind == "inverted":
            picked = torch.randint(len(labels), (args.batch,), generator=drawn)
            loss = F.cross_entropy(model(pixels[picked]), labels[picked])
            (-loss if bad else loss).backward()
        else:
            for p in model.parameters():
                p.grad = torch.randn(p.shape, generator=noise)
        optimizer.step()
    if args.worker == args.workers - 1:
        test_pixels, test_labels = train_vit.read_images(args.data, "test_batch")
        total = right = 0.0
        with torch.no_grad():
            for part in torch.arange(len(test_labels)).split(500):
                logits = model(test_pixels[part])
                total += F.cross_entropy(logits, test_labels[part], reduction="sum").item()
                right += (logits.argmax(1) == test_labels[part]).sum().item()
        print(json.dumps({"loss": round(total / len(test_labels), 5),
                          "accuracy": right / len(test_labels)}))
    optimizer.close()


def run(args, kind, bad, workers, weights):
    """Coordinator and workers of one run; the line about it."""
    with tempfile.TemporaryDirectory() as folder:
        served = subprocess.Popen(
            [args.pride, "serve", "--dir", folder + "/journal", "--listen", "127.0.0.1:0", "--json",
             "--weights", weights, "--min-workers", str(workers)], stdout=subprocess.PIPE, text=True)
        there, events = [], []
        try:
            for line in served.stdout:
                events.append(json.loads(line))
                if events[-1]["event"] == "ready":
                    break
            else:
                sys.exit("bad_voters.py: pride serve ended; its output is above")
            address = events[-1]["listen"]
            reader = threading.Thread(
                target=lambda: events.extend(map(json.loads, served.stdout)))
            reader.start()
            command = [sys.executable, __file__, "--data", str(args.data), "--out", os.devnull,
                       "--workers", str(workers), "--bad", str(bad), "--kinds", kind,
                       "--steps", str(args.steps), "--batch", str(args.batch), "--lr", str(args.lr),
                       "--seed", str(args.seed), "--coordinator", address]
            for k in range(workers):
                there.append(subprocess.Popen([*command, "--worker", str(k)],
                                              stdout=subprocess.PIPE, text=True))
            outputs = [process.communicate()[0] for process in there]
            served.terminate()
            served.wait(60)
            reader.join()
        finally:  # Ctrl-C, too, leaves nothing behind
            for process in (*there, served):
                process.kill()
                process.wait()
        if any(process.returncode for process in there):
            sys.exit("bad_voters.py: a worker failed; its output is above")
        counted = [e for e in events if e["event"] == "round"]
        return {"experiment": "bad-voters", "weights": weights, "workers": workers, "bad": bad,
                "kind": kind if bad else "none", "seed": args.seed, "lr": args.lr,
                "steps": args.steps, "batch": args.batch, **json.loads(outputs[-1]), "rounds": len(counted)}


def main():
    args = arguments()
    if args.worker is not None:
        return train(args)
    wanted = [("none", 0, args.workers, w) for w in args.weights if 0 in args.bad]
    wanted += [(kind, bad, args.workers, w)
               for bad in args.bad if bad for kind in args.kinds for w in args.weights]
    if args.honest_alone:
        wanted += [("none", 0, args.workers - bad, "equal") for bad in args.bad if bad]
    done = set()
    if args.out.exists():
        for line in args.out.read_text().splitlines():
            row = json.loads(line)
            done.add(tuple(row[key] for key in KEY))
    for kind, bad, workers, weights in wanted:
        if (kind, bad, workers, weights, args.seed, args.lr, args.steps, args.batch) in done:
            continue
        row = run(args, kind if bad else KINDS[0], bad, workers, weights)
        with open(args.out, "a", encoding="utf-8") as out:
            out.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
