#!/usr/bin/env python3
# Steps to a validation loss of 3.28 on FineWeb, as a public board of optimizers counts them, with votes.
# SPDX-License-Identifier: Apache-2.0
"""The board: https://github.com/KellerJordan/modded-nanogpt, records/track_3_optimization, as of commit
f411b3d3 (2026-08-01). From it: model, initial values, shards, batch of 8 x 64 sequences of 1024 tokens,
evaluation, schedule, and the rates of embedding, output layer and vectors. Its 8 micro-batches are 8 virtual
workers of pride.

This measures what an entry would reach, and is none: rule 4 of the board forbids to import an optimizer from
a library. An entry contains
  - the vote: signs of each micro-batch's blend, their sum over micro-batches, its sign, ties by a hash
  - 8 momenta for each matrix, and decay and step by the sign
  - for dlion-muon the board's own Newton-Schulz, on each micro-batch's blend
There is one forward and backward for each micro-batch and one step for all, so rule 2 allows it.

What differs from the board's baseline: AdamW has float32 moments, and a float32 master of the bfloat16
embedding. Newton-Schulz has 5 iterations with Muon's first coefficients, not 12; on CUDA it computes in TF32.

OUT/metrics.jsonl has losses, rates, seconds and bytes for `pride report --metrics`. adamw and muon take the
mean gradient, so one worker accumulates all micro-batches; their bytes are computed for 8 ranks.
"""
import argparse
import array
import dataclasses
import itertools
import json
import pathlib
import struct
import sys

import torch

import pride
from board_net import BoardGPT
from images import NoData
from training import Clock

WORKERS, TARGET, MARGIN = 8, 3.28, 0.004  # MARGIN: rule 3, for one run
FLAT = 0.3  # share of the steps before the rates fall to 0
MAGIC, VERSION, HEADER = 20240520, 1, 512  # HEADER: in uint16


@dataclasses.dataclass
class Size:
    layers: int
    width: int
    head: int
    context: int
    sequences: int  # of a worker
    held_out: int  # batches of an evaluation
    every: int  # steps between evaluations; a fifth of it in the last tenth of the run
    steps: int

    @property
    def batch(self):
        return WORKERS * self.sequences * self.context


BOARD = Size(layers=12, width=768, head=128, context=1024, sequences=64, held_out=20, every=125,
             steps=3250)
TOY = Size(layers=2, width=32, head=16, context=32, sequences=2, held_out=2, every=10, steps=40)
TOY_TOKENS = 128  # the vocabulary of synthetic shards


@dataclasses.dataclass
class Rule:
    """What moves the matrices. spectral: lr is Muon's on the board, of an orthogonal matrix times
    sqrt(max(1, rows / columns))."""

    lr: float
    weight_decay: float
    betas: tuple = None
    momentum: float = None
    options: dict = dataclasses.field(default_factory=dict)
    warmup: int = 0
    spectral: bool = False
    votes: bool = True


# muon: the board's result 36. adamw: pull request 353 there. dlion-vote: a third of AdamW's rate, three times
# its decay. dlion-muon: a coordinate moves as far as muon's do on average. No vote was tuned here.
RULES = {
    "dlion-muon": Rule(0.025, 0.05, momentum=0.95, spectral=True),
    "dlion-vote": Rule(3.3e-4, 3.0, betas=(0.9, 0.99)),
    "adamw": Rule(1e-3, 1.0, betas=(0.9, 0.95), warmup=100, votes=False),
    "muon": Rule(0.025, 0.05, momentum=0.95, options={"matrix_scale": "none"}, spectral=True,
                 votes=False),
}
EMBEDDING, OUTPUT, VECTORS = 0.7, 0.004, 0.015  # the board's rates of AdamW
REST = dict(betas=(0.8, 0.95), eps=1e-10, weight_decay=0.001)


def tokens_of(file):
    """The tokens of a shard, int16 in place of uint16. It has the board's header, or nothing but tokens."""
    size = file.stat().st_size
    if size % 2:
        raise NoData(f"{file}: {size} bytes, an odd number, are no uint16 tokens")
    words = torch.from_file(str(file), shared=False, size=size // 2, dtype=torch.int16)
    header = words[:HEADER].view(torch.int32).tolist() if len(words) >= HEADER else [0]
    if header[0] != MAGIC:
        return words
    if header[1] != VERSION or header[2] != len(words) - HEADER:
        raise NoData(f"{file}: version {header[1]}, {header[2]:,} tokens by its header and "
                     f"{len(words) - HEADER:,} in it; expected version {VERSION} and equal numbers")
    return words[HEADER:]


def batches(folder, name, size):
    """Windows of size + 1 tokens of the shards *name*.bin, one after the other, without a shard's rest."""
    files = sorted(folder.glob(f"*{name}*.bin"))
    if not files:
        raise NoData(f"no *{name}*.bin in {folder}: give --shards the folder of the board's tokens")
    for file in files:
        tokens = tokens_of(file)
        for first in range(0, len(tokens) - size - 1, size):
            yield tokens[first:first + size + 1]


def sequences(window, context, device):
    """(inputs, targets), each [sequences, context] int64."""
    window = window.to(device).long() & 0xffff
    return window[:-1].view(-1, context), window[1:].view(-1, context)


def synthetic(folder, size, steps, seed):
    """Shards in the board's format. A token follows from the one before; one in five is drawn."""
    drawn = torch.Generator().manual_seed(seed)
    after = torch.randperm(TOY_TOKENS, generator=drawn).tolist()
    folder.mkdir(parents=True, exist_ok=True)
    for name, n in (("train", steps * size.batch + 2), ("val", size.held_out * size.batch + 2)):
        free = torch.randint(5 * TOY_TOKENS, (n,), generator=drawn).tolist()
        tokens = array.array("H", [0])
        for one in free[1:]:
            tokens.append(one if one < TOY_TOKENS else after[tokens[-1]])
        head = struct.pack("<3i", MAGIC, VERSION, n).ljust(2 * HEADER, b"\0")
        (folder / f"synthetic_{name}_000000.bin").write_bytes(head + tokens.tobytes())


def groups_of(model, rule, rest):
    """The matrices of the blocks with the rule's rate, a group for each factor on it. All else has AdamW with
    the board's rates, or the same method at `rest` times these rates."""
    matrices, vectors = {}, []
    for name, p in model.named_parameters():
        if p.dim() < 2:
            vectors.append((name, p))
        elif name.startswith("blocks."):
            matrices.setdefault(factor(p, rule), []).append((name, p))
    made = [dict(params=params, lr=f * rule.lr, weight_decay=rule.weight_decay / f, matrix=True)
            for f, params in matrices.items()]
    for params, lr in (([("embed.weight", model.embed.weight)], EMBEDDING),
                       ([("proj.weight", model.proj.weight)], OUTPUT), (vectors, VECTORS)):
        own = dict(REST, method="adamw", lr=lr) if rest is None else dict(
            lr=rest * lr, weight_decay=REST["weight_decay"] / rest)
        made.append(dict(params=params, matrix=False, **own))
    return made


def factor(p, rule):
    """From the rate of the rule to that of a matrix [rows, columns]. An orthogonal matrix times
    sqrt(max(1, rows / columns)) has coordinates of columns ** -0.5; a sign has 1."""
    rows, columns = p.shape
    if not rule.spectral:
        return 1.0
    return columns ** -0.5 if rule.votes else max(1.0, rows / columns) ** 0.5


def share(step, steps, warmup):
    """The factor on all rates: flat, then linear to 0."""
    return min(1.0, (1 - step / steps) / (1 - FLAT), (step + 1) / max(1, warmup))


class Training:
    def __init__(self, args, rule, size, device):
        self.rule, self.size, self.device = rule, size, device
        held_out = next(batches(args.shards, "val", size.held_out * size.batch), None)
        if held_out is None:
            raise NoData(f"{args.shards}: no validation shard has "
                         f"{size.held_out * size.batch + 2:,} tokens")
        self.held_out = sequences(held_out, size.context, device)
        self.windows = batches(args.shards, "train", size.batch)
        torch.manual_seed(args.seed)
        model = BoardGPT(args.vocabulary, size.layers, size.width, size.head, size.context)
        self.model = model.to(device)
        self.forward = torch.compile(self.model, dynamic=False) if device.type == "cuda" else self.model
        self.n = sum(p.numel() for p in self.model.parameters())
        self.played = WORKERS if rule.votes else 1
        groups = groups_of(self.model, rule, args.rest_scale if args.rest == "same" else None)
        self.optimizer = pride.VirtualWorkers(
            groups, betas=rule.betas, momentum=rule.momentum, method=args.method, options=rule.options,
            workers=self.played, seed=args.seed, bucket_size=1 << 26)
        self.first_rates = [group["lr"] for group in self.optimizer.param_groups]

    def micro_batches(self, inputs, targets):
        return zip(inputs.split(self.size.sequences), targets.split(self.size.sequences))

    def step(self, scale):
        """One step of all workers; returns the sum of their losses."""
        window = next(self.windows, None)
        if window is None:
            raise NoData(f"the training shards have no further batch of {self.size.batch:,} tokens: "
                         "give more of them, or fewer --steps")
        for group, lr in zip(self.optimizer.param_groups, self.first_rates):
            group["lr"] = scale * lr
        parts, losses = self.micro_batches(*sequences(window, self.size.context, self.device)), 0.0
        for i in range(self.played):
            with self.optimizer.worker(i):
                for x, y in itertools.islice(parts, WORKERS // self.played):
                    loss = self.forward(x, y)
                    loss.backward()
                    losses += loss.detach()
        self.optimizer.step()
        return losses

    @torch.no_grad()
    def evaluate(self):
        """Nats per token."""
        losses = [self.forward(x, y).double() for x, y in self.micro_batches(*self.held_out)]
        return sum(losses).item() / (self.size.held_out * self.size.batch)

    def bytes_sent(self, steps):
        if self.played == WORKERS:
            return self.optimizer.traffic()["bytes_sent"]
        return steps * pride.step_bytes("adamw", self.n, world=WORKERS)  # of muon, too

    def run(self, steps):
        """Yields what metrics.jsonl has of a step."""
        clock, losses, measured = Clock(self.device), torch.zeros((), device=self.device), 0
        clock.restart()
        for step in range(steps + 1):
            every = self.size.every if step < 0.9 * steps else self.size.every // 5
            if step == steps or step % every == 0:
                clock.pause()
                point = dict(step=step, seconds=clock.seconds, bytes_sent=self.bytes_sent(step))
                if step:
                    point["loss"] = losses.item() / (step - measured) / self.size.batch
                    point["lr"] = self.optimizer.param_groups[0]["lr"]
                yield {**point, "val_loss": self.evaluate()}
                measured, losses = step, torch.zeros_like(losses)
                clock.resume()
            if step < steps:
                losses += self.step(share(step, steps, self.rule.warmup))


def arguments(given):
    parser = argparse.ArgumentParser(prog="board.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--method", choices=list(RULES), default="dlion-muon", help="of the blocks' matrices (dlion-muon)")
    add("--rest", choices=["adamw", "same"], default="adamw",
        help="method of embedding, output layer and vectors (adamw)")
    add("--rest-scale", type=float, default=1 / 3, help="with --rest same: times AdamW's rates (a third)")
    add("--shards", type=pathlib.Path, help="folder of fineweb_train_*.bin and fineweb_val_*.bin, or other "
        "names with train and val; with --toy synthetic ones by default")
    add("--out", type=pathlib.Path, required=True, help="folder of metrics.jsonl")
    add("--steps", type=int, help="of the schedule (3250; --toy 40)")
    add("--lr", type=float, help="of matrices; of dlion-muon and muon in the units of the board's Muon")
    add("--weight-decay", type=float, help="of matrices, likewise")
    add("--beta2", type=float, help="of dlion-vote and adamw")
    add("--momentum", type=float, help="of muon and dlion-muon (0.95)")
    add("--cautious", action="store_true", help="matrices decay only where a step has the sign of the weight")
    add("--seed", type=int, default=0, help="of initial values and of ties (0)")
    add("--toy", action="store_true", help="a model of 2 layers, on the CPU in seconds")
    add("--device", help="cuda where there is one, else cpu")
    args = parser.parse_args(given)
    if args.shards is None and not args.toy:
        parser.error("--shards is needed without --toy")
    for flag, value, has in (("--beta2", args.beta2, RULES[args.method].betas),
                             ("--momentum", args.momentum, RULES[args.method].momentum)):
        if value is not None and has is None:
            parser.error(f"{flag}: {args.method} has none here")
    return args


def rule_of(args):
    rule = RULES[args.method]
    given = {key: value for key, value in (("lr", args.lr), ("weight_decay", args.weight_decay),
                                           ("momentum", args.momentum)) if value is not None}
    if args.beta2 is not None:
        given["betas"] = rule.betas[0], args.beta2
    if args.cautious:
        given["options"] = {**rule.options, "cautious_decay": True}
    return dataclasses.replace(rule, **given)


def head_of(args, rule, training):
    """What metrics.jsonl has of the run."""
    settings = dict(rest=args.rest, lr=rule.lr, weight_decay=rule.weight_decay, steps=args.steps,
                    batch=training.size.sequences)
    if args.rest == "same":
        settings["rest_scale"] = args.rest_scale
    if rule.betas:
        settings["beta2"] = rule.betas[1]
    else:
        settings["momentum"] = rule.momentum
    if args.cautious:
        settings["cautious_decay"] = "yes"
    return dict(method=args.method, workers=WORKERS, parameters=training.n, steps=args.steps,
                seed=args.seed, task="board", model="toy" if args.toy else "gpt",
                data=args.shards.resolve().name, settings=settings)


def main(given=None):
    args = arguments(given)
    size = TOY if args.toy else BOARD
    args.steps = size.steps if args.steps is None else args.steps
    args.vocabulary = TOY_TOKENS if args.toy and args.shards is None else 50304
    file = args.out / "metrics.jsonl"
    if file.exists():
        sys.exit(f"board.py: {file} has a run already")
    args.out.mkdir(parents=True, exist_ok=True)
    if args.shards is None:
        args.shards = args.out / "synthetic"
        synthetic(args.shards, size, args.steps, args.seed)
    torch.set_float32_matmul_precision("high")
    device = torch.device(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    try:
        rule = rule_of(args)
        training = Training(args, rule, size, device)
        with open(file, "w", encoding="utf-8") as out:
            print(json.dumps(head_of(args, rule, training)), file=out, flush=True)
            for point in training.run(args.steps):
                print(json.dumps(point), file=out, flush=True)
                print(*(f"{k} {v:.5g}" for k, v in point.items()), flush=True)
    except NoData as error:
        sys.exit(f"board.py: {error}")
    training.optimizer.close()
    if not args.toy:
        loss = point["val_loss"]
        print(f"{loss:.4f} after {args.steps:,} steps; rule 3 asks one run for {TARGET - MARGIN:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
