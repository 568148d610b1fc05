# Shards of uint16 tokens on the device, and windows of them for each worker.
# SPDX-License-Identifier: Apache-2.0
import pathlib
import zlib

import torch

from images import NoData
from nets import GPT

VOCABULARY, PASSES = 50257, 3


def read(folder, pattern):
    """All tokens of the shards of that name: little-endian uint16 and nothing else."""
    folder = pathlib.Path(folder or "")
    files = sorted(folder.glob(pattern))
    if not files:
        raise NoData(f"no {pattern} in the folder {folder} of shards: name it with --data or PRIDE_DATA; "
                     "scripts/gpu_experiments.sh --shards makes them")
    data = b"".join(file.read_bytes() for file in files)
    if len(data) % 2:
        raise NoData(f"{folder}/{pattern}: {len(data)} bytes, an odd number, are no uint16 tokens")
    return torch.frombuffer(bytearray(data), dtype=torch.int16), zlib.crc32(data)


class Text:
    """The task: batches of some workers, the loss, the evaluation."""

    unit = "tokens"

    def __init__(self, run, folder, device, cache):
        self.run, self.device = run, device
        if "text" not in cache:
            (train, a), (validation, b) = read(folder, "train*.bin"), read(folder, "val*.bin")
            cache["text"] = train.to(device), validation.to(device), a ^ b
        self.tokens, self.validation, self.digest = cache["text"]
        self.n_windows = (len(self.tokens) - 1) // run.context
        asked = run.steps * run.workers * run.batch
        if asked > PASSES * self.n_windows:
            raise NoData(f"{run.name} reads {asked * run.context:,} tokens, more than {PASSES} passes over "
                         f"the {len(self.tokens):,} of the shards: more text, or a shorter run")
        most = min((len(self.validation) - 1) // run.context, max(1, (run.samples or 1 << 18) // run.context))
        self.held_out = torch.arange(most, device=device) * run.context

    def model(self):
        run = self.run
        return GPT(run.layers, run.heads, run.width, run.context, VOCABULARY)

    def begin(self, workers):
        """Sets the workers of later batches. In a pass each window goes to one worker."""
        self.workers = torch.tensor(list(workers), device=self.device)
        self.drawn = torch.Generator().manual_seed(self.run.seed)
        self.orders = []

    def _window(self, places):
        """Starts of the windows at these places of the passes' orders, one pass after the other."""
        n = self.n_windows
        while len(self.orders) * n <= self.last:
            self.orders.append(torch.randperm(n, generator=self.drawn))
            self.order = torch.cat(self.orders).to(self.device) * self.run.context
        return self.order[places]

    def batches(self, step):
        """The model's arguments for each worker."""
        size = self.run.batch
        first = step * self.run.workers * size
        self.last = first + self.run.workers * size - 1
        places = first + self.workers[:, None] * size + torch.arange(size, device=self.device)
        windows = self._windows(self.tokens, self._window(places.flatten()))
        return [(part,) for part in windows.split(size)]

    def _windows(self, tokens, starts):
        picked = tokens[starts[:, None] + torch.arange(self.run.context + 1, device=self.device)]
        return picked.int() & 0xffff

    @torch.no_grad()
    def evaluate(self, model):
        loss = 0.0
        for starts in self.held_out.split(16):
            loss += model(self._windows(self.validation, starts)).item() * len(starts)
        return dict(loss=loss / len(self.held_out))
