# One run of an experiment: a model, N virtual workers, a curve.
# SPDX-License-Identifier: Apache-2.0
import functools
import math
import time

import torch

import layers
import nets
import pride
from images import NoData


UNTIMED = 10  # steps before the clock starts; as many more estimate the run's time


class TooSlow(Exception):
    """A run would exceed its limit of minutes."""


class Gradient:
    """Forward and backward of `n` workers' batches in one tensor, with as many kernel launches as for one.

    A call returns the sum of the workers' losses, and the gradients [n, ...] of each trained parameter."""

    def __init__(self, model, how, example, n=1):
        self.model, self.n = model, n
        self.forward = torch.compile(model) if how == "compile" else model
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.leaves = layers.leaves_of(model, n) if n > 1 else None
        self.graph = None
        if how == "graph":
            self._capture(example)

    def _capture(self, example):
        """As in torch's page on CUDA graphs: three runs on another stream, then the capture."""
        self.inputs = [x.clone() for x in example]
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(3):
                self._compute(self.inputs)
        torch.cuda.current_stream().wait_stream(beside)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.loss, self.grads = self._compute(self.inputs)

    def _compute(self, inputs):
        if self.n == 1:
            loss = self.forward(*inputs)
            return loss.detach(), [g[None] for g in torch.autograd.grad(loss, self.parameters)]
        with layers.apart(self.model, self.leaves):
            loss = self.n * self.forward(*inputs)
            return loss.detach(), torch.autograd.grad(loss, [self.leaves[p] for p in self.parameters])

    def __call__(self, inputs):
        if self.graph is None:
            return self._compute(inputs)
        for mine, theirs in zip(self.inputs, inputs):
            mine.copy_(theirs)
        self.graph.replay()
        return self.loss.clone(), self.grads


def joined(batches):
    """The model's arguments for the samples of several workers together."""
    return [torch.cat(parts) for parts in zip(*batches)] if len(batches) > 1 else batches[0]


def most_at_once(run):
    """The largest divisor of the workers whose samples fit into memory together."""
    if "h" in run.options:  # in local steps each worker has its own parameters
        return 1
    most = max(1, run.positions_at_once // run.positions)
    return max(n for n in range(1, run.workers + 1) if run.workers % n == 0 and n <= most)


def seconds_of(gradient, inputs, device, times=3):
    """Seconds per worker, after an untimed call."""
    gradient(inputs)
    clock = Clock(device)
    clock.restart()
    for _ in range(times):
        gradient(inputs)
    return clock.read() / times / gradient.n


def fastest(model, run, batches, device):
    """The faster Gradient per worker: of one worker at a time, or of as many as fit into memory."""
    most = run.at_once or most_at_once(run)
    if run.workers % most:
        raise ValueError(f"{run.name}: {most} workers at once, which does not divide {run.workers}")
    best = None
    for n in [most] if run.at_once else sorted({1, most}):
        inputs = joined(batches[:n])
        try:
            gradient = Gradient(model, run.how, inputs, n)
            seconds = seconds_of(gradient, inputs, device) if most > 1 else 0.0
        except torch.cuda.OutOfMemoryError:
            if n == 1:
                raise
            continue
        if best is None or seconds < best[0]:
            best = seconds, gradient
    return best[1]


def rate(run, step):
    """Cosine to 0, after a linear rise over the warm-up."""
    rise = min(1.0, (step + 1) / run.warmup) if run.warmup else 1.0
    return run.lr * rise * 0.5 * (1 + math.cos(math.pi * step / run.steps))


def make_optimizer(model, run, workers=None):
    """Of virtual workers, or of this rank."""
    door = pride.Optimizer if workers is None else functools.partial(pride.VirtualWorkers, workers=workers)
    return door(
        [(name, p) for name, p in model.named_parameters() if p.requires_grad], lr=run.lr, betas=run.betas, weight_decay=run.weight_decay,
        momentum=0.9 if run.options.get("local") == "muon" else None,  # MuLoCo's
        method=run.method, options=run.options, seed=run.seed, bucket_size=1 << 26)


class Apart:
    """N virtual workers of pride."""

    def __init__(self, model, run, batches, device):
        self.gradient = fastest(model, run, batches, device)
        self.optimizer = make_optimizer(model, run, workers=run.workers)
        self.at_once, self.is_local = self.gradient.n, "h" in run.options

    def step(self, batches, losses):
        for first in range(0, len(batches), self.at_once):
            made = None if self.is_local else self.gradient(joined(batches[first:first + self.at_once]))
            for i in range(self.at_once):
                with self.optimizer.worker(first + i):  # with local steps it has the worker's parameters
                    loss, grads = made or self.gradient(batches[first])
                    losses += loss if i == 0 else 0
                    for p, grad in zip(self.gradient.parameters, grads):
                        p.grad = grad[i]
        self.optimizer.step()

    def bytes_sent(self):
        return self.optimizer.traffic()["bytes_sent"]


class Joined:
    """A method that takes the mean gradient. It is summed in float32, over as many samples at a time as fit,
    for one step of one worker: pride's virtual workers would copy N float32 gradients to the host. The bytes
    are those of a ring all-reduce."""

    def __init__(self, model, run, batches, _):
        self.run, self.at_once = run, run.at_once or most_at_once(run)
        self.gradient = Gradient(model, run.how, joined(batches[:self.at_once]))
        self.sums = [torch.zeros_like(p, dtype=torch.float32) for p in self.gradient.parameters]
        self.optimizer = make_optimizer(model, run, workers=1)
        self.steps, self.n = 0, sum(total.numel() for total in self.sums)

    def step(self, batches, losses):
        torch._foreach_zero_(self.sums)
        for first in range(0, len(batches), self.at_once):
            loss, grads = self.gradient(joined(batches[first:first + self.at_once]))
            losses += loss * self.at_once
            torch._foreach_add_(self.sums, [grad[0].float() for grad in grads])
        torch._foreach_div_(self.sums, self.run.workers // self.at_once)
        with self.optimizer.worker(0):
            for p, mean in zip(self.gradient.parameters, self.sums):
                p.grad = mean.to(p.dtype)
        self.optimizer.step()
        self.steps += 1

    def bytes_sent(self):
        return self.steps * (8 * self.n * (self.run.workers - 1) // self.run.workers)


class Plain:
    """Training without pride: torch's AdamW on one batch of all workers' samples. Nothing is sent."""

    def __init__(self, model, run, batches, _):
        self.gradient, self.at_once = Gradient(model, run.how, joined(batches)), run.workers
        self.optimizer = torch.optim.AdamW(self.gradient.parameters, lr=run.lr, betas=run.betas,
                                           weight_decay=run.weight_decay)

    def step(self, batches, losses):
        loss, grads = self.gradient(joined(batches))
        losses += loss * len(batches)
        for p, grad in zip(self.gradient.parameters, grads):
            p.grad = grad[0]
        self.optimizer.step()

    def bytes_sent(self):
        return 0


class Clock:
    """Seconds of work on the device since restart(), without the time between pause() and resume()."""

    def __init__(self, device):
        self.device, self.seconds, self.begun = device, 0.0, 0.0

    def resume(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.begun = time.perf_counter()

    def restart(self):
        self.seconds = 0.0
        self.resume()

    def read(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return self.seconds + time.perf_counter() - self.begun

    def pause(self):
        self.seconds = self.read()


def start(task, run, device, models=None):
    """The model, equal on all workers: a new one, or the one of an earlier run."""
    torch.manual_seed(run.seed)
    model = load(models, run) if run.init else task.model()
    if run.lora:
        nets.add_lora(model, run.lora)
    return model.to(device=device, dtype=getattr(torch, run.dtype))


def load(models, run):
    """The GPT with the weights that the run of run.init saved."""
    file = models / f"{run.init}.pt"
    if not file.exists():
        raise NoData(f"{run.name} starts from {file}, which is not there: first make the run of the experiment "
                     f"{run.init}, with the same --out")
    weights = torch.load(file, map_location="cpu", weights_only=True)["weights"]
    vocabulary, context = len(weights["wte.weight"]), len(weights["wpe.weight"])
    model = nets.GPT(run.layers, run.heads, run.width, context, vocabulary)
    model.load_state_dict(weights)
    return model


def save(models, run, model):
    models.mkdir(parents=True, exist_ok=True)
    torch.save({"weights": model.state_dict(), "run": run.name}, models / f"{run.experiment}.pt")


def train(task, run, device, limit=None, models=None):
    """(results, curve) of N virtual workers. `models` is the folder of kept weights."""
    model = start(task, run, device, models)
    before = task.evaluate(model) if run.init else None
    task.begin(range(run.workers))
    kind = Plain if run.method == "torch-adamw" else Joined if run.joined else Apart
    workers = kind(model, run, task.batches(0), device)
    optimizer = workers.optimizer
    untimed = min(UNTIMED, run.steps // 2)  # excludes compilation from the times
    clock, curve, measured = Clock(device), [], 0
    losses = torch.zeros((), device=device)
    for step in range(run.steps):
        if step == untimed:
            clock.restart()
        for group in optimizer.param_groups:
            group["lr"] = rate(run, step)
        workers.step(task.batches(step), losses)
        done = step + 1
        if done == 2 * UNTIMED:
            check_pace(run, limit, clock.read() / UNTIMED)
        if done == run.steps or done % run.every == 0:
            clock.pause()
            point = dict(step=done, seen=done * run.workers * run.per_step,
                         train_loss=losses.item() / run.workers / (done - measured),
                         bytes_sent=workers.bytes_sent(), **task.evaluate(model))
            curve.append({k: round(v, 6) if isinstance(v, float) else v for k, v in point.items()})
            measured = done
            losses.zero_()
            clock.resume()
    results = finish(run, optimizer, model, curve, clock.seconds / (run.steps - untimed))
    results["workers_at_once"] = workers.at_once
    if before:
        results["before"] = {key: round(value, 6) for key, value in before.items()}
    if run.keep:
        save(models, run, model)
    if kind is not Plain:
        optimizer.close()
    return results, curve


def check_pace(run, limit, seconds_per_step):
    expected = seconds_per_step * run.steps
    if limit and expected > limit:
        raise TooSlow(f"{run.name}: {1e3 * seconds_per_step:.0f} ms a step, {expected / 60:.1f} minutes "
                      f"in all; the limit is {limit / 60:.1f}")


def finish(run, optimizer, model, curve, seconds_per_step):
    last = curve[-1]
    sent = last["bytes_sent"]
    parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    made = dict(loss=last["loss"], parameters=parameters, steps=run.steps, seen=last["seen"],
                ms_per_step=round(1e3 * seconds_per_step, 3), bytes_sent=sent,
                bits_per_parameter_and_step=round(8 * sent / parameters / run.steps, 4),
                per_second=round(run.workers * run.per_step / seconds_per_step, 1),
                bytes_are="computed" if run.joined else "counted")
    if isinstance(optimizer, pride.VirtualWorkers):
        made.update(param_hash=f"{optimizer.check_replicas():016x}", optimizer_memory=optimizer.memory())
    if "accuracy" in last:
        made["accuracy"] = last["accuracy"]
    if torch.cuda.is_available():
        made["peak_memory"] = torch.cuda.max_memory_allocated()
    return made
