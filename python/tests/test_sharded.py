# FSDP2: ranks with the same shards vote on them (replicate_mesh).
# SPDX-License-Identifier: Apache-2.0
#
# Oracle: the same training without shards, on one rank for each replica, bit for bit.
import pytest
import torch
import torch.distributed as dist

import models
import pride
import sharded

if sharded.fully_shard is None:
    pytest.skip(sharded.WHY_NOT, allow_module_level=True)
from torch.distributed.fsdp import MixedPrecisionPolicy

STEPS = 6
METHODS = [("dlion-vote", None), ("dlion-avg", None), ("lion", None), ("adamw", None),
           ("sgdm", None), ("signum-vote", None), ("signum-avg", None), ("local-vote", {"h": 2})]


def run(shape, method, options, dtype=torch.float32, narrow=None, nan=None, **arguments):
    mesh = sharded.mesh_of(*shape)
    policy = {} if narrow is None else {"mp_policy": MixedPrecisionPolicy(
        param_dtype=narrow, reduce_dtype=torch.float32)}
    model = sharded.sharded(mesh, dtype, **policy)
    optimizer = sharded.optimizer_of(model, method, options, replicate_mesh=mesh["dp"], **arguments)
    empty = sum(p.to_local().numel() == 0 for p in model.parameters())
    sharded.train(mesh, model, optimizer, STEPS, nan=nan)
    assert optimizer.traffic()["skipped"] == (nan is not None)
    return mesh["dp"].get_local_rank(), empty, sharded.ending(model, optimizer)


def compare(world, shape, method, options, **more):
    replicas, shards = shape
    expected = world(replicas).run(sharded.whole, replicas, shards, method, options, STEPS, **more)
    results = world(replicas * shards).run(run, shape, method, options, **more)
    for rank, (replica, empty, (weights, state)) in enumerate(results):
        assert empty == (2 if shards == 2 and rank % 2 else 0)
        assert weights == expected[replica][0], f"rank {rank}"
        assert state == expected[replica][1], f"rank {rank}"
    assert expected[0][0] != models.bits(sharded.model().parameters())


@pytest.mark.parametrize("shape", [(2, 2), (2, 1), (1, 2)], ids=str)
@pytest.mark.parametrize("method, options", METHODS)
def test_shards_take_the_steps_of_whole_tensors(world, shape, method, options):
    compare(world, shape, method, options)


def test_parameters_in_bfloat16(world):
    """Their gradients cancel to exact zeros, too, whose signs are drawn by coordinate."""
    compare(world, (2, 2), "dlion-vote", None, dtype=torch.bfloat16)


def test_mixed_precision_policy(world):
    compare(world, (2, 2), "dlion-vote", None, narrow=torch.bfloat16)


def grown(shape=None):
    """The last layer is added later; without a mesh the oracle of 2 x 2."""
    mesh = shape and sharded.mesh_of(*shape)
    model = sharded.sharded(mesh) if shape else sharded.model()
    names = list(model.named_parameters())
    optimizer = pride.Optimizer(names[:-2], 1e-2, method="dlion-vote", bucket_size=64, timeout=30,
                                replicate_mesh=mesh and mesh["dp"])
    optimizer.add_param_group({"params": names[-2:], "lr": 3e-2})
    for step in range(STEPS if not shape else 0):
        sharded.backward(model, dist.get_rank(), 2, step)
        optimizer.step()
    if shape:
        sharded.train(mesh, model, optimizer, STEPS)
    return sharded.ending(model, optimizer)[0]


def test_a_group_that_is_added_has_its_place_in_the_whole_model(world):
    [expected, same] = world(2).run(grown)
    assert expected == same
    assert world(4).run(grown, (2, 2)) == [expected] * 4


# method, and: the gradient of one shard of one replica is not finite in the step
HELD = [("dlion-vote", 2, dict(on_non_finite="skip")),
        ("lion", 2, dict(on_non_finite="skip", clip_global_norm=3.0)),
        ("adamw", None, dict(clip_global_norm=3.0, overlap=False))]


@pytest.mark.parametrize("shape", [(2, 2), (2, 1), (1, 2)], ids=str)
@pytest.mark.parametrize("method, nan, arguments", HELD, ids=str)
def test_all_shards_skip_a_step_and_are_clipped_by_the_norm_of_all(world, shape, method, nan,
                                                                   arguments):
    compare(world, shape, method, None, nan=nan, **arguments)


@pytest.mark.parametrize("shape", [(2, 2), (2, 1), (1, 2)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_matrices_are_orthogonalised_whole(world, shape, dtype):
    """One of them on each rank of the shard group, and the biases by shards."""
    replicas, shards = shape
    method = "dlion-muon", None
    expected = world(replicas).run(sharded.whole, replicas, shards, *method, STEPS, dtype)
    held = {}
    for replica, _, (weights, state) in world(replicas * shards).run(run, shape, *method, dtype):
        assert weights == expected[replica][0]
        assert state.items() <= expected[replica][1].items()
        held.setdefault(replica, {}).update(state)
    assert [held[r] for r in range(replicas)] == [state for _, state in expected]


def on_one_mesh(mesh, **policy):
    model = sharded.model()
    for layer in model[::2]:
        sharded.fully_shard(layer, mesh=mesh["fs"], **policy)
    return sharded.fully_shard(model, mesh=mesh["fs"], **policy)


def clipped():
    mesh = sharded.mesh_of(2, 2)
    model = on_one_mesh(mesh)
    optimizer = sharded.optimizer_of(model, "lion", replicate_mesh=mesh["dp"])
    sharded.loss_of(model, dist.get_rank(), 0).backward()

    def norm():
        return torch.cat([sharded.full(p.grad).flatten() for p in model.parameters()]).norm()

    before, got = norm(), pride.clip_grad_norm_(optimizer, 0.01)
    return mesh["dp"].get_local_rank(), float(before), float(got), float(norm())


def test_clipping_is_of_each_replicas_gradient(world):
    norms = {}
    for replica, before, got, after in world(4).run(clipped):
        assert abs(got - before) < 1e-5 * before and abs(after - 0.01) < 1e-6
        norms.setdefault(replica, set()).add(got)
    assert len(norms[0] | norms[1]) == 2


def offloaded(offload):
    from torch.distributed.fsdp import CPUOffloadPolicy

    mesh = sharded.mesh_of(2, 2)
    policy = {"offload_policy": CPUOffloadPolicy(pin_memory=False)} if offload else {}
    model = on_one_mesh(mesh, **policy)
    optimizer = sharded.optimizer_of(model, "dlion-vote", replicate_mesh=mesh["dp"])
    sharded.train(mesh, model, optimizer, STEPS)
    return sharded.ending(model, optimizer)


def test_cpu_offload(world):
    assert world(4).run(offloaded, True) == world(4).run(offloaded, False)


def overflow():
    """Of the gradient of one shard of one replica, in the second step."""
    mesh = sharded.mesh_of(2, 2)
    model = on_one_mesh(mesh)
    optimizer = sharded.optimizer_of(model, "lion", replicate_mesh=mesh["dp"])
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    optimizer.scaler = scaler
    seen = []
    for step in range(3):
        optimizer.zero_grad()
        scaler.scale(sharded.loss_of(model, dist.get_rank(), step)).backward()
        if step == 1 and dist.get_rank() == 2:
            model[0].weight.grad.to_local()[3, 2] = float("inf")
        scaler.step(optimizer)
        scaler.update()
        seen.append((optimizer.traffic()["skipped"], scaler.get_scale()))
    return seen, sharded.ending(model, optimizer)[0]


def test_an_overflow_in_one_shard_skips_the_step_everywhere(world):
    results = world(4).run(overflow)
    assert all(result == results[0] for result in results)
    assert results[0][0] == [(0, 64.0), (1, 32.0), (1, 32.0)]


def consolidated():
    mesh = sharded.mesh_of(2, 2)
    model = sharded.sharded(mesh)
    optimizer = sharded.optimizer_of(model, "dlion-avg", replicate_mesh=mesh["dp"])
    sharded.train(mesh, model, optimizer, STEPS)

    def state():
        return {(i, key): sharded.full(t).numpy().tobytes()
                for i, entry in optimizer.state_dict()["state"].items() for key, t in entry.items()}

    own = state()
    optimizer.consolidate_state_dict()
    return mesh["dp"].get_local_rank(), own, state()


def test_a_consolidated_state_has_the_shards_of_all_replicas(world):
    results = world(4).run(consolidated)
    own = {replica: state for replica, state, _ in results}
    for replica, _, gathered in results:
        assert gathered == ({**own[0], **own[1]} if replica == 0 else own[1])
    assert own[0] != own[1]


REFUSED = {
    "no mesh": (dict(), "0.weight is sharded: give replicate_mesh"),
    "overlap": (dict(overlap=True), "overlap=True: FSDP's gradients are complete after backward"),
    "muon": (dict(method="dlion-muon", options={"matrix_scale": "fan-in"}), "matrix_scale=fan-in"),
    "skip": (dict(method="local-vote", on_non_finite="skip"), "non_finite = skip is not supported with local-vote"),
    "clip": (dict(method="lion", clip_global_norm=1.0, shard="last alone"),
             "clip_global_norm: they lie on 2 different meshes"),
    "other ranks": (dict(mesh="fs"), "is sharded over ranks [0, 1], of which [0, 1] are replicas"),
    "whole mesh": (dict(shard="all"), "is replicated over its own mesh"),
    "plain": (dict(shard="first"), "2.weight is not sharded and 0.weight is"),
    "averaged": (dict(average=True), "the gradients of all ranks are equal, bit for bit"),
}


def refused(mesh="dp", shard=None, average=False, method="dlion-vote", **arguments):
    meshes = sharded.mesh_of(2, 2)
    model = sharded.model()
    if shard == "all":
        model = sharded.fully_shard(model, mesh=meshes)
    elif shard == "first":
        sharded.fully_shard(model[0], mesh=meshes["fs"])
    elif shard == "last alone":
        alone = sharded.init_device_mesh("cpu", (4, 1), mesh_dim_names=("dp", "fs"))
        sharded.fully_shard(model[4], mesh=alone["fs"])
        model = sharded.fully_shard(model, mesh=meshes["fs"])
    else:
        model = sharded.sharded(meshes)
    if arguments or mesh != "dp" or shard or average or method != "dlion-vote":
        arguments["replicate_mesh"] = meshes[mesh]
    optimizer = sharded.optimizer_of(model, method, **arguments)
    sharded.loss_of(model, dist.get_rank(), 0).backward()
    for p in model.parameters() if average else ():
        dist.all_reduce(p.grad.to_local(), group=meshes["dp"].get_group())
    optimizer.step()


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(world, case):
    arguments, text = REFUSED[case]
    for rank, error in enumerate(world(4).errors(refused, **arguments)):
        assert error is not None and error[0] is pride.InvalidArgument, f"rank {rank}: {error}"
        assert text in error[1] or text.replace("[0, 1]", "[2, 3]") in error[1], error[1]
