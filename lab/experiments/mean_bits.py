#!/usr/bin/env python3
# What a quantized mean gradient costs in loss: torch's AdamW at its own rate, a small GPT or a small
# ViT, DDP with communication hooks of torch and of pride, and forms that pride has not, simulated.
# SPDX-License-Identifier: Apache-2.0
"""Trains one model with several communication hooks and appends a line of JSON for each run.

    python3 -m torch.distributed.run --nproc_per_node 4 lab/experiments/mean_bits.py gpt \\
        --data tinyshakespeare.txt --out mean-bits.jsonl

Runs that the file has already are left out, so an interrupted command continues. The batch of all ranks
together is the same for any number of ranks. The rate is that of the lowest loss without a hook, on half
of the steps with seed 100.

Hooks: fp32 (none), bf16 (torch's), powersgd-R (torch's, rank R, after a tenth of the steps), pride-B
(pride.ddp_hook, B bits), and sim-B[-bK][-cC][-ef]: levels of B bits simulated in torch, with a float32
scale for each K coordinates of a parameter (64), the largest magnitude, or C times the root mean square
where levels are clipped; ef: error feedback of workers and of the mean.
"""
import argparse
import gc
import json
import math
import os
import pathlib
import re
import sys
import time
import types

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples" / "python"))
import common  # pylint: disable=wrong-import-position
import train_gpt  # pylint: disable=wrong-import-position
import train_vit  # pylint: disable=wrong-import-position

import pride  # pylint: disable=wrong-import-position

SIZES = types.SimpleNamespace(context=128, layers=4, width=128, heads=4, patch=8)
TUNING_SEED = 100


class Gpt:
    """Bytes of a text; perplexity per byte."""

    samples = 32  # of all ranks, a step
    steps, rates, betas, decay = 600, (1e-3, 3e-3, 1e-2), (0.9, 0.95), 0.1

    def __init__(self, data, seed):
        args = types.SimpleNamespace(**vars(SIZES), seed=seed)
        text = torch.frombuffer(bytearray(train_gpt.read_text(data)), dtype=torch.uint8)
        cut = len(text) * 9 // 10
        self._train, self._val = (train_gpt.Windows(part, args) for part in (text[:cut], text[cut:]))
        self.model = train_gpt.GPT(args)

    def loss(self, model, step, rank, world):
        return model(self._train.batch(step, self.samples // world, rank, world))

    @torch.no_grad()
    def result(self, rank, world):
        mine = torch.arange(self._val.n)[rank::world]
        total = sum(self.model(self._val.take(w)).item() * len(w) for w in mine.split(16))
        total, n = common.sum_over_ranks(total, len(mine))
        return {"loss": total / n, "perplexity": math.exp(total / n)}


class Vit:
    """CIFAR-10; accuracy."""

    samples = 128
    steps, rates, betas, decay = 400, (3e-4, 1e-3, 3e-3), (0.9, 0.99), 0.05
    _read = {}  # images, by folder

    def __init__(self, data, seed):
        if data not in self._read:
            folder = pathlib.Path(data)
            self._read[data] = [train_vit.read_images(folder, name)
                                for name in ("data_batch_*", "test_batch")]
        (self._x, self._y), (self._test_x, self._test_y) = self._read[data]
        self._order, self._seed = None, seed
        self.model = train_vit.ViT(SIZES)

    def loss(self, model, step, rank, world):
        each = len(self._y) // self.samples
        if step % each == 0 or self._order is None:
            self._order = torch.randperm(len(self._y), generator=torch.Generator().manual_seed(
                1000 * self._seed + step // each))
        first = step % each * self.samples + rank * (self.samples // world)
        chosen = self._order[first:first + self.samples // world]
        return torch.nn.functional.cross_entropy(model(self._x[chosen]),
                                                 self._y[chosen])

    @torch.no_grad()
    def result(self, rank, world):
        mine = torch.arange(len(self._test_y))[rank::world]
        total = right = 0.0
        for part in mine.split(250):
            logits, y = self.model(self._test_x[part]), self._test_y[part]
            total += torch.nn.functional.cross_entropy(logits, y, reduction="sum").item()
            right += (logits.argmax(1) == y).sum().item()
        total, right, n = common.sum_over_ranks(total, right, len(mine))
        return {"loss": total / n, "accuracy": right / n}


class Simulated:
    """A hook that rounds to levels in torch, with the residuals of a form that pride has not."""

    def __init__(self, bits, block=64, clip=None, feedback=False):
        self._most, self._block, self._clip = 2 ** (bits - 1) - 1, block, clip
        self._residuals = {} if feedback else None

    def _rounded(self, values):
        blocks = torch.nn.functional.pad(values, (0, -len(values) % self._block)).view(-1, self._block)
        most = (blocks.abs().amax(1, keepdim=True) if self._clip is None else
                self._clip * blocks.square().mean(1, keepdim=True).sqrt())
        scale = (most / self._most).clamp(min=1e-30)
        return ((blocks / scale).round().clamp(-self._most, self._most) * scale).flatten()[:len(values)]

    def _with_feedback(self, key, values):
        if self._residuals is None:
            return self._rounded(values)
        values = values + self._residuals.get(key, 0)
        rounded = self._rounded(values)
        self._residuals[key] = values - rounded
        return rounded

    def __call__(self, _, bucket):
        parameters = bucket.parameters()
        parts = bucket.buffer().split([p.numel() for p in parameters])
        mine = torch.cat([self._with_feedback((id(p), "worker"), part)
                          for p, part in zip(parameters, parts)])

        def mean(done):
            total = done.value()[0] / dist.get_world_size()
            parts = total.split([p.numel() for p in parameters])
            return torch.cat([self._with_feedback((id(p), "mean"), part)
                              for p, part in zip(parameters, parts)])

        return dist.all_reduce(mine, async_op=True).get_future().then(mean)


def wrapped(name, model):
    """The model in DDP, with one bucket for PowerSGD: it starts collectives when others end, and over Gloo
    those of two buckets may meet in another order on another rank."""
    dist._DEFAULT_FIRST_BUCKET_BYTES = (1 << 32) if name.startswith("powersgd") else 1 << 20
    return torch.nn.parallel.DistributedDataParallel(
        model, bucket_cap_mb=4096 if name.startswith("powersgd") else 25)


def hooked(name, model, steps):
    """Registers the hook. Returns bytes(): what this rank has sent, by a ring where torch reduces."""
    ring = 2 * (dist.get_world_size() - 1) / dist.get_world_size()
    n = sum(p.numel() for p in model.parameters())
    if name == "fp32":
        return lambda done: 4 * ring * n * done
    if name == "bf16":
        model.register_comm_hook(None, default_hooks.bf16_compress_hook)
        return lambda done: 2 * ring * n * done
    if match := re.fullmatch(r"powersgd-(\d+)", name):
        first = max(2, steps // 10)
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=int(match[1]),
                                            start_powerSGD_iter=first)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        return lambda done: 4 * ring * (first * n + state.total_numel_after_compression)
    if match := re.fullmatch(r"pride-(\d+)", name):
        hook = pride.ddp_hook(model, int(match[1]))
        return lambda done: hook.traffic()["bytes_sent"]
    if match := re.fullmatch(r"sim-(\d+)(?:-b(\d+))?(?:-c([\d.]+))?(-ef)?", name):
        bits, block, clip, feedback = match.groups()
        simulated = Simulated(int(bits), int(block or 64), clip and float(clip), bool(feedback))
        model.register_comm_hook(None, simulated.__call__)
        return lambda done: ring * n * done * (int(bits) + 32 / int(block or 64)) / 8
    return sys.exit(f"mean_bits.py: --hooks {name}: see --help")


def train(task, data, name, seed, lr, steps):
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(seed)
    made = task(data, seed)
    model = wrapped(name, made.model)
    bytes_sent = hooked(name, model, steps)
    groups = [dict(params=[p for p in model.parameters() if (p.ndim >= 2) == matrices],
                   weight_decay=task.decay * matrices) for matrices in (True, False)]
    optimizer = torch.optim.AdamW(groups, lr, task.betas)
    warmup = max(1, steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(
        1.0, (step + 1) / warmup) * (0.5 + 0.5 * math.cos(math.pi * step / steps)))
    began = time.monotonic()
    for step in range(steps):
        optimizer.zero_grad()
        loss = made.loss(model, step, rank, world)
        loss.backward()
        optimizer.step()
        schedule.step()
        if rank == 0 and step % 50 == 0:
            print(f"{name} seed {seed} lr {lr:g}: step {step}/{steps}  loss {loss.item():.4f}",
                  file=sys.stderr, flush=True)
    seconds = time.monotonic() - began
    weights = torch.cat([p.detach().flatten() for p in model.parameters()]).double().sum().item()
    every = [None] * world
    dist.all_gather_object(every, weights)
    if len(set(every)) > 1:
        sys.exit(f"mean_bits.py: {name}: the replicas differ")
    return dict(made.result(rank, world), bytes_per_step=round(bytes_sent(steps) / steps),
                seconds=round(seconds, 1))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("task", choices=["gpt", "vit"])
    add("--data", required=True, help="gpt: a text; vit: the folder of CIFAR-10's binary files")
    add("--out", type=pathlib.Path, required=True, help="file of JSON lines")
    add("--hooks", nargs="+", default=["fp32", "bf16", "pride-8", "pride-4", "pride-2", "powersgd-1",
                                       "powersgd-4"], metavar="HOOK")
    add("--seeds", nargs="+", type=int, default=[42, 52, 62])
    add("--steps", type=int, help="default: gpt 600, vit 400")
    args = parser.parse_args()
    for name, value in dict(RANK=0, WORLD_SIZE=1, MASTER_ADDR="127.0.0.1", MASTER_PORT=0).items():
        os.environ.setdefault(name, str(value))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    task = {"gpt": Gpt, "vit": Vit}[args.task]
    steps = args.steps or task.steps
    if task.samples % world:
        sys.exit(f"mean_bits.py: {task.samples} samples a step are not divisible by {world} ranks")
    shared = [[json.loads(line) for line in args.out.read_text().splitlines()]
              if rank == 0 and args.out.exists() else []]
    dist.broadcast_object_list(shared)
    records = shared[0]

    def run(hook, seed, lr, steps):
        key = dict(task=args.task, ranks=world, hook=hook, seed=seed, lr=lr, steps=steps,
                   data=pathlib.Path(args.data).name, pride=pride.__version__)
        for record in records:  # tuning runs are the same for any number of ranks
            if all(record.get(k) == v for k, v in key.items() if k != "ranks" or seed != TUNING_SEED):
                return record
        record = dict(key, **train(task, args.data, hook, seed, lr, steps))
        gc.collect()  # models in cycles keep their hooks' threads
        records.append(record)
        if rank == 0:
            with open(args.out, "a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
            print(json.dumps(record), flush=True)
        return record

    tuning = {lr: run("fp32", TUNING_SEED, lr, steps // 2)["loss"] for lr in task.rates}
    lr = min(tuning, key=tuning.get)
    for seed in args.seeds:
        for hook in args.hooks:
            run(hook, seed, lr, steps)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
