#!/usr/bin/env python3
# Forward and backward of N workers: one after the other, and all from one backward.
# SPDX-License-Identifier: Apache-2.0
"""usage: PYTHONPATH=python lab/experiments/gpu/at_once.py [cpu|cuda]

Milliseconds for all workers, of equal total batches. On a CPU it is processor time of one thread, of small
models; on a GPU of those of the experiment `speed`.
"""
import statistics
import sys
import time

import torch

import nets
import plans
import training

N = (1, 4, 32)


def cases(device):
    """(name, model, arguments of the model)."""
    small = device.type == "cpu"
    images, sequences, length = (64, 32, 64) if small else (1024, 64, 512)
    vit, gpt = (plans.SMALL, (2, 4, 128)) if small else (plans.PAPER, plans.GPT_30M)
    vocabulary = 1000 if small else 50257
    pixels = torch.randint(256, (images, 3, 32, 32), dtype=torch.uint8)
    yield f"ViT {vit}, {images} images", nets.ViT(*vit), (pixels, torch.randint(10, (images,)))
    yield (f"GPT {gpt}, {sequences} sequences of {length}", nets.GPT(*gpt, length, vocabulary),
           (torch.randint(vocabulary, (sequences, length + 1)),))


def milliseconds(gradient, parts, device, times=5):
    made = []
    for _ in range(times + 1):  # the first is not counted
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        begun = time.process_time() if device.type == "cpu" else time.perf_counter()
        for part in parts:
            gradient(part)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        made.append((time.process_time() if device.type == "cpu" else time.perf_counter()) - begun)
    return 1e3 * statistics.median(made[1:])


def main(given):
    device = torch.device(given[0] if given else "cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        torch.set_num_threads(1)
    torch.manual_seed(1)
    print("| model and batch of all | workers | one after the other, ms | at once, ms |\n|---|---|---|---|")
    for name, model, inputs in cases(device):
        model = model.to(device=device, dtype=torch.bfloat16 if device.type == "cuda" else torch.float32)
        inputs = [x.to(device) for x in inputs]
        for n in N:
            parts = list(zip(*(x.split(len(x) // n) for x in inputs)))
            one = milliseconds(training.Gradient(model, "eager", parts[0]), parts, device)
            together = milliseconds(training.Gradient(model, "eager", inputs, n), [inputs], device)
            print(f"| {name} | {n} | {one:.1f} | {together:.1f} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
