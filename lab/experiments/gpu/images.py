# CIFAR-10 on the device: pixels resident there, crops and flips made there.
# SPDX-License-Identifier: Apache-2.0
import gzip
import pathlib
import zlib

import torch
from torch.nn import functional as F

from nets import ViT

RECORD, MARGIN = 1 + 3 * 32 * 32, 4


class NoData(Exception):
    """Data are missing; the text says how to name their folder."""


def read(folder, pattern, most=None):
    """(pixels [n, 3, 32, 32] as bytes, labels) of the binary files of that name, plain or .gz."""
    folder = pathlib.Path(folder or "")
    files = sorted(folder.glob(pattern + ".bin")) or sorted(folder.glob(pattern + ".bin.gz"))
    if not files:
        raise NoData(f"no {pattern}.bin or {pattern}.bin.gz in the folder {folder} of CIFAR-10: "
                     "name it with --data or PRIDE_DATA")
    parts, left = [], most or 1 << 60
    for file in files:
        if left > 0:
            with (gzip.open if file.suffix == ".gz" else open)(file, "rb") as opened:
                data = opened.read(min(left, 10000) * RECORD)
            parts.append(torch.frombuffer(bytearray(data), dtype=torch.uint8).view(-1, RECORD))
            left -= len(parts[-1])
    records = torch.cat(parts)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].long()


class Images:
    """The task: batches of some workers, the loss, the evaluation."""

    unit = "images"

    def __init__(self, run, folder, device, cache):
        self.run, self.device = run, device
        most = run.samples or None
        if most not in cache:  # runs of one call share the data
            train, test = read(folder, "data_batch_*", most), read(folder, "test_batch", most)
            digest = zlib.crc32(train[0].numpy().tobytes(), zlib.crc32(test[0].numpy().tobytes()))
            padded = F.pad(train[0].to(device), [MARGIN] * 4, value=120)
            cache[most] = (padded, train[1].to(device), test[0].to(device), test[1].to(device), digest)
        self.pixels, self.labels, self.test_pixels, self.test_labels, self.digest = cache[most]
        self.per_epoch = len(self.labels) // run.batch
        self.epoch = None

    def model(self):
        return ViT(self.run.layers, self.run.heads, self.run.width)

    def begin(self, workers):
        """Sets the workers of later batches. Each draws from all images."""
        self.drawn = [torch.Generator(self.device).manual_seed(self.run.seed * 1009 + worker)
                      for worker in workers]

    def _draw(self):
        """Draws each worker's order, crops and flips of an epoch."""
        n = len(self.labels)
        places = [torch.stack([
            torch.randperm(n, generator=g, device=self.device),
            torch.randint(2 * MARGIN + 1, (n,), generator=g, device=self.device),
            torch.randint(2 * MARGIN + 1, (n,), generator=g, device=self.device),
            torch.randint(2, (n,), generator=g, device=self.device)]) for g in self.drawn]
        self.order = torch.stack(places)  # [workers, 4, n]

    def batches(self, step):
        """The model's arguments for each worker, from one gather."""
        epoch, place = divmod(step, self.per_epoch)
        if epoch != self.epoch:
            self._draw()
            self.epoch = epoch
        part = self.order[:, :, place * self.run.batch:(place + 1) * self.run.batch]
        index, down, right, flip = part.transpose(0, 1).flatten(1)
        side = torch.arange(32, device=self.device)
        rows = down[:, None] + side
        columns = right[:, None] + torch.where(flip[:, None] == 1, 31 - side, side)
        channel = torch.arange(3, device=self.device)
        pixels = self.pixels[index[:, None, None, None], channel[None, :, None, None],
                             rows[:, None, :, None], columns[:, None, None, :]]
        return list(zip(pixels.split(self.run.batch), self.labels[index].split(self.run.batch)))

    @torch.no_grad()
    def evaluate(self, model):
        loss = right = 0.0
        for pixels, labels in zip(self.test_pixels.split(1000), self.test_labels.split(1000)):
            logits = model.logits(pixels)
            loss += F.cross_entropy(logits, labels, reduction="sum").item()
            right += (logits.argmax(1) == labels).sum().item()
        n = len(self.test_labels)
        return dict(loss=loss / n, accuracy=right / n)
