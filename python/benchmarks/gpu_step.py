#!/usr/bin/env python3
# Training steps of a GPT on a GPU: pride beside torch's AdamW, in one run.
# SPDX-License-Identifier: Apache-2.0
"""usage: python/benchmarks/gpu_step.py [options]
       python3 -m torch.distributed.run --nproc_per_node 2 python/benchmarks/gpu_step.py [options]

GPT-2 of 124 million parameters by default, as in lab/experiments/gpu/nets.py. Ranks share the GPUs of this
machine. A row has the medians, of the slowest rank, of forward and backward, of the step after them, and
of both together without a wait between them. With several ranks AdamW follows an all-reduce of each
gradient over Gloo.
"""
import argparse
import contextlib
import fnmatch
import json
import os
import pathlib
import statistics
import sys
import time

import torch
import torch.distributed as dist

import pride

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "experiments" / "gpu"))
import nets  # noqa: E402  pylint: disable=wrong-import-position


class Averaged:
    """A torch optimizer after an all-reduce of each gradient."""

    def __init__(self, model, kind, **arguments):
        self.parameters = list(model.parameters())
        self.optimizer = kind(self.parameters, lr=1e-6, **arguments)

    def step(self):
        if dist.get_world_size() > 1:
            for p in self.parameters:
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()
        self.optimizer.step()

    def close(self):
        """Nothing to end."""


def adamw(**arguments):
    return lambda model: Averaged(model, torch.optim.AdamW, **arguments)


def of_pride(method, run_on=None, **arguments):
    """On a GPU, or an error: a row of the GPU is not the host's."""
    run_on = run_on or ("device" if torch.cuda.is_available() else "host")
    return lambda model: pride.Optimizer(model.named_parameters(), lr=1e-6, method=method, run_on=run_on,
                                         equal_gradients="allow", **arguments)


def rows():
    """(name, function that makes the optimizer)."""
    yield "AdamW, fused", adamw(fused=torch.cuda.is_available())
    yield "AdamW, foreach", adamw(foreach=True)
    for method in ("dlion-vote", "dlion-muon"):
        for millions in (4, 16, 64):
            size = dict(bucket_size=millions << 20)
            yield f"{method}, {millions} Mi", of_pride(method, **size)
            yield f"{method}, {millions} Mi, overlap", of_pride(method, overlap=True, **size)
    for method in ("lion-cub", "local-vote", "adamw"):
        yield method, of_pride(method)
    yield "dlion-vote, on the host", of_pride("dlion-vote", run_on="host")


def slowest(seconds):
    mine = torch.tensor(seconds)
    dist.all_reduce(mine, op=dist.ReduceOp.MAX)
    return mine.tolist()


def measure(model, windows, optimizer, args, wait):
    """(backward, step, both) of each round, in ms, of the slowest rank."""

    def now():
        wait()
        return time.perf_counter()

    def backward():
        for p in model.parameters():
            p.grad = None
        model(windows).backward()

    made = []
    for rep in range(-args.warm, args.reps):
        dist.barrier()
        begun = now()
        backward()
        between = now()
        optimizer.step()
        apart = now()
        dist.barrier()
        again = now()
        backward()
        optimizer.step()
        times = slowest([between - begun, apart - between, now() - again])
        if rep >= 0:
            made.append([1e3 * t for t in times])
    return [statistics.median(column) for column in zip(*made)]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("layers", 12), ("width", 768), ("heads", 12), ("context", 1024), ("batch", 8),
                          ("vocabulary", 50257), ("reps", 9), ("warm", 3)):
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--only", default="*", help="rows whose name one of these patterns matches: 'AdamW*;dlion*'")
    parser.add_argument("--seconds", type=float, default=1e9, help="no row begins later")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main():
    args = arguments()
    begun = time.monotonic()
    alone = "RANK" not in os.environ
    dist.init_process_group("gloo", **(dict(store=dist.HashStore(), rank=0, world_size=1) if alone else {}))
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count()) if on_gpu else torch.device("cpu")
    wait = torch.cuda.synchronize if on_gpu else lambda: None
    if on_gpu:
        torch.cuda.set_device(device)
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(1)
    with device:
        model = nets.GPT(args.layers, args.heads, args.width, args.context, args.vocabulary)
    model.to(getattr(torch, args.dtype))
    torch.manual_seed(2 + dist.get_rank())
    windows = torch.randint(args.vocabulary, (args.batch, args.context + 1), device=device)
    n = sum(p.numel() for p in model.parameters())
    leads = dist.get_rank() == 0
    card = torch.cuda.get_device_name(device) if on_gpu else "CPU"
    if leads and not args.json:
        print(f"{card}, torch {torch.__version__}, {n:,} parameters in {args.dtype}, "
              f"{args.batch} x {args.context} tokens, {dist.get_world_size()} ranks\n"
              f"{'ms':<40} {'backward':>9} {'step':>9} {'whole':>9}", flush=True)
    for name, make in rows():
        if not any(fnmatch.fnmatch(name, one) for one in args.only.split(";")):
            continue
        if slowest([time.monotonic() - begun])[0] > args.seconds:
            break
        with contextlib.closing(make(model)) as optimizer:
            backward, step, whole = measure(model, windows, optimizer, args, wait)
            memory = getattr(optimizer, "memory", dict)()
        if leads and args.json:
            print(json.dumps(dict(row=name, card=card, torch=torch.__version__, params=n, dtype=args.dtype,
                                  ranks=dist.get_world_size(), backward_ms=backward, step_ms=step,
                                  whole_ms=whole, memory=memory)), flush=True)
        elif leads:
            print(f"{name:<40} {backward:9.2f} {step:9.2f} {whole:9.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
