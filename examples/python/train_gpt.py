#!/usr/bin/env python3
# Trains a small GPT on the bytes of a text: plain torch under torchrun, with a choice of optimizers.
# SPDX-License-Identifier: Apache-2.0
"""Trains a small GPT on the bytes of a text, with an optimizer of pride or with DDP and AdamW.

    python3 -m torch.distributed.run -r 1 -t 1 --nproc_per_node 4 examples/python/train_gpt.py

Without torch.distributed.run (torchrun) it trains with one process.
"""
import math
import pathlib
import sys
import sysconfig
import zlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import common
import pride


def arguments():
    parser = common.parser(__doc__, lr=6e-4, adamw_lr=3e-3, weight_decay=0.5,
                           adamw_weight_decay=0.1)
    add = parser.add_argument
    add("--data", help="a text file, or a folder of them; default: Python's own standard library")
    add("--steps", type=int, default=300)
    add("--batch", type=int, default=8, help="sequences per rank and forward pass (8)")
    add("--accumulate", type=int, default=1, help="forward passes per step (1)")
    add("--context", type=int, default=128, help="bytes of a sequence (128)")
    add("--layers", type=int, default=4)
    add("--width", type=int, default=128)
    add("--heads", type=int, default=4)
    add("--dtype", default="float32", choices=["float32", "bfloat16"],
        help="of parameters and gradients; pride keeps float32 masters, adamw does not")
    add("--eval-windows", type=int, default=256, help="validation sequences (256)")
    return parser.parse_args()


def read_text(path):
    """All bytes of a file, or of the text files of a folder, in order of name."""
    root = pathlib.Path(path or sysconfig.get_path("stdlib"))
    if not root.exists():
        sys.exit(f"train_gpt.py: --data {root}: there is no such file or folder")
    files = [root] if root.is_file() else sorted(
        f for f in root.rglob("*" if path else "*.py")
        if f.is_file() and not {"site-packages", "dist-packages"} & set(f.parts))
    texts = [f.read_bytes() for f in files]
    return b"".join(t for t in texts if b"\0" not in t)


class GPT(nn.Module):
    def __init__(self, args):
        super().__init__()
        width = args.width
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(args.context, width)
        for table in (self.bytes, self.places):
            nn.init.normal_(table.weight, std=width ** -0.5)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, args.heads, 4 * width, 0.0, "gelu", batch_first=True,
                                       norm_first=True) for _ in range(args.layers))
        self.norm = nn.LayerNorm(width)
        mask = torch.full((args.context, args.context), -math.inf).triu(1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, windows):
        """Mean loss in nats per byte, of all bytes of the windows except the first."""
        x = self.bytes(windows[:, :-1]) + self.places.weight
        for block in self.blocks:
            x = block(x, self.mask)
        logits = F.linear(self.norm(x), self.bytes.weight)  # the head is the embedding
        return F.cross_entropy(logits.flatten(0, 1).float(), windows[:, 1:].flatten())


class Windows:
    """Adjacent windows of the text. In an epoch each goes to one rank, once."""

    def __init__(self, text, args):
        self.text, self.length, self.seed = text, args.context + 1, args.seed
        self.n, self.epoch, self.order = len(text) // self.length, None, None

    def take(self, indices):
        return self.text[indices[:, None] * self.length + torch.arange(self.length)].long()

    def batch(self, index, size, rank, world):
        """Batch number `index` of a rank: the same in every call, also after a restart."""
        epoch, i = divmod(index, self.n // (size * world))
        if epoch != self.epoch:
            generator = torch.Generator().manual_seed(self.seed * 100003 + epoch)
            self.epoch, self.order = epoch, torch.randperm(self.n, generator=generator)
        first = (i * world + rank) * size
        return self.take(self.order[first:first + size])


@torch.no_grad()
def bits_per_byte(model, windows, args, rank, world):
    """Validation loss in bits per byte, on the same windows for any number of ranks."""
    mine = torch.arange(min(windows.n, args.eval_windows))[rank::world]
    total = sum(model(windows.take(w)).item() * len(w) for w in mine.split(args.batch))
    total, n = common.sum_over_ranks(total, len(mine))
    return total / n / math.log(2)


def main():
    args = arguments()
    text = read_text(args.data)
    rank, world = common.start(args)
    sums, crc = [None] * world, zlib.crc32(text)
    dist.all_gather_object(sums, crc)
    if len(set(sums)) > 1:
        sys.exit("train_gpt.py: the ranks have different texts: give --data")
    text = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    cut = len(text) * 9 // 10
    train, val = Windows(text[:cut], args), Windows(text[cut:], args)
    if train.n < args.batch * world or val.n < 1:
        sys.exit(f"train_gpt.py: a text of {len(text)} bytes is too short: give another --data")

    run = common.Training(args, GPT(args).to(getattr(torch, args.dtype)), args.steps)
    run.head(f"GPT, {args.layers} layers, width {args.width}, context {args.context}",
             f"{len(text)} bytes, crc32 {crc:08x}", text=len(text))
    bits = math.nan
    for step in range(run.first_step, args.steps):
        run.optimizer.zero_grad()
        losses = 0.0
        for part in range(args.accumulate):
            windows = train.batch(step * args.accumulate + part, args.batch, rank, world)
            loss = run.model(windows) / args.accumulate
            if part + 1 < args.accumulate:
                with run.no_sync():
                    loss.backward()
            else:
                loss.backward()
            losses += loss.item()
        run.optimizer.step()  # the exchange: dlion-vote sends only signs
        run.schedule.step()
        done = step + 1
        if run.due(done, args.eval_every):
            speed = run.speed(done, args.accumulate * args.batch * args.context)
            bits = bits_per_byte(run.bare, val, args, rank, world)
            run.progress(done, loss=pride.mean_over_ranks(losses), val_bits_per_byte=bits,
                         lr=run.schedule.get_last_lr()[0], tokens_per_s=speed,
                         quiet=dict(val_loss=bits * math.log(2)))
        if args.out and run.due(done, args.save_every):
            run.save(done)
    run.finish(val_bits_per_byte=bits)


if __name__ == "__main__":
    main()
