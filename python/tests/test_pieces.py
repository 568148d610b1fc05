# Parameters of which each rank has another piece.
# SPDX-License-Identifier: Apache-2.0
#
# Oracle: the model's output before.
import pytest
import torch
import torch.distributed as dist

import models
import pride

if models.NEW_TORCH:  # torch 1.13's cannot be imported by Python 3.11
    from torch.distributed.fsdp import FullyShardedDataParallel


def error_of(parameters, **arguments):
    try:
        pride.DistributedLion(parameters, 1e-3, timeout=30, **arguments).close()
    except pride.InvalidArgument as error:
        return str(error)
    return None


def fsdp1(broadcast, original):
    model, x = models.mlp(), models.batch(0, 0)[0]
    before = model(x).detach()
    model = FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=original)
    text = error_of(model.parameters(), broadcast_parameters=broadcast)
    return text, torch.equal(model(x).detach(), before)


@pytest.mark.skipif(not models.NEW_TORCH, reason="FSDP1 of torch 1.13 needs a GPU and an older "
                    "Python; the stage of the newest torch runs this")
@pytest.mark.parametrize("original", [False, True])
@pytest.mark.parametrize("broadcast", [False, True])
def test_fsdp1_is_refused_by_name_and_stays_as_it_was(world, broadcast, original):
    for text, same in world(2).run(fsdp1, broadcast, original):
        assert same and "FSDP1" in text and "replicate_mesh" in text
        assert "broadcast_parameters" not in text


def marked(mark, value, alone):
    model = models.mlp()
    setattr(model[2].weight, mark, value)
    group = [dist.new_group([r]) for r in range(2)][dist.get_rank()] if alone else None
    return error_of(model.named_parameters(), broadcast_parameters=True, process_group=group)


@pytest.mark.parametrize("mark, value, text", [
    ("ds_id", 3, "ZeRO-3"), ("tensor_model_parallel", True, "tensor parallelism")])
def test_pieces_of_other_libraries_are_refused(world, mark, value, text):
    for error in world(2).run(marked, mark, value, False):
        assert "2.weight is a piece" in error and text in error
    assert world(2).run(marked, mark, value, True) == [None, None], "no other rank has a piece"
    assert world(2).run(marked, "tensor_model_parallel", False, False) == [None, None]


def differing(n):
    """n tensors of 20 differ."""
    parameters = [models.parameter(100 * (dist.get_rank() if i < n else 0) + i, 5) for i in range(20)]
    return error_of(parameters)


@pytest.mark.parametrize("n", [1, 2, 3, 20])
def test_a_broadcast_is_advised_only_where_nearly_all_tensors_are_equal(world, n):
    for text in world(2).run(differing, n):
        assert f"the first of {n} (of 20) that differ" in text
        assert ("broadcast_parameters=True" in text) == (n <= 2)
        assert ("different models, or pieces of one" in text) == ("process_group=" in text) == (n > 2)
