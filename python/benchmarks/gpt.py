#!/usr/bin/env python3
# Training steps of a GPT in PyTorch: pride beside DistributedDataParallel with Lion, in one run.
# SPDX-License-Identifier: Apache-2.0
"""usage: torchrun --nproc_per_node 4 python/benchmarks/gpt.py [--layers 6] [--width 384] [--reps N]
       scripts/slownet.sh -n 4 -r 1gbit -l env -- python3 python/benchmarks/gpt.py

The same GPT as `pride bench step --task lm` with those flags, written in torch. Rows:
backward alone; DDP (fp32 gradients, overlapped by torch) with Lion in torch; pride.DistributedLion
(vote) after backward and beside it. Rounds are interleaved; times are medians of the slowest rank.
"""
import argparse
import json
import pathlib
import statistics
import sys
import time

import torch
import torch.distributed as dist

import pride

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples" / "python"))
from train_gpt import GPT  # noqa: E402  pylint: disable=wrong-import-position


class LocalLion(torch.optim.Optimizer):
    """Lion (arXiv:2302.06675, Algorithm 2) in torch, on gradients that DDP has averaged."""

    def __init__(self, params):
        super().__init__(params, dict(lr=1e-4))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p.add_(m.mul(0.9).add_(p.grad, alpha=0.1).sign_(), alpha=-group["lr"])
                m.mul_(0.99).add_(p.grad, alpha=0.01)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("layers", 6), ("width", 384), ("heads", 6), ("context", 64),
                          ("batch", 2), ("reps", 9), ("threads", 1), ("lanes", 2)):
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--bucket", type=int, default=4 << 20, help="coordinates, of pride")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    def model():
        torch.manual_seed(1)
        return GPT(args)

    def ddp():
        wrapped = torch.nn.parallel.DistributedDataParallel(model())
        return wrapped, LocalLion(wrapped.parameters())

    def vote(overlap):
        bare = model()
        return bare, pride.DistributedLion(bare.parameters(), overlap=overlap, lanes=args.lanes,
                                           bucket_size=args.bucket)

    rows = {"backward": (model(), None), "DDP fp32 + Lion": ddp(), "pride vote": vote(False),
            "pride vote, overlap": vote(True)}
    generator = torch.Generator().manual_seed(rank)
    times = {name: [] for name in rows}
    for rep in range(-3, args.reps):  # the first rounds warm up and include pride's start-up checks
        for name, (net, optimizer) in rows.items():
            windows = torch.randint(256, (args.batch, args.context + 1), generator=generator)
            dist.barrier()
            begun = time.perf_counter()
            for p in net.parameters():
                p.grad = None
            net(windows).backward()
            if optimizer is not None:
                optimizer.step()
            mine = torch.tensor([time.perf_counter() - begun])
            dist.all_reduce(mine, op=dist.ReduceOp.MAX)
            if rep >= 0:
                times[name].append(mine.item())
    if rank > 0:
        return
    n = sum(p.numel() for p in rows["backward"][0].parameters())
    dense = statistics.median(times["DDP fp32 + Lion"])
    for name, seconds in times.items():
        median = statistics.median(seconds)
        if args.json:
            print(json.dumps(dict(row=name, params=n, ranks=world, ms=1e3 * median,
                                  speed_up=dense / median)))
        else:
            print(f"{name:<20} {1e3 * median:9.1f} ms   {dense / median:6.2f} of DDP's steps a "
                  f"second   ({n:,} parameters, {world} ranks)", flush=True)


if __name__ == "__main__":
    main()
