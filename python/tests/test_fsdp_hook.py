# pride.fsdp_hook(): means over FSDP2's replicas as levels of few bits.
# SPDX-License-Identifier: Apache-2.0
#
# Oracle: the gradients that FSDP has without the hook, rounded and averaged by the oracle of ddp_hook.
import pytest
import torch
import torch.distributed as dist

import pride
import sharded
from test_ddp_hook import in_levels

if sharded.fully_shard is None:
    pytest.skip(sharded.WHY_NOT, allow_module_level=True)
from torch.distributed.device_mesh import DeviceMesh  # pylint: disable=wrong-import-position


def gradients(replicas, shards, bits, steps=2, **policy):
    """This rank's shards of the last step's gradients, and what traffic() says."""
    mesh = sharded.mesh_of(replicas, shards)
    model = sharded.sharded(mesh, **policy)
    hook = None if bits is None else pride.fsdp_hook(model, mesh["dp"], bits, timeout=60)
    for step in range(steps):
        model.zero_grad()
        sharded.loss_of(model, dist.get_rank(), step).backward()
    return ([p.grad.to_local().clone() for p in model.parameters()],
            None if hook is None else hook.traffic())


@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize("replicas, shards", [(2, 2), (3, 1)])
def test_shards_are_the_mean_of_rounded_ones_bit_for_bit(world, replicas, shards, bits):
    ranks = replicas * shards
    plain = [grads for grads, _ in world(ranks).run(gradients, replicas, shards, None)]
    found = [grads for grads, _ in world(ranks).run(gradients, replicas, shards, bits)]
    some = 0
    for rank, grads in enumerate(found):
        for i, grad in enumerate(grads):
            rows = [in_levels(plain[r * shards + rank % shards][i].flatten(), bits)
                    for r in range(replicas)]
            expected = in_levels(sum(rows[1:], rows[0]) / replicas, bits).view_as(grad)
            assert torch.equal(grad, expected), (rank, i)
            some += grad.numel() and bool(grad.any())
    assert some > 4


def of_hsdp(shards):
    mesh = sharded.mesh_of(2, shards)
    model = sharded.model()
    for i in (0, 2, 4):
        sharded.fully_shard(model[i], mesh=mesh)
    sharded.fully_shard(model, mesh=mesh)
    sharded.loss_of(model, dist.get_rank(), 1).backward()
    return [p.grad.to_local().clone() for p in model.parameters()]


def test_32_bits_are_the_mean_of_torchs_hybrid_sharding(world):
    for (mine, _), theirs in zip(world(4).run(gradients, 2, 2, 32), world(4).run(of_hsdp, 2)):
        for a, b in zip(mine, theirs):
            assert torch.allclose(a, b, rtol=1e-5, atol=1e-7)


def test_bytes_are_those_of_the_shards(world):
    found = world(4).run(gradients, 2, 2, 8)
    # of modules with a weight and a bias: rows of the shards, and inputs
    words = [-(-rows * inputs // 64) + -(-rows // 64) for rows, inputs in ((17, 12), (4, 33), (1, 7))]
    # a frame has 64 + 8 bytes, scales of 2 bytes in words of 8, and 8 bits
    frames = [[72 + 8 * -(-n // 4) + 64 * n for n in (w // 2, w - w // 2)] for w in words]
    for grads, traffic in found:
        assert traffic["fp32_bytes"] == 4 * sum(g.numel() for g in grads)
        # two steps, in which a rank sends one shard's gradients and the other's mean
        assert traffic["bytes_sent"] == 2 * sum(map(sum, frames))


class Sometimes(torch.nn.Module):
    """Its second layer has no gradient in every other step; both are of one module of FSDP."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.a, self.b = torch.nn.Linear(40, 40), torch.nn.Linear(40, 40)

    def forward(self, x, both):
        return self.b(self.a(x)) if both else self.a(x)


def trained(apart):
    mesh = sharded.mesh_of(2, 2)
    model = Sometimes()
    if apart:
        sharded.fully_shard(model.b, mesh=mesh["fs"])
    sharded.fully_shard(model, mesh=mesh["fs"])
    with torch.no_grad():  # leaves the outermost module whole
        model(torch.ones(1, 40), True)
    hook = pride.fsdp_hook(model, mesh["dp"], 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(8):
        x = torch.randn(8, 40, generator=torch.Generator().manual_seed(dist.get_rank()))
        optimizer.zero_grad()
        loss = (model(x, step % 2 == 0) - x.flip(1)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert "last_step" not in hook.traffic()
    return [p.to_local().detach().clone() for p in model.parameters()], losses


def test_replicas_stay_equal_where_modules_have_no_gradient(world):
    found = world(4).run(trained, True)
    for a, b in ((0, 2), (1, 3)):
        for mine, theirs in zip(found[a][0], found[b][0]):
            assert torch.equal(mine, theirs)
    assert all(losses[-2] < losses[0] for _, losses in found)


def test_a_module_of_which_a_part_has_no_gradient_is_named(fresh_world):
    for kind, text in fresh_world(4).errors(trained, False):
        assert kind is pride.InvalidArgument
        assert "a.weight, a.bias, b.weight, ... that one module of FSDP holds some have no gradient" in text


def of_unequal():
    mesh = sharded.mesh_of(2, 2)
    model = sharded.model()
    with torch.no_grad():
        model[2].bias += float(mesh["dp"].get_local_rank())
    sharded.fully_shard(model, mesh=mesh["fs"])
    pride.fsdp_hook(model, mesh["dp"])


def test_replicas_that_differ_are_told(world):
    for kind, text in world(4).errors(of_unequal):
        assert kind is pride.InvalidArgument and "hash of the parameters' values is" in text, text


def accumulated():
    """Gradients and bytes of two backwards that are exchanged once, and of one with both batches."""
    found = []
    for apart in (True, False):
        mesh = sharded.mesh_of(2, 2)
        model = sharded.sharded(mesh)
        hook = pride.fsdp_hook(model, mesh["dp"], 32)
        if apart:
            model.set_requires_gradient_sync(False)
            sharded.loss_of(model, dist.get_rank(), 0).backward()
            model.set_requires_gradient_sync(True)
            sharded.loss_of(model, dist.get_rank(), 1).backward()
        else:
            (sharded.loss_of(model, dist.get_rank(), 0) +
             sharded.loss_of(model, dist.get_rank(), 1)).backward()
        found.append(([p.grad.to_local().clone() for p in model.parameters()],
                      hook.traffic()["bytes_sent"]))
    return found


def test_accumulated_gradients_are_exchanged_once(world):
    for (apart, sent), (together, sent_together) in world(4).run(accumulated):
        assert sent == sent_together > 0
        for a, b in zip(apart, together):
            assert torch.allclose(a, b, rtol=1e-4, atol=1e-6)


def refusals():
    mesh = sharded.mesh_of(2, 2)
    model = sharded.sharded(mesh)
    whole = sharded.fully_shard(sharded.model(), mesh=mesh)
    part = sharded.model()
    sharded.fully_shard(part[0], mesh=mesh["fs"])
    texts = []
    for arguments in ((sharded.model(), mesh["dp"]), (model, mesh), (model, None), (whole, mesh["dp"]),
                      (part[0:1], mesh["dp"]), (model, mesh["dp"], 5), (model, mesh["fs"])):
        try:
            pride.fsdp_hook(*arguments)
        except pride.InvalidArgument as error:
            texts.append(str(error))
    pride.fsdp_hook(model, mesh["dp"])
    try:
        pride.fsdp_hook(model, mesh["dp"])
    except pride.InvalidArgument as error:
        texts.append(str(error))
    return texts


def test_bad_arguments_are_named(world):
    for texts in world(4).run(refusals):
        for text, part in zip(texts, (
                "model is a Sequential: give", "a mesh of one dimension", "give replicate_mesh",
                "0.weight is not sharded alone", "model is a Sequential: give", "bits is 5",
                "they hold other shards", "has a communication hook of pride"), strict=True):
            assert part in text


def crossed():
    """Rank r of one replica with rank 1 - r of the other."""
    model = sharded.sharded(sharded.mesh_of(2, 2))
    pairs = DeviceMesh("cpu", [[0, 3], [1, 2]], mesh_dim_names=("pairs", "dp"))
    pride.fsdp_hook(model, pairs["dp"], 4)


def test_ranks_that_hold_other_shards_are_told(world):
    for rank, (kind, text) in enumerate(world(4).errors(crossed)):
        expected = ("shard is 0 on rank(s) 0, 1 on rank(s) 3", "shard is 1 on rank(s) 1, 0 on rank(s) 2")
        assert kind is pride.InvalidArgument and expected[rank in (1, 2)] in text, text


def bad_values():
    mesh = sharded.mesh_of(2, 2)
    model = sharded.sharded(mesh)
    pride.fsdp_hook(model, mesh["dp"], 4)
    loss = sharded.loss_of(model, dist.get_rank(), 0)
    (loss * float("nan") if dist.get_rank() == 3 else loss).backward()
    return [bool(p.grad.to_local().isnan().all()) for p in model.parameters()]


def test_a_gradient_that_is_not_finite_is_nan_on_all_ranks(world):
    for found in world(4).run(bad_values):
        assert all(found)


def test_replicas_stay_equal_with_mixed_precision(world):
    policy = {"mp_policy": torch.distributed.fsdp.MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}
    found = [grads for grads, _ in world(4).run(gradients, 2, 2, 4, **policy)]
    for a, b in ((0, 2), (1, 3)):
        for mine, theirs in zip(found[a], found[b]):
            assert torch.equal(mine, theirs)


def dies():
    mesh = sharded.mesh_of(2, 1)
    model = sharded.sharded(mesh)
    pride.fsdp_hook(model, mesh["dp"], 4, timeout=60)
    for step in range(4):
        if step == 2 and dist.get_rank() == 1:
            return
        sharded.loss_of(model, dist.get_rank(), step).backward()


def test_a_rank_that_is_gone_is_named_in_backward(job):
    job = job(2, dies)
    text = job.result(0)[0]
    assert text.startswith("CommError") and "gradient mean" in text and "rank(s) 1" in text, text
    job.close()
