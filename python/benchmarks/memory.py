#!/usr/bin/env python3
# Resident memory of a PyTorch process with an optimizer of pride, beside its model and gradients.
# SPDX-License-Identifier: Apache-2.0
"""usage: python/benchmarks/memory.py [--params N] [--dtype float32|bfloat16] [--method NAME] [--steps N]

One process. Rows are in bytes a parameter: the model with its gradients, and what came on top of it
when the optimizer was made, after steps, and at most.
"""
import argparse
import resource

import torch

import pride


def resident():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--params", type=int, default=100_000_000)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--method", default="dlion-vote")
    parser.add_argument("--steps", type=int, default=4)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dtype = getattr(torch, args.dtype)
    begin = resident()
    params = [torch.nn.Parameter(torch.ones(1000, 1000, dtype=dtype))
              for _ in range(args.params // 1_000_000)]
    for p in params:
        p.grad = torch.ones_like(p)
    model = resident()
    optimizer = pride.Optimizer(params, method=args.method)
    made = resident()
    for _ in range(args.steps):
        optimizer.step()
    after = resident()
    most = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    n = sum(p.numel() for p in params)
    for name, value in (("model and gradients", model - begin), ("optimizer made", made - model),
                        ("after steps", after - model), ("at most", most - model)):
        print(f"{name:<20} {value / n:8.3f} bytes a parameter {value / 1e6:10.1f} MB")


if __name__ == "__main__":
    main()
