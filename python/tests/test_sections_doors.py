# Optimizers with sections: nodes, shards, MPI, scalers, clipping, take_over() and others.
# SPDX-License-Identifier: Apache-2.0
#
# Oracle: an optimizer of its own for each method, or the same run on ranks of one process each.
import contextlib
import hashlib
import io
import shutil

import pytest
import torch
import torch.distributed as dist

import models
import nodes
import pride
import sharded
from models import batch, parameter
from pride import _library as library
from pride._frameworks import Meter
from scalers import KINDS, cpu_kernels
from test_sections import PAIRS, STEPS, ending, groups_of, made, train, trained

VOTE = "a vote and AdamW"


# --- Ranks that hold parts. -----------------------------------------------------------------------


def of_node(name, local, apart, stop=None, **more):
    """Nodes of `local` ranks, or as many ranks with the mean gradients of nodes. stop: the step in
    which a new optimizer loads the state."""
    model = nodes.model_of()
    if not apart:
        more["node_group"] = nodes.groups_of(local)
    optimizers = made(model, PAIRS[name], apart, **more)
    for step in range(STEPS):
        if step == stop:
            states = [each.state_dict() for each in optimizers]
            for each in optimizers:
                each.to_common()
                each.close()
            optimizers = made(model, PAIRS[name], apart, **more)
            for each, saved in zip(optimizers, states):
                each.load_state_dict(saved)
        if apart:
            nodes.backward_of_node(model, dist.get_rank(), local, step)
        else:
            optimizers[0].zero_grad(set_to_none=True)
            nodes.backward(model, dist.get_rank(), step)
        for optimizer in optimizers:
            optimizer.step()
    if not apart:
        optimizers[0].consolidate_state_dict()
    return ending(model, optimizers)


@pytest.mark.parametrize("local, stop", [(2, None), (3, None), (2, 3)])
@pytest.mark.parametrize("name", PAIRS)
def test_ranks_of_a_node_divide_the_sections(world, name, local, stop):
    expected = world(2).run(of_node, name, local, True)
    results = world(2 * local).run(of_node, name, local, False, stop)
    for rank, (weights, state) in enumerate(results):
        assert weights == expected[rank // local][0], f"rank {rank}"
        wanted = {**expected[0][1], **expected[1][1]} if rank == 0 else expected[rank // local][1]
        assert state.items() <= wanted.items(), f"rank {rank}"
    assert set(results[0][1]) == set(expected[0][1]) | set(expected[1][1])  # consolidated


def of_shards(name, shape):
    """FSDP2; without a shape the oracle of 2 x 2."""
    mesh = shape and sharded.mesh_of(*shape)
    model = sharded.sharded(mesh) if shape else sharded.model()
    optimizers = made(model, PAIRS[name], not shape, replicate_mesh=mesh and mesh["dp"])
    for step in range(STEPS):
        if shape:
            sharded.train(mesh, model, optimizers[0], 1, step)
            continue
        sharded.backward(model, dist.get_rank(), 2, step)
        for optimizer in optimizers:
            optimizer.step()
    weights = models.bits([sharded.full(p) for p in model.parameters()])
    for optimizer in optimizers:
        optimizer.check_replicas()
        optimizer.close()
    return weights


@pytest.mark.skipif(sharded.fully_shard is None, reason=sharded.WHY_NOT)
@pytest.mark.parametrize("name", [VOTE, "AdamW and Muon's vote"])
def test_shards_take_the_steps_of_whole_tensors(world, name):
    expected = world(2).run(of_shards, name, None)
    assert world(4).run(of_shards, name, (2, 2)) == 2 * [expected[0], expected[1]]


PROGRAM = """
    import hashlib, sys, torch, pride
    import models, nodes
    from test_sections import PAIRS, made
    torch.set_num_threads(1)
    world, model = pride.mpi(), nodes.model_of()
    (optimizer,) = made(model, PAIRS[sys.argv[1]], process_group=world)
    for step in range(5):
        optimizer.zero_grad()
        nodes.backward(model, world.rank, step)
        optimizer.step()
    with open(f"{sys.argv[2]}/{world.rank}", "w") as file:
        file.write(hashlib.sha256(models.ended(model, optimizer)).hexdigest())
"""


@pytest.mark.skipif(shutil.which("mpirun") is None or not library.find("libpride_mpi.so").exists(),
                    reason="there is no MPI")
def test_over_mpi(world, tmp_path):
    from test_mpi import mpirun

    done = mpirun(PROGRAM, VOTE, str(tmp_path))
    assert done.returncode == 0, done.stdout
    expected = hashlib.sha256(world(2).run(trained, VOTE, True)[0][0]).hexdigest()
    assert {file.read_text() for file in tmp_path.iterdir()} == {expected}


def in_folder(name, folder, saves):
    """torch.distributed.checkpoint."""
    model = nodes.model_of()
    (optimizer,) = made(model, PAIRS[name])
    if saves:
        train(model, [optimizer], 3)
        pride.checkpoint.save(folder, model, optimizer)
    else:
        train(model, [optimizer], 1, 9)
        pride.checkpoint.load(folder, model, optimizer)
    train(model, [optimizer], 3, 3)
    return ending(model, [optimizer])


@pytest.mark.skipif(sharded.fully_shard is None, reason=sharded.WHY_NOT)
@pytest.mark.parametrize("name", PAIRS)
def test_a_folder_of_torchs_checkpoints(world, name, tmp_path):
    expected = world(2).run(in_folder, name, tmp_path, True)
    assert world(2).run(in_folder, name, tmp_path, False) == expected


# --- Steps that end otherwise. --------------------------------------------------------------------


def skipped(kind, bad):
    """In step 2 a gradient of rank 1 overflows in one section. kind: of the scaler, or None."""
    model = nodes.model_of()
    (optimizer,) = made(model, PAIRS[VOTE], on_non_finite="raise" if kind else "skip")
    scaler = KINDS[kind](init_scale=4.0) if kind else None
    kept = []
    with cpu_kernels():
        for step in range(4):
            optimizer.zero_grad()
            loss = model(batch(step)[0]).sin().sum()
            (scaler.scale(loss) if kind else loss).backward()
            if (step, dist.get_rank()) == (2, 1):
                model.get_parameter(bad).grad.view(-1)[1] = float("inf")
            before = models.bits(model.parameters())
            if kind:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
            kept.append(models.bits(model.parameters()) == before)
    optimizer.check_replicas()
    last = optimizer.traffic()["skipped"]
    optimizer.close()
    return kept, last


@pytest.mark.parametrize("bad", ["0.weight", "0.bias"])
@pytest.mark.parametrize("kind", [None, *KINDS])
def test_a_gradient_of_one_section_skips_the_step_of_all(world, kind, bad):
    for kept, count in world(2).run(skipped, kind, bad):
        assert kept == [False, False, True, False] and count == 1


CLIPPED = (("lion", {}), ("adamw", {}))


def clipped(norm, by_hand):
    """By hand: each rank's gradients, by the norm of their mean."""
    model = nodes.model_of()
    optimizers = made(model, CLIPPED, by_hand, clip_global_norm=0.0 if by_hand else norm)
    for step in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        nodes.backward(model, dist.get_rank(), step)
        if by_hand:
            mean = torch.cat([p.grad.flatten() for p in model.parameters()])
            dist.all_reduce(mean)
            factor = min(1.0, norm / float((mean / 2).norm()))
            for p in model.parameters():
                p.grad.mul_(factor)
        for optimizer in optimizers:
            optimizer.step()
    values = torch.cat([p.detach().flatten() for p in model.parameters()])
    for optimizer in optimizers:
        optimizer.close()
    return values


def test_clipping_is_of_the_norm_over_all_sections(world):
    got, expected = world(2).run(clipped, 0.5, False), world(2).run(clipped, 0.5, True)
    assert torch.equal(got[0], got[1])
    assert torch.allclose(got[0], expected[0], atol=1e-6)
    assert not torch.allclose(got[0], world(2).run(clipped, 0.0, False)[0], atol=1e-4)


def in_parts(local, bad=None):
    """Clipped steps of nodes; local 1: of as many ranks, with the mean gradients of nodes of 2. bad:
    a parameter whose gradient is not finite in step 2."""
    model = nodes.model_of()
    more = {"node_group": nodes.groups_of(local)} if local > 1 else {}
    (optimizer,) = made(model, CLIPPED, clip_global_norm=0.5, on_non_finite="skip", **more)
    for step in range(STEPS):
        if local > 1:
            optimizer.zero_grad(set_to_none=True)
            nodes.backward(model, dist.get_rank(), step)
        else:
            nodes.backward_of_node(model, dist.get_rank(), 2, step)
        if step == 2 and bad and dist.get_rank() == dist.get_world_size() - 1:
            model.get_parameter(bad).grad.view(-1)[0] = float("nan")
        optimizer.step()
    traffic, values = optimizer.traffic(), torch.cat([p.detach().flatten() for p in model.parameters()])
    models.ended(model, optimizer)
    return values, traffic["last_step"]["grad_norm"], traffic["skipped"]


@pytest.mark.parametrize("bad", [None, "0.weight", "4.bias"])
def test_ranks_of_a_node_clip_and_skip_together(world, bad):
    expected, got = world(2).run(in_parts, 1, bad), world(4).run(in_parts, 2, bad)
    for values, norm, skipped in got:
        assert torch.equal(values, got[0][0]) and torch.allclose(values, expected[0][0], atol=1e-6)
        assert abs(norm - expected[0][1]) < 1e-5 * norm and skipped == (bad is not None)


def test_clipping_needs_methods_with_the_mean_gradient():
    with pytest.raises(pride.InvalidArgument, match="clip_global_norm"):
        made(nodes.model_of(), PAIRS[VOTE], clip_global_norm=1.0)


def joined():
    """Rank 1 has fewer batches."""
    model = nodes.model_of()
    (optimizer,) = made(model, PAIRS[VOTE])
    with pride.join(optimizer):
        for step in range(6 - 3 * dist.get_rank()):
            for group in optimizer.param_groups:
                group["lr"] = 1e-3 * (1 + step)
            optimizer.zero_grad()
            nodes.backward(model, dist.get_rank(), step)
            optimizer.step()
    rates = [group["lr"] for group in optimizer.param_groups]
    return rates, models.ended(model, optimizer)


def test_a_rank_without_data_serves_all_sections(world):
    (rates, weights), other = world(2).run(joined)
    assert other == (rates, weights) and rates == [6e-3, 6e-3]


def start():
    """Parameters that differ, of which rank 0's are taken."""
    torch.manual_seed(dist.get_rank())
    model = models.mlp(seed=dist.get_rank())
    (optimizer,) = made(model, PAIRS[VOTE], broadcast_parameters=True)
    return models.ended(model, optimizer)


def test_parameters_are_broadcast(world):
    assert world(2).run(start) == 2 * [models.bits(models.mlp(seed=0).parameters())]


# --- What is told. --------------------------------------------------------------------------------


def told(name):
    model = nodes.model_of()
    (optimizer,) = made(model, PAIRS[name])
    for step in range(2):
        optimizer.zero_grad()
        nodes.backward(model, dist.get_rank(), step)
        optimizer.step()
    traffic, memory = optimizer.traffic(), optimizer.memory()
    optimizer.close()
    return traffic, memory


@pytest.mark.parametrize("name", PAIRS)
def test_traffic_and_memory_by_section(world, name):
    vectors, matrices = ([p for p in nodes.model_of().parameters() if (p.ndim > 1) == m]
                         for m in (False, True))
    for traffic, memory in world(2).run(told, name):
        sections = traffic["sections"]
        assert [each["method"] for each in sections] == [method for method, _ in PAIRS[name]]
        assert [each["groups"] for each in sections] == [[0], [1]]
        assert [each["parameters"] for each in sections] == [
            sum(p.numel() for p in params) for params in (vectors, matrices)]
        for each, (_, options) in zip(sections, PAIRS[name]):
            assert {k: str(v) for k, v in options.items()}.items() <= each["options"].items()
        for key in ("bytes_sent", "bytes_received", "messages_sent"):
            assert sum(each[key] for each in sections) == traffic["last_step"][key], key
        for key in ("cost_bytes", "mean_cost_bytes"):
            assert sum(each[key] for each in sections) == traffic[key], key
        assert sum(each["state"] for each in sections) == memory["state"]
        assert all(each["bytes_sent"] > 0 and each["state"] > 0 for each in sections)


@pytest.mark.skipif(not models.NEW_TORCH, reason="torch 1.13 has no hooks of steps")
def test_the_log_compares_votes_of_sections_that_vote():
    model = nodes.model_of()
    (optimizer,) = made(model, PAIRS[VOTE])
    meter = Meter(optimizer)
    nodes.backward(model, 0, 0)
    optimizer.step()
    assert meter.values()["pride/vote_agreement"] == 1.0  # one rank agrees with itself
    optimizer.close()


@pytest.mark.skipif("AdamW and Muon's vote" not in PAIRS, reason="this build has no CBLAS")
def test_a_line_has_all_sections_if_one_has_matrices():
    params = [parameter(i, 4, 4) for i in range(3)]
    with contextlib.redirect_stderr(io.StringIO()) as printed:
        optimizer = pride.Optimizer([{"params": [("a", params[0])], "method": "dlion-muon"},
                                     {"params": [params[1]]},
                                     {"params": [params[2]], "method": "muon", "matrix": False}],
                                    method="adamw")
    assert printed.getvalue() == (
        "pride: dlion-muon: matrices: a. If 'a' makes the model's output, exclude it: it is a matrix by its "
        "name alone; adamw: group 1 parameter 0; muon: matrices: none; no matrices: group 2 parameter 0\n")
    optimizer.close()


# --- take_over(). ---------------------------------------------------------------------------------


def taken_over():
    model = nodes.model_of()
    groups = groups_of(model, PAIRS[VOTE])
    for group in groups:
        group["params"] = [p for _, p in group["params"]]
    groups[0] = {"params": groups[0]["params"]}  # the method of the call
    given = torch.optim.AdamW(groups, lr=3e-2, weight_decay=0.1)
    given.param_groups[1]["betas"] = (0.8, 0.9)
    with contextlib.redirect_stderr(io.StringIO()) as printed:
        optimizer = pride.take_over(given, model, method="dlion-avg", bucket_size=64)
    assert optimizer.param_groups is given.param_groups
    for step in range(STEPS):
        optimizer.zero_grad()
        nodes.backward(model, dist.get_rank(), step)
        optimizer.step()
    return models.ended(model, optimizer), printed.getvalue()


def test_a_group_may_have_its_factors():
    model = nodes.model_of()
    vectors, matrices = ({"params": [p for p in model.parameters() if (p.ndim > 1) == m]}
                         for m in (False, True))
    def taken(**own):
        given = torch.optim.SGD([vectors, {**matrices, "method": "adamw", **own}], lr=0.1,
                                weight_decay=0.5)
        vectors["weight_decay"] = 0.0
        with contextlib.redirect_stderr(io.StringIO()):
            return pride.take_over(given, model, method="dlion-avg", lr_scale=0.125)
    with pytest.raises(pride.InvalidArgument, match="no rate of adamw follows .* the group 'pride_lr_scale'"):
        taken()
    with pytest.raises(pride.InvalidArgument, match="a method of its own 'pride_weight_decay_scale'"):
        taken(pride_lr_scale=0.01)
    optimizer = taken(pride_lr_scale=0.01, pride_weight_decay_scale=2.0)
    nodes.backward(model, 0, 0)
    optimizer.step()
    rates = [optimizer._groups.values(group) for group in optimizer.param_groups]
    assert [(each.lr, each.weight_decay) for each in rates] == [(0.0125, 0.0), (0.001, 1.0)]
    optimizer.close()


def by_hand():
    model = nodes.model_of()
    vectors, matrices = groups_of(model, PAIRS[VOTE])
    vectors.update(lr=1e-2, weight_decay=0.3)
    matrices.update(betas=(0.8, 0.9))
    optimizer = pride.Optimizer([vectors, matrices], method="dlion-vote", bucket_size=64)
    for step in range(STEPS):
        optimizer.zero_grad()
        nodes.backward(model, dist.get_rank(), step)
        optimizer.step()
    return models.ended(model, optimizer)


def test_groups_that_are_taken_over_keep_their_methods(world):
    results, expected = world(2).run(taken_over), world(2).run(by_hand)
    a, b = (torch.frombuffer(bytearray(each), dtype=torch.float32)
            for each in (results[0][0], expected[0]))
    assert results[0][0] == results[1][0] and torch.allclose(a, b, atol=1e-6)
    assert results[0][1].startswith(
        "pride: dlion-avg takes over AdamW: lr 0.01 (a third of Adam's: 0.3333 times the AdamW's), "
        "weight decay 0.3; adamw: lr 0.003 (Adam's), weight decay 0.1, "), results[0][1]
