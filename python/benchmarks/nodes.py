# Bytes on each link and step times of nodes with several ranks: DDP, pride on all ranks, node_group.
# SPDX-License-Identifier: Apache-2.0
#
#   scripts/slownet.sh -n 4 --hosts 2 -r 1gbit -l env -- python3 python/benchmarks/nodes.py
import argparse
import os
import pathlib
import statistics
import time

import torch
import torch.distributed as dist

import pride

KINDS = ("ddp", "pride", "node_of_rank", "node_group")


def model_of(layers, width):
    torch.manual_seed(0)
    return torch.nn.Sequential(*[part for _ in range(layers) for part in (
        torch.nn.Linear(width, width), torch.nn.Tanh())])


def sent_by_card(card):
    """Bytes that this host's interface has sent so far."""
    return int(pathlib.Path(f"/sys/class/net/{card}/statistics/tx_bytes").read_text())


def make(kind, args):
    model = model_of(args.layers, args.width)
    params = model.named_parameters()
    if kind == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model), torch.optim.AdamW(
            model.parameters(), 1e-4)
    more = {"pride": {}, "node_of_rank": {"node_of_rank": [r // args.local for r in range(
        dist.get_world_size())]}, "node_group": {"node_group": "auto"}}[kind]
    return model, pride.Optimizer(params, 1e-4, method=args.method, **more)


def step(model, optimizer, args, g):
    """(seconds of a step, its seconds before step(), bytes that the interface sent)."""
    x = torch.randn(args.batch, args.width, generator=g)
    dist.barrier()
    before, began = sent_by_card(args.card), time.monotonic()
    optimizer.zero_grad()
    model(x).square().mean().backward()
    computing = time.monotonic() - began
    optimizer.step()
    seconds = time.monotonic() - began
    dist.barrier()
    return seconds, computing, sent_by_card(args.card) - before


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--width", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--method", default="dlion-vote")
    parser.add_argument("--card", default="net0")
    parser.add_argument("--local", type=int, default=int(os.environ["LOCAL_WORLD_SIZE"]))
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    made = {kind: make(kind, args) for kind in KINDS}
    g = torch.Generator().manual_seed(dist.get_rank())
    found = {kind: [] for kind in KINDS}
    for _ in range(args.steps + 3):  # three warm up
        for kind, (model, optimizer) in made.items():
            found[kind].append(step(model, optimizer, args, g))
    for kind in KINDS if dist.get_rank() == 0 else ():
        times, computing, sent = zip(*found[kind][3:])
        ratio = statistics.median(own / ddp[0] for own, ddp in zip(times, found["ddp"][3:]))
        own = made[kind][1].traffic()["last_step"] if kind != "ddp" else {}
        print(f"{kind:13} {1000 * statistics.median(times):7.1f} ms a step ({ratio:.2f} of DDP), "
              f"{1000 * statistics.median(computing):7.1f} before step(); the card sends "
              f"{statistics.median(sent) / 1e6:7.3f} MB; rank 0 sends "
              f"{own.get('bytes_sent', 0) / 1e6:6.3f} MB to voters, "
              f"{own.get('node_bytes_sent', 0) / 1e6:6.3f} MB inside its node")
    for kind in KINDS[1:]:
        made[kind][1].close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
