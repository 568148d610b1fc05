# Shared by the examples: arguments, start, optimizer, checkpoints, log.
# SPDX-License-Identifier: Apache-2.0
import argparse
import contextlib
import json
import math
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist

import pride


def parser(text, lr, adamw_lr, weight_decay, adamw_weight_decay):
    """The arguments of all examples. Lion needs a smaller rate and a larger decay than AdamW."""
    made = argparse.ArgumentParser(description=text,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
    made.set_defaults(rates=(lr, weight_decay), adamw_rates=(adamw_lr, adamw_weight_decay))
    add = made.add_argument
    add("--optimizer", default="dlion-vote",
        choices=["dlion-vote", "dlion-avg", "lion-cub", "lion", "adamw"],
        help="lion: on the mean gradient; adamw: torch's, with DDP's all-reduce")
    add("--lr", type=float, help=f"peak learning rate ({lr}; adamw {adamw_lr})")
    add("--weight-decay", type=float,
        help=f"for matrices ({weight_decay}; adamw {adamw_weight_decay})")
    add("--betas", type=float, nargs=2, default=(0.9, 0.99), metavar=("B1", "B2"))
    add("--warmup", type=int, default=30, help="steps of linear rise of the rate (30)")
    add("--overlap", action="store_true", help="exchange during backward")
    add("--ddp", action="store_true", help="wrap in DDP with pride.local_gradients")
    add("--eval-every", type=int, default=100, help="steps between evaluations (100)")
    add("--save-every", type=int, default=100, help="steps between checkpoints (100)")
    add("--out", type=pathlib.Path, help="folder of checkpoints, one file per rank; a killed run "
        "resumes from it")
    # not --log: torchrun under Python 3.12 reads it as an abbreviation of its own --log-dir
    add("--metrics", help="file of JSON lines, for `pride report --metrics`; a resumed run appends")
    add("--seed", type=int, default=1)
    return made


def start(args):
    """Joins the process group; without torchrun this process is the only member."""
    if args.overlap and args.optimizer == "adamw":
        sys.exit("--overlap: DDP always overlaps; it is for the other optimizers")
    lr, weight_decay = args.adamw_rates if args.optimizer == "adamw" else args.rates
    args.lr = lr if args.lr is None else args.lr
    args.weight_decay = weight_decay if args.weight_decay is None else args.weight_decay
    for name, value in dict(RANK=0, WORLD_SIZE=1, MASTER_ADDR="127.0.0.1", MASTER_PORT=0).items():
        os.environ.setdefault(name, str(value))
    dist.init_process_group("gloo")
    torch.manual_seed(args.seed)  # equal parameters on all ranks
    return dist.get_rank(), dist.get_world_size()


class Training:
    """Model, optimizer and schedule, and their checkpoints and log."""

    def __init__(self, args, model, steps):
        self.args, self.bare, self.steps = args, model, steps
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.n = sum(p.numel() for p in model.parameters())
        self.fp32_bytes = 8 * self.n * (self.world - 1) // self.world  # a step of DDP's ring
        self.ours = args.optimizer != "adamw"
        self.model = model
        if self.world > 1 and (args.ddp or not self.ours):
            self.model = torch.nn.parallel.DistributedDataParallel(model)
            if self.ours:
                pride.local_gradients(self.model)
        matrices = [p for p in model.parameters() if p.ndim >= 2]
        vectors = [p for p in model.parameters() if p.ndim < 2]
        groups = [dict(params=matrices, weight_decay=args.weight_decay),
                  dict(params=vectors, weight_decay=0.0)]
        if self.ours:
            self.optimizer = pride.Optimizer(groups, args.lr, args.betas, method=args.optimizer,
                                             overlap=args.overlap)
        else:
            self.optimizer = torch.optim.AdamW(groups, args.lr, args.betas)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self._rate)
        logs = args.metrics and not self.rank
        self.log = open(args.metrics, "a", encoding="utf-8") if logs else None
        if logs and self.log.tell() and not pathlib.Path(args.metrics).read_bytes().endswith(b"\n"):
            self.log.write("\n")  # a killed run has left a part of a line
        self.seconds = self.bytes_before = 0  # of training, before `began` and before a restart
        self.first_step = self._load() if args.out else 0
        self.began, self.since, self.measured = time.monotonic(), self.first_step, self.seconds

    def _rate(self, step):
        """Factor on the rate: linear over `warmup` steps, then a cosine down to a tenth."""
        cosine = 0.55 + 0.45 * math.cos(math.pi * min(1.0, step / self.steps))
        return min(1.0, (step + 1) / max(1, self.args.warmup)) * cosine

    def no_sync(self):
        """In the block backward accumulates gradients; neither DDP nor pride exchanges them."""
        stack = contextlib.ExitStack()
        for thing in (self.model, self.optimizer):
            if hasattr(thing, "no_sync"):
                stack.enter_context(thing.no_sync())
        return stack

    def due(self, done, every):
        return done % every == 0 or done == self.steps

    def _path(self, step):
        return self.args.out / f"step{step}.rank{self.rank}of{self.world}.pt"

    def save(self, done):
        """Writes this rank's file atomically, then removes its older ones."""
        path = self._path(done)
        self.pause()
        state = dict(step=done, model=self.bare.state_dict(), optimizer=self.optimizer.state_dict(),
                     schedule=self.schedule.state_dict(), seconds=self.seconds,
                     bytes_sent=self.bytes_sent(done))
        with open(path.with_suffix(".part"), "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(file.name, path)
        dist.barrier()  # all ranks have this step's file
        for old in self.args.out.glob(self._path("*").name):
            if old != path:
                old.unlink()
        self.began = time.monotonic()

    def _load(self):
        """Resumes from the last step for which all ranks have a file; returns its number."""
        self.args.out.mkdir(parents=True, exist_ok=True)
        mine = {int(f.name.split(".")[0][4:]) for f in self.args.out.glob(self._path("*").name)}
        every = [None] * self.world
        dist.all_gather_object(every, mine)
        common = set.intersection(*every)
        if not common:
            if any(self.args.out.glob("step*.pt")):
                sys.exit(f"--out {self.args.out}: no step has a file of each of {self.world} ranks")
            return 0
        saved = torch.load(self._path(max(common)), map_location="cpu")
        self.bare.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])  # pride: all ranks together
        self.schedule.load_state_dict(saved["schedule"])
        self.seconds, self.bytes_before = saved["seconds"], saved["bytes_sent"]
        return saved["step"]

    def speed(self, done, samples):
        """Samples per second of all ranks since the last call; `samples`: a rank's samples per step."""
        self.pause()
        value = (done - self.since) * samples * self.world / (self.seconds - self.measured)
        self.measured, self.since = self.seconds, done
        return round(value)

    def pause(self):
        """Stops the clock of training until the next report or the end of save()."""
        now = time.monotonic()
        self.seconds, self.began = self.seconds + now - self.began, now

    def bytes_sent(self, done):
        """Bytes that this rank sent in `done` steps; AdamW's are those of a ring all-reduce."""
        if self.ours:
            return self.bytes_before + self.optimizer.traffic()["bytes_sent"]
        return done * self.fp32_bytes

    def head(self, model, data, **record):
        """Reports the run: what differs between comparable runs is in its settings."""
        names = "lr weight_decay betas warmup batch accumulate dtype overlap ddp".split()
        settings = {k: v for k, v in vars(self.args).items() if k in names}
        self.report(optimizer=self.args.optimizer, ranks=self.world, lr=self.args.lr, **record,
                    parameters=self.n, first_step=self.first_step,
                    quiet=dict(steps=self.steps, seed=self.args.seed, model=model, data=data,
                               settings=settings))

    def progress(self, done, quiet=None, **record):
        """Reports values of a step, then lets the clock of training go on."""
        sent = max_over_ranks(self.bytes_sent(done))
        self.report(step=done, **record,
                    quiet=dict(quiet or {}, seconds=self.seconds, bytes_sent=sent))
        self.began = time.monotonic()

    def report(self, quiet=None, **record):
        """Prints a line on rank 0, and writes one of JSON to the log, with the values of `quiet`."""
        if self.log:
            self.log.write(json.dumps(dict(record, **(quiet or {}))) + "\n")
            self.log.flush()
        if self.rank == 0:
            print(*(f"{k} {v:.5g}" if isinstance(v, float) else f"{k} {v}"
                    for k, v in record.items()), flush=True)

    def finish(self, **record):
        """Reports the bytes per step and the parameters' hash, which must be equal on all ranks."""
        record["fp32_bytes_per_step"] = self.fp32_bytes
        if self.ours:
            traffic = self.optimizer.traffic()
            record["bytes_per_step"] = traffic["bytes_sent"] // max(1, traffic["steps"])
            record["replicas"] = f"{self.optimizer.check_replicas():016x}"
        self.report(**record)
        dist.destroy_process_group()


def max_over_ranks(value):
    most = torch.tensor(value, dtype=torch.int64)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return most.item()


def sum_over_ranks(*values):
    total = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(total)
    return total.tolist()
