# One run of an experiment: a model, N virtual workers, a curve.
# SPDX-License-Identifier: Apache-2.0
import math
import time

import torch

import pride


UNTIMED = 10  # steps before the clock starts, and steps that tell the pace


class TooSlow(Exception):
    """A run that would pass its limit."""


class Gradient:
    """Forward and backward of one worker. Leaves the gradients in p.grad; returns the loss."""

    def __init__(self, model, how, example):
        self.model = torch.compile(model) if how == "compile" else model
        self.graph = None
        if how == "graph":
            self._capture(example)

    def _capture(self, example):
        """As torch's page on CUDA graphs has it: a few runs beside, then the capture."""
        self.inputs = [x.clone() for x in example]
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(3):
                self.model(*self.inputs).backward()
                self._clear()
        torch.cuda.current_stream().wait_stream(beside)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.loss = self.model(*self.inputs)
            self.loss.backward()
        self.grads = [p.grad for p in self.parameters]
        self._clear()

    def _clear(self):
        for p in self.parameters:
            p.grad = None

    def __call__(self, inputs):
        if self.graph is None:
            loss = self.model(*inputs)
            loss.backward()
            return loss.detach()
        for mine, theirs in zip(self.inputs, inputs):
            mine.copy_(theirs)
        self.graph.replay()
        for p, grad in zip(self.parameters, self.grads):
            p.grad = grad
        return self.loss.detach().clone()


def rate(run, step):
    """Cosine to 0, after a linear rise over the warm-up."""
    rise = min(1.0, (step + 1) / run.warmup) if run.warmup else 1.0
    return run.lr * rise * 0.5 * (1 + math.cos(math.pi * step / run.steps))


def make_optimizer(model, run, **kwargs):
    return pride.Optimizer(
        list(model.named_parameters()), lr=run.lr, betas=run.betas, weight_decay=run.weight_decay,
        method=run.method, options=run.options, seed=run.seed, **kwargs)


class Apart:
    """N virtual workers of pride."""

    def __init__(self, model, run, gradient):
        self.run, self.gradient = run, gradient
        self.optimizer = make_optimizer(model, run, virtual_workers=run.workers)

    def step(self, batches, losses):
        for worker, inputs in enumerate(batches):
            with self.optimizer.worker(worker):
                losses += self.gradient(inputs)
        self.optimizer.step()

    def bytes_sent(self):
        return self.optimizer.traffic()["bytes_sent"]


class Joined:
    """A method of the mean gradient: summed here in float32, then one step of one worker. pride's own
    workers would send N float32 gradients through the host. Bytes are those of a ring all-reduce."""

    def __init__(self, model, run, gradient):
        self.run, self.gradient = run, gradient
        self.parameters = list(model.parameters())
        self.sums = [torch.zeros_like(p, dtype=torch.float32) for p in self.parameters]
        self.optimizer = make_optimizer(model, run, virtual_workers=1)
        self.steps, self.n = 0, sum(p.numel() for p in self.parameters)

    def step(self, batches, losses):
        torch._foreach_zero_(self.sums)
        for inputs in batches:
            for p in self.parameters:
                p.grad = None
            losses += self.gradient(inputs)
            torch._foreach_add_(self.sums, [p.grad.float() for p in self.parameters])
        torch._foreach_div_(self.sums, self.run.workers)
        with self.optimizer.worker(0):
            for p, mean in zip(self.parameters, self.sums):
                p.grad = mean.to(p.dtype)
        self.optimizer.step()
        self.steps += 1

    def bytes_sent(self):
        return self.steps * (8 * self.n * (self.run.workers - 1) // self.run.workers)


class Plain:
    """Training without pride: torch's AdamW on one batch of all workers' samples. Nothing is sent."""

    def __init__(self, model, run, gradient):
        self.gradient = gradient
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=run.lr, betas=run.betas,
                                           weight_decay=run.weight_decay)

    def step(self, batches, losses):
        self.optimizer.zero_grad(set_to_none=True)
        losses += self.gradient([torch.cat(parts) for parts in zip(*batches)]) * len(batches)
        self.optimizer.step()

    def bytes_sent(self):
        return 0


class Clock:
    """Seconds of work on the device, from restart() on, without what lies between pause() and resume()."""

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


def start(task, run, device):
    """The model, equal on all workers."""
    torch.manual_seed(run.seed)
    return task.model().to(device=device, dtype=getattr(torch, run.dtype))


def train(task, run, device, limit=None):
    """(results, curve) of N virtual workers."""
    model = start(task, run, device)
    task.begin(range(run.workers))
    kind = Plain if run.method == "torch-adamw" else Joined if run.joined else Apart
    first = task.batches(0)
    example = [torch.cat(parts) for parts in zip(*first)] if kind is Plain else first[0]
    gradient = Gradient(model, run.how, example)
    workers = kind(model, run, gradient)
    optimizer = workers.optimizer
    untimed = min(UNTIMED, run.steps // 2)  # compilation is in no time
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
    parameters = sum(p.numel() for p in model.parameters())
    made = dict(loss=last["loss"], parameters=parameters, steps=run.steps, seen=last["seen"],
                ms_per_step=round(1e3 * seconds_per_step, 3), bytes_sent=sent,
                bits_per_parameter_and_step=round(8 * sent / parameters / run.steps, 4),
                per_second=round(run.workers * run.per_step / seconds_per_step, 1),
                bytes_are="computed" if run.joined else "counted")
    if isinstance(optimizer, pride.Optimizer):
        made.update(param_hash=f"{optimizer.check_replicas():016x}", optimizer_memory=optimizer.memory())
    if "accuracy" in last:
        made["accuracy"] = last["accuracy"]
    if torch.cuda.is_available():
        made["peak_memory"] = torch.cuda.max_memory_allocated()
    return made
