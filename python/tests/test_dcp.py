# torch.distributed.checkpoint: replicas, and FSDP2's shards.
# SPDX-License-Identifier: Apache-2.0
#
# Oracle: the run that was not interrupted; on another number of replicas, what load_state_dict()
# makes of the states of all ranks.
import pytest
import torch
import torch.distributed as dist

import checkpoints
import models
import pride
import sharded

if sharded.fully_shard is None:
    pytest.skip(sharded.WHY_NOT, allow_module_level=True)

import torch.distributed.checkpoint as dcp  # pylint: disable=wrong-import-position
import torch.distributed.checkpoint.state_dict as dcp_state  # pylint: disable=wrong-import-position

METHODS = ["dlion-vote", "lion-cub", "adamw", "signsgd-ef", "local-vote"]


def begun(method, folder):
    """A run of 4 steps that is saved and goes on to 8: what is left of it."""
    model, optimizer = checkpoints.make(method)
    models.train(model, optimizer, 4)
    pride.checkpoint.save(folder, model, optimizer)
    models.train(model, optimizer, 4, 4)
    return checkpoints.ending(model, optimizer)


def resumed(method, folder):
    model, optimizer = checkpoints.make(method, seed=2)
    pride.checkpoint.load(folder, model, optimizer)
    models.train(model, optimizer, 4, 4)
    return checkpoints.ending(model, optimizer)


def resumed_by_torch(method, folder):
    """Without a call of pride."""
    model, optimizer = checkpoints.make(method, seed=2)
    state = {"model": dcp_state.get_model_state_dict(model),
             "optimizer": dcp_state.get_optimizer_state_dict(model, optimizer)}
    dcp.load(state, checkpoint_id=folder)
    dcp_state.set_state_dict(model, optimizer, model_state_dict=state["model"],
                             optim_state_dict=state["optimizer"])
    models.train(model, optimizer, 4, 4)
    return checkpoints.ending(model, optimizer)


@pytest.mark.parametrize("method", METHODS)
def test_a_resumed_run_ends_as_one_that_was_not_interrupted(world, tmp_path, method):
    expected = world(2).run(begun, method, tmp_path)
    assert world(2).run(resumed, method, tmp_path) == expected
    assert world(2).run(resumed_by_torch, method, tmp_path) == expected


def saved_between_exchanges(folder):
    """Whether each tensor of the folder is a common parameter, and one of this rank's own."""
    model, optimizer = models.make("local-vote", options={"h": 8})
    models.train(model, optimizer, 5)
    pride.checkpoint.save(folder, model, optimizer)
    saved = {key: torch.empty_like(t) for key, t in model.state_dict().items()}
    dcp.load({"model": saved}, checkpoint_id=folder)
    own = [torch.equal(t, saved[key]) for key, t in model.state_dict().items()]
    with optimizer.common_parameters():
        return [torch.equal(t, saved[key]) for key, t in model.state_dict().items()], own


def test_with_local_steps_the_folder_has_the_common_parameters(world, tmp_path):
    for common, own in world(2).run(saved_between_exchanges, tmp_path):
        assert all(common) and not any(own)


def alone():
    """Rank 0 asks, the other does not."""
    model, optimizer = checkpoints.make("dlion-vote")
    before = models.bits(model.parameters())
    keys = None
    if dist.get_rank() == 0:
        state = dcp_state.get_optimizer_state_dict(model, optimizer)["state"]
        keys = sorted(state), sorted(state["0.weight"])
    after = models.bits(model.parameters())
    steps = optimizer.traffic()["steps"]
    return keys, before == after, steps


def test_asking_for_the_state_takes_no_step_and_no_other_rank(world):
    results = world(2).run(alone)
    names = ["0.bias", "0.weight", "2.bias", "2.weight"]
    assert results[0] == ((names, ["m.rank0", "step", "step.rank0"]), True, 0)


def momenta(folder, local):
    """What a run has after it has loaded the folder."""
    model, optimizer = checkpoints.make("dlion-vote", seed=2)
    pride.checkpoint.load(folder, model, optimizer, local=local)
    optimizer.consolidate_state_dict()
    return checkpoints.ending(model, optimizer)[1]


def from_states(states, local):
    from pride import _frameworks

    model, optimizer = checkpoints.make("dlion-vote", seed=2)
    merged = _frameworks.merged([checkpoints.loaded(state)["optimizer"] for state in states])
    optimizer.load_state_dict(merged, local=local)
    optimizer.consolidate_state_dict()
    return checkpoints.ending(model, optimizer)[1]


def saved(folder):
    model, optimizer = checkpoints.make("dlion-vote")
    models.train(model, optimizer, 4)
    pride.checkpoint.save(folder, model, optimizer)
    return checkpoints.saved(model, optimizer)


@pytest.mark.parametrize("local", ["keep", "average", "reset"])
def test_another_number_of_replicas(world, tmp_path, local):
    states = world(3).run(saved, tmp_path)
    for n in (1, 2, 3):
        made = world(n).run(momenta, tmp_path, local)
        assert made == world(n).run(from_states, states, local), n
        assert any(any(data) for _, key, data in made[0] if key == "m.rank0") == (local != "reset")


# --- FSDP2. ---------------------------------------------------------------------------------------


def shards_saved(shape, folder, method="dlion-avg"):
    mesh = sharded.mesh_of(*shape)
    model = sharded.sharded(mesh)
    optimizer = sharded.optimizer_of(model, method, replicate_mesh=mesh["dp"])
    sharded.train(mesh, model, optimizer, 4)
    pride.checkpoint.save(folder, model, optimizer)
    return mesh["dp"].get_local_rank(), sharded.ending(model, optimizer)


def shards_loaded(shape, folder, method="dlion-avg"):
    mesh = sharded.mesh_of(*shape)
    model = sharded.sharded(mesh)
    for p in model.parameters():
        p.data.mul_(2)
    optimizer = sharded.optimizer_of(model, method, replicate_mesh=mesh["dp"])
    pride.checkpoint.load(folder, model, optimizer)
    return mesh["dp"].get_local_rank(), sharded.ending(model, optimizer)


@pytest.mark.parametrize("shape", [(2, 2), (2, 1), (1, 2), (4, 1), (1, 4)], ids=str)
def test_other_meshes_load_what_2_x_2_saved(world, tmp_path, shape):
    expected = dict(world(4).run(shards_saved, (2, 2), tmp_path))
    for replica, (weights, state) in world(shape[0] * shape[1]).run(shards_loaded, shape, tmp_path):
        weights_saved, state_saved = expected[replica % 2]
        assert weights == weights_saved
        renamed = {(i, key.replace(f"rank{replica}", f"rank{replica % 2}")): data
                   for (i, key), data in state.items()}
        assert renamed == state_saved


@pytest.mark.parametrize("shape", [(2, 1), (2, 2)], ids=str)
def test_matrices_that_one_rank_of_a_shard_group_has(world, tmp_path, shape):
    def by_replica(results):
        made = {}
        for replica, (weights, state) in results:
            made.setdefault(replica, (weights, {}))[1].update(state)
        return made

    expected = by_replica(world(4).run(shards_saved, (2, 2), tmp_path, "dlion-muon"))
    loaded = world(shape[0] * shape[1]).run(shards_loaded, shape, tmp_path, "dlion-muon")
    assert by_replica(loaded) == expected


def test_a_run_on_shards_goes_on_without(world, tmp_path):
    """Through whole tensors: consolidated on rank 0, and loaded by a plain model."""
    expected = dict(world(4).run(shards_saved, (2, 2), tmp_path))
    for replica, result in enumerate(world(2).run(plain_loaded, tmp_path)):
        assert result == expected[replica]


def plain_loaded(folder):
    model = sharded.model()
    optimizer = sharded.optimizer_of(model, "dlion-avg")
    pride.checkpoint.load(folder, model, optimizer)
    return sharded.ending(model, optimizer)


def nothing_there(folder):
    model, optimizer = checkpoints.make("dlion-vote")
    dcp.save({"model": dcp_state.get_model_state_dict(model)}, checkpoint_id=folder)
    pride.checkpoint.load(folder, model, optimizer)


def test_a_folder_without_an_optimizer_is_named(world, tmp_path):
    for kind, text in world(2).errors(nothing_there, tmp_path):
        assert kind is pride.DataError and f"{tmp_path} has no state of an optimizer" in text


def flattened(folder, first):
    """As torchtitan saves."""
    model, optimizer = checkpoints.make("dlion-vote", seed=1 if first else 2)
    options = dcp_state.StateDictOptions(flatten_optimizer_state_dict=True)
    if first:
        models.train(model, optimizer, 4)
    state = {"model": dcp_state.get_model_state_dict(model),
             "optimizer": dcp_state.get_optimizer_state_dict(model, optimizer, options=options)}
    if first:
        dcp.save(state, checkpoint_id=folder)
    else:
        dcp.load(state, checkpoint_id=folder)
        dcp_state.set_state_dict(model, optimizer, model_state_dict=state["model"],
                                 optim_state_dict=state["optimizer"], options=options)
    models.train(model, optimizer, 2, 4)
    return checkpoints.ending(model, optimizer)


def test_flattened_states(world, tmp_path):
    assert world(2).run(flattened, tmp_path, True) == world(2).run(flattened, tmp_path, False)


def with_frozen(folder, first):
    """torch leaves the state of parameters out that are frozen as it loads."""
    model, optimizer = checkpoints.make("dlion-vote", seed=1 if first else 2)
    for p in model[0].parameters():
        p.requires_grad_(False)
    if first:
        models.train(model, optimizer, 4)
        pride.checkpoint.save(folder, model, optimizer)
    else:
        state = {"model": dcp_state.get_model_state_dict(model),
                 "optimizer": dcp_state.get_optimizer_state_dict(model, optimizer)}
        dcp.load(state, checkpoint_id=folder)
        dcp_state.set_state_dict(model, optimizer, model_state_dict=state["model"],
                                 optim_state_dict=state["optimizer"])
    models.train(model, optimizer, 2, 4)
    return checkpoints.ending(model, optimizer)


def test_frozen_parameters(world, tmp_path):
    assert world(2).run(with_frozen, tmp_path, True) == world(2).run(with_frozen, tmp_path, False)
