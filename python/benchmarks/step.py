#!/usr/bin/env python3
# One optimizer step in PyTorch with the gradients ready: pride beside what it replaces, in one run.
# SPDX-License-Identifier: Apache-2.0
"""usage: torchrun --nproc_per_node 4 python/benchmarks/step.py [--params N] [--reps N] [--json]

Rows: pride.DistributedLion (vote) with lanes and without; all-reduce of float32 gradients in buckets
of 25 MB, as DistributedDataParallel's, and Lion in torch; with --public FILE the optimizer `Lion` of
that file, e.g. distributed_lion.py of kyleliang919/distributed-lion-pytorch. Gradients are new
tensors in every round, as after zero_grad(set_to_none=True), so that pride's copies count. Rounds are
interleaved; times are medians over rounds of the slowest rank.
"""
import argparse
import importlib.util
import json
import statistics
import time

import torch
import torch.distributed as dist

import pride


class AllReduceLion(torch.optim.Optimizer):
    """Lion (arXiv:2302.06675, Algorithm 2) on the mean of all ranks' gradients, in torch."""

    BUCKET_BYTES = 25 << 20

    def __init__(self, params, lr):
        super().__init__(params, dict(lr=lr, betas=(0.9, 0.99)))

    @torch.no_grad()
    def step(self, closure=None):
        params = [p for group in self.param_groups for p in group["params"]]
        for bucket in self._buckets(params):
            flat = torch.cat([p.grad.view(-1) for p in bucket])
            dist.all_reduce(flat)
            flat.div_(dist.get_world_size())
            for p, mean in zip(bucket, flat.split([p.numel() for p in bucket])):
                p.grad.copy_(mean.view(p.shape))
        for p in params:
            state = self.state[p]
            if not state:
                state["m"] = torch.zeros_like(p)
            blend = state["m"].mul(0.9).add_(p.grad, alpha=0.1).sign_()
            p.add_(blend, alpha=-self.param_groups[0]["lr"])
            state["m"].mul_(0.99).add_(p.grad, alpha=0.01)

    def _buckets(self, params):
        bucket, size = [], 0
        for p in params:
            bucket.append(p)
            size += 4 * p.numel()
            if size >= self.BUCKET_BYTES:
                yield bucket
                bucket, size = [], 0
        if bucket:
            yield bucket


def make_params(n):
    """About n parameters as matrices of 512 x 1024 and vectors of 512, equal on all ranks."""
    torch.manual_seed(1)
    matrices = max(1, round(n / (512 * 1024 + 512)))
    shapes = [shape for _ in range(matrices) for shape in ((512, 1024), (512,))]
    return [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]


def public_lion(file):
    spec = importlib.util.spec_from_file_location("public_lion", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Lion


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--params", type=int, default=10_000_000)
    parser.add_argument("--reps", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1, help="of torch in each rank")
    parser.add_argument("--bucket", type=int, default=4 << 20, help="coordinates, of pride")
    parser.add_argument("--lanes", type=int, default=2)
    parser.add_argument("--public", metavar="FILE")
    parser.add_argument("--only", help="rows whose name contains this")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    makers = {
        "pride vote": lambda p: pride.DistributedLion(p, bucket_size=args.bucket, lanes=0),
        "pride vote, lanes": lambda p: pride.DistributedLion(
            p, bucket_size=args.bucket, lanes=args.lanes),
        "fp32 all-reduce + Lion": lambda p: AllReduceLion(p, 1e-4),
    }
    if args.public:
        makers["public implementation"] = lambda p: public_lion(args.public)(p, lr=1e-4)
    rows = {}
    for name, make in makers.items():
        if not args.only or args.only in name:
            params = make_params(args.params)
            rows[name] = params, make(params)
    torch.manual_seed(100 + rank)
    source = torch.randn(512, 1024)
    times = {name: [] for name in rows}
    for rep in range(-3, args.reps):  # the first rounds warm up and include pride's start-up checks
        for name, (params, optimizer) in rows.items():
            for p in params:
                p.grad = source[:p.shape[0]].clone() if p.dim() == 2 else source[0, :512].clone()
            dist.barrier()
            begun = time.perf_counter()
            optimizer.step()
            mine = torch.tensor([time.perf_counter() - begun])
            dist.all_reduce(mine, op=dist.ReduceOp.MAX)
            if rep >= 0:
                times[name].append(mine.item())
    if rank == 0:
        n = sum(p.numel() for p in next(iter(rows.values()))[0])
        for name, seconds in times.items():
            ms = 1e3 * statistics.median(seconds)
            if args.json:
                print(json.dumps(dict(row=name, params=n, ranks=dist.get_world_size(), ms=ms)))
            else:
                print(f"{name:<24} {ms:10.2f} ms   ({n:,} parameters, {dist.get_world_size()} ranks)")


if __name__ == "__main__":
    main()
