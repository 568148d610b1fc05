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
    gradient = Gradient(model, run.how, task.batches(0)[0])
    optimizer = make_optimizer(model, run, virtual_workers=run.workers)
    untimed = min(UNTIMED, run.steps // 2)  # compilation is in no time
    clock, curve, measured = Clock(device), [], 0
    losses = torch.zeros((), device=device)
    for step in range(run.steps):
        if step == untimed:
            clock.restart()
        for group in optimizer.param_groups:
            group["lr"] = rate(run, step)
        for worker, inputs in enumerate(task.batches(step)):
            with optimizer.worker(worker):
                losses += gradient(inputs)
        optimizer.step()
        done = step + 1
        if done == 2 * UNTIMED:
            check_pace(run, limit, clock.read() / UNTIMED)
        if done == run.steps or done % run.every == 0:
            clock.pause()
            point = dict(step=done, seen=done * run.workers * run.per_step,
                         train_loss=losses.item() / run.workers / (done - measured),
                         bytes_sent=optimizer.traffic()["bytes_sent"], **task.evaluate(model))
            curve.append({k: round(v, 6) if isinstance(v, float) else v for k, v in point.items()})
            measured = done
            losses.zero_()
            clock.resume()
    results = finish(run, optimizer, model, curve, clock.seconds / (run.steps - untimed))
    optimizer.close()
    return results, curve


def check_pace(run, limit, seconds_per_step):
    expected = seconds_per_step * run.steps
    if limit and expected > limit:
        raise TooSlow(f"{run.name}: {1e3 * seconds_per_step:.0f} ms a step, {expected / 60:.1f} minutes "
                      f"in all; the limit is {limit / 60:.1f}")


def finish(run, optimizer, model, curve, seconds_per_step):
    last = curve[-1]
    traffic, memory = optimizer.traffic(), optimizer.memory()
    parameters = sum(p.numel() for p in model.parameters())
    made = dict(loss=last["loss"], parameters=parameters, steps=run.steps, seen=last["seen"],
                ms_per_step=round(1e3 * seconds_per_step, 3), bytes_sent=traffic["bytes_sent"],
                bits_per_parameter_and_step=round(8 * traffic["bytes_sent"] / parameters / run.steps, 4),
                fp32_bytes_per_step=traffic["fp32_bytes"], skipped=traffic["skipped"],
                param_hash=f"{optimizer.check_replicas():016x}", optimizer_memory=memory)
    if "accuracy" in last:
        made["accuracy"] = last["accuracy"]
    if torch.cuda.is_available():
        made["peak_memory"] = torch.cuda.max_memory_allocated()
    return made
