# Ranks that differ: all refuse with an error that names rank and difference, and can continue.
# SPDX-License-Identifier: Apache-2.0
import re
import time

import pytest
import torch
import torch.distributed as dist

import models
import pride
from models import ended, make, parameter, set_gradients
from processes import SOON


def differing(kind):
    """Rank 1 does one thing otherwise."""
    other = dist.get_rank() == 1
    shapes = {"first": (3, 4), "second": (5,)}
    dtype = torch.float32
    if kind == "shapes" and other:
        shapes["second"] = (6,)
    if kind == "number" and other:
        del shapes["second"]
    if kind == "names" and other:
        shapes = {"first": (3, 4), "zweiter": (5,)}
    if kind == "order" and other:
        shapes = dict(reversed(shapes.items()))
    if kind == "dtype" and other:
        dtype = torch.bfloat16
    params = [(name, torch.nn.Parameter(torch.ones(shape, dtype=dtype)))
              for name, shape in shapes.items()]
    if kind == "values" and other:
        params[1][1].data[3] += 1e-7 * 2
    if kind == "groups":
        params = [{"params": params[:1]}, {"params": params[1:]}] if other else params
    if kind == "complex" and other:
        params[0] = ("first", torch.nn.Parameter(torch.ones(3, 4, dtype=torch.complex64)))
    options = {"lr": ("lr", 0.5), "method": ("method", "lion"), "seed": ("seed", 3),
               "bucket": ("bucket_size", 128), "given": ("bucket_size", 128), "overlap": ("overlap", True),
               "options": ("options", {"tie": "zero"}), "skip": ("on_non_finite", "skip"),
               "negative": ("lr", -1.0)}
    kwargs = {"method": "dlion-vote", "lr": 1e-2, "timeout": 10}
    if kind in options and other:
        kwargs.update([options[kind]])
    elif kind == "bucket":
        kwargs["bucket_size"] = 64
    optimizer = pride.Optimizer(params, **kwargs)
    assert kind != "given" or optimizer._parameters.bucket_size == 128
    for step in range(3):
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad = torch.full_like(p, 1.0 + dist.get_rank() + step)
        optimizer.step()
    optimizer.close()
    return "all steps were made"


DIFFERENCES = {
    "shapes": "rank.* 1", "number": "rank.* 1", "names": "rank.* 1", "order": "rank.* 1",
    "dtype": None, "values": r"rank\(s\) 1 .*'second'", "groups": "rank.* 1",
    "complex": "first is complex", "lr": "rank.* 1", "method": "rank.* 1", "seed": "rank.* 1",
    "bucket": "'bucket_size' of rank.* 1", "given": None, "overlap": "rank.* 1", "options": "rank.* 1", "skip": "rank.* 1",
    "negative": r"rank\(s\) 1|-1",
}


@pytest.mark.parametrize("kind", DIFFERENCES)
def test_ranks_that_differ_are_refused_by_all(world, kind):
    if DIFFERENCES[kind] is None:
        # masters are float32 and equal; a given size wins over defaults: nothing is wrong
        assert world(3).run(differing, kind) == ["all steps were made"] * 3
        return
    world(3).run(models.own_rank)  # the processes have started
    began = time.monotonic()
    for rank, error in enumerate(world(3).errors(differing, kind)):
        assert error, f"rank {rank} noticed nothing"
        assert issubclass(error[0], pride.Error), error
        assert re.search(DIFFERENCES[kind], error[1]), f"rank {rank}: {error[1]}"
    assert time.monotonic() - began < SOON


def operations(first, second):
    rank = dist.get_rank()
    model, optimizer = make(timeout=10)
    models.train(model, optimizer, 1)
    late = torch.nn.Parameter(torch.ones(3))
    calls = {"step": optimizer.step, "check_replicas": optimizer.check_replicas,
             "load_state_dict": lambda: optimizer.load_state_dict(optimizer.state_dict()),
             "add_param_group": lambda: optimizer.add_param_group({"params": [("late", late)]}),
             "consolidate_state_dict": optimizer.consolidate_state_dict,
             "broadcast_parameters": optimizer.broadcast_parameters}
    with pytest.raises(pride.InvalidArgument) as caught:
        calls[first if rank == 0 else second]()
    assert f"rank 0: {first}(), rank 1: {second}()" in str(caught.value), caught.value
    assert len(optimizer.param_groups) == 1
    models.train(model, optimizer, 2, first=1)  # nothing is lost
    ended(model, optimizer)


@pytest.mark.parametrize("first, second", [
    ("step", "load_state_dict"), ("step", "add_param_group"), ("check_replicas", "step"),
    ("consolidate_state_dict", "broadcast_parameters")])
def test_other_operations_are_refused_and_the_run_goes_on(world, first, second):
    world(2).run(operations, first, second)


def constructed(kind):
    """Rank 1 makes another optimizer than rank 0; both make a good one afterwards."""
    odd = dist.get_rank() == 1
    p = parameter(0, 8)
    wrong = {"empty": dict(params=[]), "tensor": dict(params=p),
             "capturable": dict(capturable=True), "rate": dict(lr=0.125),
             "NaN": dict(weight_decay=float("nan")), "method": dict(method="dlion-vot"),
             **{f"bucket_size = {size}": dict(bucket_size=size) for size in (0, -1, 16e6, True, 1 << 64)},
             "overlap": dict(overlap=True), "lanes": dict(lanes=1),
             "equal_gradients": dict(equal_gradients="allow"),
             "on_non_finite": dict(on_non_finite="skip"), "broadcast": dict(
                 broadcast_parameters=True), "values": dict(params=[("w", parameter(1, 8))]),
             "names": dict(params=[("other", p)]), "groups": dict(
                 params=[{"params": [p]}, {"params": [parameter(2, 1)]}])}[kind]
    arguments = dict(params=[("w", p)], lr=0.25, method="dlion-vote", timeout=20)
    if odd:
        arguments.update(wrong)
    problem = None
    try:
        pride.Optimizer(**arguments)
    except (ValueError, TypeError) as error:
        problem = str(error)
    optimizer = pride.DistributedLion([p], 0.25, timeout=20)
    set_gradients([p], 0, dist.get_rank())
    optimizer.step()
    optimizer.close()
    return problem


@pytest.mark.parametrize("kind, word", [
    ("empty", "empty parameter list"), ("tensor", "iterable of Tensors"),
    ("capturable", "capturable=True"), ("rate", ""), ("NaN", "weight_decay of group 0 = nan"),
    ("method", "dlion-vot"), *((f"bucket_size = {size}", f"bucket_size = {size}, must be a whole number")
                               for size in (0, -1, 16e6, True, 1 << 64)), ("overlap", "'overlap'"), ("lanes", "'lanes'"),
    ("equal_gradients", "'equal_gradients'"), ("on_non_finite", "'on_non_finite'"),
    ("broadcast", "broadcast_parameters()"), ("values", "'w' of shape (8,)"), ("names", ""),
    ("groups", "")])
def test_what_one_rank_makes_differently_is_an_error_on_all(world, kind, word):
    for text in world(2).run(constructed, kind):
        assert text is not None and word in text, text
