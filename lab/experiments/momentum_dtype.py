#!/usr/bin/env python3
# What a momentum in bfloat16 costs in loss: a byte GPT on a text, distributed Lion with 4 workers in
# one process, the momentum kept in float32, in bfloat16 rounded to nearest, and in bfloat16 rounded
# stochastically. Plain PyTorch, without pride: it was how the rounding was chosen.
# SPDX-License-Identifier: Apache-2.0
"""usage: momentum_dtype.py --data tinyshakespeare.txt [--beta2 0.9 0.99] [--seeds 0 1 2] ..."""
import argparse
import json
import math

import torch

WORKERS, CONTEXT, WIDTH, LAYERS, HEADS = 4, 64, 64, 2, 4


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.after = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)
        self.register_buffer("mask", torch.full((CONTEXT, CONTEXT), -math.inf).triu(1))

    def forward(self, x):
        q, k, v = (y.view(*x.shape[:2], HEADS, -1).transpose(1, 2)
                   for y in self.qkv(self.before(x)).chunk(3, -1))
        scores = q @ k.transpose(-1, -2) / math.sqrt(WIDTH // HEADS) + self.mask
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape))
        return x + self.narrow(torch.nn.functional.gelu(self.wide(self.after(x))))


class Gpt(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = torch.nn.Embedding(256, WIDTH), torch.nn.Embedding(CONTEXT, WIDTH)
        self.blocks = torch.nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.end, self.head = torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, 256, bias=False)
        for p in self.parameters():
            if p.dim() > 1:
                torch.nn.init.normal_(p, std=0.02)

    def loss(self, bytes_):
        x = self.tokens(bytes_[:, :-1]) + self.places.weight
        logits = self.head(self.end(self.blocks(x)))
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), bytes_[:, 1:].flatten())


def kept(m, how, random):
    """m as it is kept in memory."""
    if how == "float32":
        return m
    if how == "nearest":
        return m.bfloat16().float()
    bits = m.view(torch.int32) + torch.randint(0, 1 << 16, m.shape, generator=random,
                                               dtype=torch.int32)
    return (bits & -65536).view(torch.float32)


def windows(text, n, random):
    starts = torch.randint(0, len(text) - CONTEXT - 1, (n,), generator=random)
    return torch.stack([text[i:i + CONTEXT + 1] for i in starts.tolist()]).long()


def train(text, held_out, how, beta2, seed, options):
    """Mean loss of held-out windows after the last step."""
    torch.manual_seed(seed)
    model, data, random = Gpt(), torch.Generator().manual_seed(seed), torch.Generator()
    random.manual_seed(1000 + seed)
    params = list(model.parameters())
    momenta = [[torch.zeros_like(p) for p in params] for _ in range(WORKERS)]
    for step in range(options.steps):
        warm = min(1, (step + 1) / options.warmup)
        lr = options.lr * warm * (1 + math.cos(math.pi * step / options.steps)) / 2
        votes = [torch.zeros_like(p) for p in params]
        for worker in momenta:
            grads = torch.autograd.grad(model.loss(windows(text, options.batch, data)), params)
            for i, g in enumerate(grads):
                votes[i] += (options.beta1 * worker[i] + (1 - options.beta1) * g).sign()
                worker[i] = kept(beta2 * worker[i] + (1 - beta2) * g, how, random)
        with torch.no_grad():
            for p, vote in zip(params, votes):
                tied = torch.rand(p.shape, generator=random) * 2 - 1
                p.sub_(lr * torch.where(vote == 0, tied, vote).sign())
    with torch.no_grad():
        return sum(model.loss(w).item() for w in held_out) / len(held_out)


def main():
    parse = argparse.ArgumentParser(usage=__doc__)
    parse.add_argument("--data", required=True)
    parse.add_argument("--kept", nargs="+", default=["float32", "nearest", "stochastic"])
    parse.add_argument("--beta1", type=float, default=0.9)
    parse.add_argument("--beta2", nargs="+", type=float, default=[0.9, 0.99])
    parse.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parse.add_argument("--steps", type=int, default=300)
    parse.add_argument("--warmup", type=int, default=30)
    parse.add_argument("--batch", type=int, default=8)
    parse.add_argument("--lr", type=float, default=2e-3)
    options = parse.parse_args()
    with open(options.data, "rb") as file:
        text = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)
    cut = len(text) * 9 // 10
    test = torch.Generator().manual_seed(7)
    held_out = [windows(text[cut:], 64, test) for _ in range(8)]
    for beta2 in options.beta2:
        for seed in options.seeds:
            for how in options.kept:
                loss = train(text[:cut], held_out, how, beta2, seed, options)
                print(json.dumps({"beta2": beta2, "seed": seed, "kept": how,
                                  "loss": round(loss, 4)}), flush=True)


if __name__ == "__main__":
    main()
