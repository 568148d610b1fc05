# FSDP2 models on meshes of replicas x shards, and the same training without shards.
# SPDX-License-Identifier: Apache-2.0
import torch
import torch.distributed as dist

import models
import pride

try:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
except ImportError:  # torch 1.13
    fully_shard = None

WHY_NOT = f"torch {torch.__version__} has no fully_shard; the stage of the newest torch runs these"


def model(dtype=torch.float32):
    """No gradient is 0. Over 2 ranks some shards are uneven, and two are empty."""
    torch.manual_seed(7)
    sizes = (12, 33, 7, 1)
    layers = [part for a, b in zip(sizes, sizes[1:]) for part in (torch.nn.Linear(a, b),
                                                                  torch.nn.Tanh())]
    return torch.nn.Sequential(*layers[:-1]).to(dtype)


def mesh_of(replicas, shards):
    return init_device_mesh("cpu", (replicas, shards), mesh_dim_names=("dp", "fs"))


def sharded(mesh, dtype=torch.float32, **policy):
    """Shards layer by layer; the last by a mesh of its own."""
    made = model(dtype)
    inner = init_device_mesh("cpu", tuple(mesh.shape), mesh_dim_names=("dp", "inner"))["inner"]
    for i in (0, 2, 4):
        fully_shard(made[i], mesh=inner if i == 4 else mesh["fs"], **policy)
    return fully_shard(made, mesh=mesh["fs"], **policy)


def optimizer_of(made, method, options=None, **arguments):
    return pride.Optimizer(made.named_parameters(), 1e-2, method=method, options=options,
                           weight_decay=0.1, bucket_size=64, timeout=30, **arguments)


def loss_of(made, rank, step):
    x, _ = models.batch(step, rank)
    return made(x.to(next(made.parameters()).dtype)).float().sin().sum()


def backward(made, replica, shards, step, narrow=None):
    """Without shards: the mean gradient of the batches that a replica's ranks have."""
    total = None
    for shard in range(shards):
        run = made
        if narrow is not None:  # as MixedPrecisionPolicy computes
            run = model(narrow)
            run.load_state_dict(made.state_dict())
        run.zero_grad()
        loss_of(run, replica * shards + shard, step).backward()
        own = [p.grad.float() if narrow else p.grad.clone() for p in run.parameters()]
        total = own if total is None else [a + b for a, b in zip(total, own)]
    for p, gradient in zip(made.parameters(), total):
        p.grad = gradient / shards


def train(mesh, made, optimizer, steps, first=0, nan=None):
    """nan: the step in which a gradient of the last replica's first shard is not finite."""
    for step in range(first, first + steps):
        optimizer.zero_grad()
        loss_of(made, dist.get_rank(), step).backward()
        if step == nan and tuple(mesh.get_coordinate()) == (mesh.size(0) - 1, 0):
            made[0].weight.grad.to_local()[3, 2] = float("nan")
        optimizer.step()


def full(tensor):
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


def ending(made, optimizer):
    """(weights, this replica's state) as bytes, of whole tensors."""
    optimizer.check_replicas()
    weights = models.bits([full(p) for p in made.parameters()])
    state = optimizer.state_dict()["state"]
    values = {(i, key): full(t).numpy().tobytes() for i, entry in state.items()
              for key, t in entry.items()}
    optimizer.close()
    return weights, values


def whole(replicas, shards, method, options, steps, dtype=torch.float32, narrow=None, nan=None,
          **arguments):
    """The oracle: on as many ranks as there are replicas."""
    made = model(dtype)
    optimizer = optimizer_of(made, method, options, **arguments)
    for step in range(steps):
        backward(made, dist.get_rank(), shards, step, narrow)
        if step == nan and dist.get_rank() == replicas - 1:
            made[0].weight.grad[3, 2] = float("nan")
        optimizer.step()
    return ending(made, optimizer)
