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


def model_of(layers, width):
    torch.manual_seed(0)
    return torch.nn.Sequential(*[part for _ in range(layers) for part in (
        torch.nn.Linear(width, width), torch.nn.Tanh())])


def sent_by_card(card):
    """Bytes of this host so far."""
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


def measure(kind, args):
    """Medians of (seconds of a step, of it outside step(), bytes of the card, traffic)."""
    model, optimizer = make(kind, args)
    g = torch.Generator().manual_seed(dist.get_rank())
    times, computing, sent = [], [], []
    for _ in range(args.steps + 3):  # three begin
        x = torch.randn(args.batch, args.width, generator=g)
        dist.barrier()
        before, began = sent_by_card(args.card), time.monotonic()
        optimizer.zero_grad()
        model(x).square().mean().backward()
        computing.append(time.monotonic() - began)
        optimizer.step()
        times.append(time.monotonic() - began)
        dist.barrier()
        sent.append(sent_by_card(args.card) - before)
    traffic = {} if kind == "ddp" else optimizer.traffic()["last_step"]
    if kind != "ddp":
        optimizer.close()
    return (*(statistics.median(values[3:]) for values in (times, computing, sent)), traffic)


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
    for kind in ("ddp", "pride", "node_of_rank", "node_group"):
        seconds, computing, sent, traffic = measure(kind, args)
        if dist.get_rank() == 0:
            print(f"{kind:13} {1000 * seconds:8.1f} ms a step, {1000 * computing:7.1f} before "
                  f"step(); the card sends {sent / 1e6:8.3f} MB; rank 0 sends "
                  f"{traffic.get('bytes_sent', 0) / 1e6:7.3f} MB to voters, "
                  f"{traffic.get('node_bytes_sent', 0) / 1e6:7.3f} MB inside its node", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
