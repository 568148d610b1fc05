#!/usr/bin/env python3
# Trains a small ViT on CIFAR-10: plain torch under torchrun, with a choice of optimizers.
# SPDX-License-Identifier: Apache-2.0
"""Trains a small vision transformer on CIFAR-10, with an optimizer of pride or with DDP and AdamW.

    python3 -m torch.distributed.run -r 1 -t 1 --nproc_per_node 4 examples/python/train_vit.py --data DIR

DIR has the files of CIFAR-10's binary version (cifar-10-binary.tar.gz from its authors' page, or
scripts/get_data.sh): data_batch_1.bin ... data_batch_5.bin and test_batch.bin, plain or as .gz.
Without torch.distributed.run (torchrun) it trains with one process.
"""
import gzip
import math
import pathlib
import sys
import zlib

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DistributedSampler

import common
import pride

RECORD = 1 + 3 * 32 * 32  # a label, then planes of red, green and blue


def arguments():
    parser = common.parser(__doc__, lr=5e-4, adamw_lr=2e-3, weight_decay=0.2,
                           adamw_weight_decay=0.05)
    add = parser.add_argument
    add("--data", type=pathlib.Path, required=True, help="folder of CIFAR-10's binary files")
    add("--epochs", type=float, default=1.0, help="fractions allowed (1)")
    add("--batch", type=int, default=32, help="images per rank and step (32)")
    add("--layers", type=int, default=4)
    add("--width", type=int, default=128)
    add("--heads", type=int, default=4)
    add("--patch", type=int, default=8, help="side in pixels (8)")
    add("--test-images", type=int, default=10000, help="number of test images (10000)")
    return parser.parse_args()


def read_images(folder, pattern):
    """(pixels as bytes [n, 3, 32, 32], labels) of all files of these names, plain or .gz."""
    files = sorted(folder.glob(pattern + ".bin")) or sorted(folder.glob(pattern + ".bin.gz"))
    if not files:
        sys.exit(f"train_vit.py: no {pattern}.bin or {pattern}.bin.gz in --data {folder}; "
                 "scripts/get_data.sh cifar10 --into data puts them into data/cifar10")
    parts = []
    for file in files:
        with (gzip.open if file.suffix == ".gz" else open)(file, "rb") as opened:
            data = opened.read()
        if not data or len(data) % RECORD:
            sys.exit(f"train_vit.py: {file} has {len(data)} bytes, not a multiple of {RECORD}")
        parts.append(torch.frombuffer(bytearray(data), dtype=torch.uint8).view(-1, RECORD))
    records = torch.cat(parts)
    if records[:, 0].max() > 9:
        sys.exit(f"train_vit.py: a label above 9 in {files[0].name} ...: is this CIFAR-10?")
    return records[:, 1:].view(-1, 3, 32, 32), records[:, 0].long()


class ViT(nn.Module):
    def __init__(self, args):
        super().__init__()
        width, patches = args.width, (32 // args.patch) ** 2
        self.patches = nn.Conv2d(3, width, args.patch, args.patch)
        self.places = nn.Parameter(0.02 * torch.randn(1, patches, width))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, args.heads, 4 * width, 0.0, "gelu", batch_first=True,
                                       norm_first=True) for _ in range(args.layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, pixels):
        x = self.patches((pixels.float() - 120.0) / 64.0).flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


@torch.no_grad()
def test(model, pixels, labels, rank, world):
    """(mean loss, accuracy) of all test images; each rank evaluates its share."""
    loss = right = 0.0
    for indices in torch.arange(len(labels))[rank::world].split(250):
        logits = model(pixels[indices])
        loss += F.cross_entropy(logits, labels[indices], reduction="sum").item()
        right += (logits.argmax(1) == labels[indices]).sum().item()
    loss, right = common.sum_over_ranks(loss, right)
    return loss / len(labels), right / len(labels)


class Batches:
    """Shards of each epoch's permutation: no image goes to two ranks."""

    def __init__(self, n, args, rank, world):
        self.sampler = DistributedSampler(range(n), world, rank, seed=args.seed, drop_last=True)
        self.size, self.per_epoch, self.epoch = args.batch, n // world // args.batch, None

    def indices(self, step):
        epoch, i = divmod(step, self.per_epoch)
        if epoch != self.epoch:
            self.sampler.set_epoch(epoch)
            self.epoch, self.order = epoch, torch.tensor(list(self.sampler))
        return self.order[i * self.size:(i + 1) * self.size]


def main():
    args = arguments()
    if 32 % args.patch:
        sys.exit(f"train_vit.py: --patch {args.patch} does not divide 32")
    pixels, labels = read_images(args.data, "data_batch_*")
    test_pixels, test_labels = (x[:args.test_images] for x in read_images(args.data, "test_batch"))
    rank, world = common.start(args)
    batches = Batches(len(labels), args, rank, world)
    if batches.per_epoch < 1:
        sys.exit(f"train_vit.py: {len(labels)} images are less than a batch of {world} ranks")
    steps = max(1, round(args.epochs * batches.per_epoch))
    run = common.Training(args, ViT(args), steps)
    run.head(f"ViT, {args.layers} layers, width {args.width}, patch {args.patch}",
             f"CIFAR-10, {len(labels)} images, crc32 of labels {zlib.crc32(labels.numpy()):08x}")
    accuracy = loss_there = math.nan
    for step in range(run.first_step, steps):
        indices = batches.indices(step)
        flip = torch.rand(len(indices), generator=torch.Generator().manual_seed(
            (args.seed * 1000003 + step) * world + rank)) < 0.5
        x = torch.where(flip[:, None, None, None], pixels[indices].flip(3), pixels[indices])
        run.optimizer.zero_grad()
        loss = F.cross_entropy(run.model(x), labels[indices])
        loss.backward()
        run.optimizer.step()  # the exchange: dlion-vote sends only signs
        run.schedule.step()
        done = step + 1
        if run.due(done, args.eval_every):
            speed = run.speed(done, args.batch)
            loss_there, accuracy = test(run.bare, test_pixels, test_labels, rank, world)
            run.progress(done, loss=pride.mean_over_ranks(loss.detach()), test_loss=loss_there,
                         test_accuracy=accuracy, lr=run.schedule.get_last_lr()[0],
                         images_per_s=speed, quiet=dict(epoch=done / batches.per_epoch))
        if args.out and run.due(done, args.save_every):
            run.save(done)
    run.finish(test_loss=loss_there, test_accuracy=accuracy)


if __name__ == "__main__":
    main()
