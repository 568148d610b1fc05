#!/usr/bin/env python3
# Steps of local-vote whose exchanges are waited for, in fragments, or hidden behind a delay.
# SPDX-License-Identifier: Apache-2.0
"""usage: scripts/slownet.sh -n 4 -r 10mbit -l env -- python3 python/benchmarks/streaming.py
           [--params N] [--compute SECONDS] [--steps H] [--reps N] [--json]

Forward and backward are a pause, as of an accelerator: the processors are left to the exchange.
Rows: no exchange at all; an exchange every H steps that is waited for; fragments; fragments and
delays. Rounds of two periods are interleaved; times are medians over rounds, of the slowest rank.
"""
import argparse
import json
import statistics
import time

import torch
import torch.distributed as dist

import pride


def rows(h):
    yield "no exchange", {"h": 100_000}
    yield "one exchange", {"h": h}
    yield "fragments=4", {"h": h, "fragments": 4}
    yield "fragments=4 delay=1", {"h": h, "fragments": 4, "delay": 1}
    yield "fragments=4 delay=4", {"h": h, "fragments": 4, "delay": 4}
    yield f"delay={h - 1}", {"h": h, "delay": h - 1}


def run(optimizer, grads, steps, compute):
    params = optimizer.param_groups[0]["params"]
    for _ in range(steps):
        time.sleep(compute)
        for p, grad in zip(params, grads):
            p.grad = grad
        optimizer.step()


def measured(optimizers, grads, args):
    seconds = {name: [] for name in optimizers}
    for rep in range(-1, args.reps):  # the first one touches memory
        for name, optimizer in optimizers.items():
            dist.barrier()
            begin = time.monotonic()
            run(optimizer, grads, 2 * args.steps, args.compute)
            mine = torch.tensor((time.monotonic() - begin) / (2 * args.steps))
            optimizer.check_replicas()  # the next row begins with an idle network
            dist.all_reduce(mine, dist.ReduceOp.MAX)
            if rep >= 0:
                seconds[name].append(mine.item())
    return {name: statistics.median(s) for name, s in seconds.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--params", type=int, default=4_000_000)
    parser.add_argument("--compute", type=float, default=0.1, help="seconds of a pause")
    parser.add_argument("--steps", type=int, default=8, help="h")
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    generator = torch.Generator().manual_seed(dist.get_rank())
    grads = [torch.randn(args.params // 8, generator=generator) for _ in range(8)]
    optimizers = {}
    for name, options in rows(args.steps):
        params = [torch.nn.Parameter(torch.zeros_like(grad)) for grad in grads]
        optimizers[name] = pride.Optimizer(params, 1e-3, method="local-vote", options=options,
                                           bucket_size=1 << 18)
    times = measured(optimizers, grads, args)
    if dist.get_rank() == 0:
        waited = times["one exchange"]
        for name, s in times.items():
            print(json.dumps({"row": name, "step_s": s}) if args.json else
                  f"{name:20s} {1000 * s:8.1f} ms  {waited / s:5.2f}", flush=True)
    for optimizer in optimizers.values():
        optimizer.close()


if __name__ == "__main__":
    main()
