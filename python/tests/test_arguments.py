# Arguments that do not fit into the integers of C, and what errors look like.
# SPDX-License-Identifier: Apache-2.0
import ctypes
import traceback

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
       ("node_of_rank", [0, 1 << 32]), ("virtual_workers", (1 << 32) + 3)]


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
