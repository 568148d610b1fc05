#!/usr/bin/env python3
# Steps of a GPT of 10 million parameters under DDP with the communication hooks of mean_bits.py, on a
# slow network.
# SPDX-License-Identifier: Apache-2.0
"""Times steps with several communication hooks, and their exchange alone. Prints a line of JSON for each.

    scripts/slownet.sh -n 4 -r 100mbit -l env -- python3 lab/experiments/hook_steps.py --rate 100e6

exchange_s: a step whose backward computes nothing. needed_s: the time in which a link of --rate bits per
second carries the bytes that a rank sends, in each direction, as counted by the operating system. step_s
and exchange_s are medians of --steps steps after three.
"""
import argparse
import json
import pathlib
import statistics
import time
import types

import torch
import torch.distributed as dist

from mean_bits import hooked, train_gpt, wrapped

SIZES = types.SimpleNamespace(context=128, layers=5, width=400, heads=8)


class Nothing(torch.nn.Module):
    """The parameters of a model; its gradient is given."""

    def __init__(self, model):
        super().__init__()
        self.parts = torch.nn.ParameterList(model.parameters())
        self.gradients = [torch.randn_like(p) for p in self.parts]

    def forward(self, x):
        return x + sum((p * g).sum() for p, g in zip(self.parts, self.gradients))


def counted():
    """Bytes that this host's interfaces have sent, without loopback."""
    return sum(int((folder / "statistics" / "tx_bytes").read_text())
               for folder in pathlib.Path("/sys/class/net").iterdir() if folder.name != "lo")


def times(model, inputs, name, steps):
    """(median seconds of a step, bytes that this host sent in one)."""
    model = wrapped(name, model)
    hooked(name, model, 10)  # powersgd-R compresses from the third step on
    seconds = []
    for step in range(steps + 3):
        model.zero_grad()
        dist.barrier()
        if step == 3:
            before = counted()
        began = time.monotonic()
        model(inputs).backward()
        seconds.append(time.monotonic() - began)
    sent = (counted() - before) / steps
    return statistics.median(seconds[3:]), sent


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--rate", type=float, required=True, help="of a link, in bits per second")
    add("--hooks", nargs="+", default=["fp32", "bf16", "pride-8", "pride-4", "powersgd-1", "powersgd-4"],
        metavar="HOOK")
    add("--steps", type=int, default=9)
    add("--batch", type=int, default=1, help="sequences of 128 bytes per rank (1)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for name in args.hooks:
        torch.manual_seed(1)
        windows = torch.randint(256, (args.batch, SIZES.context + 1))
        step, _ = times(train_gpt.GPT(SIZES), windows, name, args.steps)
        exchange, sent = times(Nothing(train_gpt.GPT(SIZES)), torch.zeros(()), name, args.steps)
        if dist.get_rank() == 0:
            print(json.dumps({"hook": name, "ranks": dist.get_world_size(), "rate": args.rate,
                              "step_s": round(step, 4), "exchange_s": round(exchange, 4),
                              "needed_s": round(8 * sent / args.rate, 4), "bytes": round(sent)}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
