# Arguments that do not fit into the integers of C, and what errors look like.
# SPDX-License-Identifier: Apache-2.0
import collections
import contextlib
import ctypes
import traceback
import types

import pytest
import torch
import torch.distributed as dist

import models
import pride
from pride import _library


def odd(name, value, everywhere):
    arguments = {name: value} if everywhere or dist.get_rank() == 1 else {}
    models.make(**arguments)


ODD = [("bucket_size", -5), ("bucket_size", 1 << 63), ("seed", 1 << 64), ("seed", -1), ("seed", 1.5),
       ("lanes", -1), ("lanes", (1 << 32) + 1), ("vote_weight", (1 << 32) + 1), ("vote_weight", True),
       ("node_of_rank", [0, 1 << 32])]


@pytest.mark.parametrize("everywhere", [True, False])
@pytest.mark.parametrize("name, value", ODD, ids=str)
def test_numbers_that_c_would_cut_are_refused_on_all_ranks(world, name, value, everywhere):
    for error in world(2).errors(odd, name, value, everywhere):
        assert error[0] is pride.InvalidArgument
        assert name in error[1] and "must be a whole number" in error[1]


@pytest.mark.parametrize("call, name", [
    (lambda: pride.step_bytes("dlion-vote", 10, (1 << 32) + 2), "world"),
    (lambda: pride.step_bytes("dlion-vote", 10, 4, bucket_size=-5), "bucket_size"),
    (lambda: pride.step_bytes("dlion-vote", 10, 4, step=1 << 64), "step"),
    (lambda: pride.step_bytes("dlion-vote", 1 << 65, 4), "dimension"),
    (lambda: pride.step_bytes("dlion-vote", 10, 2, vote_weights=[1, (1 << 32) + 1]), "vote weight"),
    (lambda: pride.methods(world=-2), "world"),
    (lambda: pride.method_info("lion", (1 << 32) + 2), "world")])
def test_functions_refuse_them_too(call, name):
    with pytest.raises(pride.InvalidArgument, match=f"{name}.* must be a whole number"):
        call()


def test_no_integer_reaches_c_cut():
    for kind, member, value in [(_library.Options, "seed", -1), (_library.Report, "skipped", 1 << 31),
                                (_library.PlanFacts, "world", 2.0)]:
        with pytest.raises(pride.InvalidArgument, match=member):
            setattr(kind(), member, value)
        with pytest.raises(pride.InvalidArgument, match=member):
            kind(**{member: value})
    with pytest.raises(pride.InvalidArgument, match="pride_comm_threads"):
        _library.call("pride_comm_threads", (1 << 32) + 1, ctypes.byref(ctypes.c_void_p()))


NO_NUMBERS = [None, "x", "1", float("nan"), float("inf"), -1, True, 1j, [1], 10 ** 400,
              torch.tensor(True), torch.tensor(0.5, device="meta"), torch.ones(2)]
GOOD = [torch.tensor(0.5), torch.ones(1, dtype=torch.float64) / 2, 0.5]
with contextlib.suppress(ImportError):
    import numpy
    NO_NUMBERS.append(numpy.bool_(True))
    GOOD += [numpy.float32(0.5), numpy.array(0.5)]


def refused(name, value, call):
    with pytest.raises(pride.InvalidArgument) as error:
        call()
    assert name in str(error.value), error.value
    assert repr(value) in str(error.value) or isinstance(value, (int, float)), error.value


def a_step(optimizer, model):
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("value", NO_NUMBERS, ids=repr)
def test_what_is_no_number_is_refused_by_name(value):
    model = torch.nn.Linear(4, 2)

    def made(**more):
        return pride.Optimizer(model.named_parameters(), **{"method": "adamw", **more})

    def taken(**more):
        return pride.take_over(torch.optim.AdamW(model.parameters(), lr=1e-3), model, **more)

    for name in ("lr", "weight_decay", "eps"):
        optimizer = made(lr=1e-3)
        a_step(optimizer, model)
        optimizer.param_groups[0][name] = value
        refused(f"{name} of group 0", value, lambda: a_step(optimizer, model))
        given = torch.optim.AdamW(model.parameters(), lr=1e-3)
        given.param_groups[0][name] = value
        if name != "eps":
            refused(f"{name} of group 0", value, lambda: pride.take_over(given, model))
        if value is not None:
            refused(name, value, lambda: made(**{name: value}))
    if value is not None:
        refused("betas", value, lambda: made(betas=(0.9, value)))
        refused("lr_scale", value, lambda: taken(lr_scale=value))
        refused("weight_decay_scale", value, lambda: taken(weight_decay_scale=value))
        refused("timeout", value, lambda: made(timeout=value))
    refused("clip_global_norm", value, lambda: made(clip_global_norm=value))
    refused("latency", value, lambda: pride.plan(1e6, 0.1, 1e9, value))


@pytest.mark.parametrize("value", GOOD, ids=repr)
def test_numbers_of_other_types_are_read(value):
    model = torch.nn.Linear(4, 2)
    optimizer = pride.take_over(torch.optim.SGD(model.parameters(), lr=0.1), model, "adamw", lr_scale=value)
    optimizer.param_groups[0]["weight_decay"] = value
    a_step(optimizer, model)
    assert optimizer.param_groups[0]["pride_lr_scale"] == 0.5


@pytest.mark.parametrize("name, value", [
    ("coordinator", 3), ("coordinator", ""), ("coordinator", torch.ones(2)), ("name", 3),
    ("certificates", ""), ("timeout", 0), ("vote_weight", 0)])
def test_arguments_of_a_runs_worker_are_refused_by_name(name, value):
    model = torch.nn.Linear(4, 2)
    refused(name, value, lambda: pride.RunWorker(model.parameters(), **{
        "method": "dlion-vote", "coordinator": "127.0.0.1:1", name: value}))


@pytest.mark.parametrize("value", [0, True, 2.0, (1 << 32) + 3, "2"])
def test_a_number_of_virtual_workers_is_refused_by_name(value):
    model = torch.nn.Linear(4, 2)
    refused("workers", value, lambda: pride.VirtualWorkers(
        model.parameters(), method="dlion-vote", workers=value))


def test_mappings_and_sequences_of_other_types_are_read():
    model = torch.nn.Linear(4, 2)
    optimizer = pride.Optimizer(model.named_parameters(), method="dlion-vote",
                                betas=collections.deque([0.8, 0.9]),
                                options=types.MappingProxyType({"tie": "zero"}))
    a_step(optimizer, model)
    assert tuple(optimizer.param_groups[0]["betas"]) == (0.8, 0.9)
    assert optimizer.traffic()["sections"][0]["options"]["tie"] == "zero"


@pytest.mark.parametrize("name, values", [
    ("overlap", ["no", None, 2]), ("release_gradients", ["no"]), ("broadcast_parameters", ["False"]),
    ("maximize", ["False", None]), ("options", ["tie=zero", 3]), ("method", [3]),
    ("node_of_rank", [0, "00"]), ("betas", [0.5])])
def test_other_arguments_are_refused_by_name(name, values):
    model = torch.nn.Linear(4, 2)
    for value in values:
        refused(name, value, lambda: pride.Optimizer(model.named_parameters(), **{
            "method": "dlion-vote", name: value}))


def written(optimizer, model, **values):
    optimizer.param_groups[0].update(values)
    a_step(optimizer, model)


@pytest.mark.parametrize("text, call", [
    ("model is a NoneType, must be a Module", lambda given, model: pride.take_over(given, None)),
    ("list of optimizers is empty", lambda given, model: pride.take_over([], model)),
    ("model is a str, must be a Module",
     lambda given, model: pride.take_over(given, model).check_replicas("x")),
    ("optimizer is a Linear", lambda given, model: pride.join(model).__enter__()),
    ("group 0 has no 'params', only 'param'",
     lambda given, model: pride.Optimizer([{"param": [model.weight]}], method="lion")),
    ("group 1 is a list", lambda given, model: pride.Optimizer(
        [{"params": [model.weight]}, [model.bias]], method="lion")),
    ("replicate_mesh", lambda given, model: pride.Optimizer(
        model.parameters(), method="lion", replicate_mesh="dp")),
    ("shapes is a float", lambda *_: pride.step_bytes("lion", 2.5, 4)),
    ("method = 3", lambda *_: pride.step_bytes(3, 10, 4)),
    ("options is a str", lambda *_: pride.step_bytes("lion", 10, 4, options="h=3")),
    ("method = .*must have no zero byte", lambda *_: pride.step_bytes("lion\0x", 10, 4)),
    ("options: dense = .*must have no zero byte",
     lambda *_: pride.step_bytes("lion", 10, 4, options={"dense": "bf16\0x"})),
    ("the group is a Parameter, must be a dict", lambda given, model: pride.Optimizer(
        [model.weight], method="lion").add_param_group(model.bias)),
    ("lr of group 0 = -1", lambda given, model: written(
        pride.take_over(given, model, "dlion-vote"), model, lr=-1))])
def test_things_of_another_type_are_refused_by_name(text, call):
    model = torch.nn.Linear(4, 2)
    with pytest.raises(pride.InvalidArgument, match=text):
        call(torch.optim.AdamW(model.parameters()), model)


def own_frames(call):
    """Frames of the package in the traceback of a call's error."""
    try:
        call()
    except pride.Error as error:
        return len([frame for frame in traceback.extract_tb(error.__traceback__)
                    if frame.filename.startswith(pride.__path__[0])])
    raise AssertionError("no error")


def errors_of_all_doors():
    model, optimizer = models.make(equal_gradients="refuse")

    def equal():
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        optimizer.step()

    counts = [own_frames(lambda: models.make(seed=-1)), own_frames(equal),
              own_frames(lambda: optimizer.load_state_dict({})),
              own_frames(lambda: optimizer.consolidate_state_dict(to=7))]
    if dist.get_rank():
        model[0].bias.data += 1
    counts.append(own_frames(optimizer.check_replicas))
    optimizer.close()
    return counts


def test_tracebacks_end_where_the_caller_called(world):
    for counts in world(2).run(errors_of_all_doors):
        assert max(counts) <= 2, counts


def test_the_last_step_has_the_bytes_of_float32_gradients(world):
    def expected(n):
        return 8 * sum(p.numel() for p in models.mlp().parameters()) * (n - 1) // n

    for traffic in world(2).run(traffic_of_a_step):
        assert traffic["last_step"]["fp32_bytes"] == traffic["fp32_bytes"] == expected(2)


def traffic_of_a_step():
    model, optimizer = models.make()
    assert optimizer.traffic()["last_step"] == {}
    models.train(model, optimizer, 1)
    return optimizer.traffic()


def test_a_beta_halves_after_its_half_life():
    assert pride.beta_of_half_life(4096, 4096) == 0.5
    for beta, steps in ((0.99, 68.97), (0.95, 13.513), (0.9, 6.579)):
        assert abs(pride.beta_of_half_life(steps * 4096, 4096) - beta) < 1e-5
    x, beta = 1.0, pride.beta_of_half_life(1e7, 5e5)
    for _ in range(20):  # 1e7 tokens
        x = beta * x
    assert abs(x - 0.5) < 1e-12


@pytest.mark.parametrize("half_life, per_step, text", [
    (0, 1, "half_life = 0 and per_step = 1 must be above 0"), (1, 0, "must be above 0"),
    (-1, 1, "half_life = -1, must be a finite number"), (1, float("nan"), "per_step = nan, must be"),
    ("1e6", 1, "half_life = '1e6', must be a finite number"), (float("inf"), 1, "half_life = inf"),
    (1e9, 1, r"half_life = 1e\+09 is 1e\+09 steps of 1: float32 has no beta between 0 and 1"),
    (1, 1e6, "half_life = 1 is 1e-06 steps of 1e\\+06")])
def test_a_half_life_without_a_beta_is_refused(half_life, per_step, text):
    with pytest.raises(pride.InvalidArgument, match=text):
        pride.beta_of_half_life(half_life, per_step)
