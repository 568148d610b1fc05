# Small models, data and optimizers of the tests.
# SPDX-License-Identifier: Apache-2.0
import os
import pathlib

import functools

import torch
import torch.distributed as dist

import pride

NEW_TORCH = int(torch.__version__.split(".")[0]) >= 2
# The build whose program and fake CUDA driver tests use: PRIDE_TEST_BUILD, or that of the library.
BUILD = pathlib.Path(os.environ.get("PRIDE_TEST_BUILD")
                     or pathlib.Path(os.environ.get("PRIDE_LIBRARY_DIR", "none/none")) / "../..").resolve()


def mlp(seed=1, sizes=(12, 33, 7), dtype=torch.float32):
    torch.manual_seed(seed)
    layers = []
    for a, b in zip(sizes, sizes[1:]):
        layers += [torch.nn.Linear(a, b), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1]).to(dtype)


def own_rank():
    return dist.get_rank() if dist.is_initialized() else 0


def batch(step, rank=None):
    """This rank's, unless another is given."""
    g = torch.Generator().manual_seed(1000 * (own_rank() if rank is None else rank) + step)
    return torch.randn(8, 12, generator=g), torch.randint(7, (8,), generator=g)


def loss_of(model, x, y):
    return torch.nn.functional.cross_entropy(model(x.to(next(model.parameters()).dtype)).float(), y)


def backward(model, step, rank=None):
    loss = loss_of(model, *batch(step, rank))
    loss.backward()
    return loss.item()


class Branches(torch.nn.Module):
    """A trunk and two branches, which forward takes or not."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.trunk = torch.nn.Linear(12, 16)
        self.branches = torch.nn.ModuleList([torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)])
        self.head = torch.nn.Linear(16, 3)

    def forward(self, x, taken):
        x = torch.relu(self.trunk(x))
        for branch, used in zip(self.branches, taken):
            if used:
                x = x + torch.relu(branch(x))
        return self.head(x)


def taken(rank, step):
    """Branch 0: by some ranks only; branch 1: by all in some steps, by none in the others."""
    return (step + rank) % 3 != 0, step % 2 == 0


def inputs(step):
    """This rank's, for the branches."""
    return batch(step)[0]


def backward_of_branches(model, step, use):
    model(inputs(step), use).pow(2).sum().backward()


def make(method="dlion-vote", model=None, lr=1e-2, **options):
    """A model and its optimizer, with small buckets; the time-out is beyond what errors take. With
    workers=, they are virtual."""
    model = mlp() if model is None else model
    optimizer = functools.partial(pride.VirtualWorkers, bucket_size=64) if "workers" in options else (
        functools.partial(pride.Optimizer, bucket_size=64, timeout=30))
    return model, optimizer(model.named_parameters(), lr, method=method, **options)


def train(model, optimizer, steps, first=0, rank=None):
    losses = []
    for step in range(first, first + steps):
        optimizer.zero_grad()
        losses.append(backward(model, step, rank))
        optimizer.step()
    return losses


def bits(parameters):
    """All values of the parameters as bytes."""
    return b"".join(p.detach().float().numpy().tobytes() for p in parameters)


def whole(model, optimizer):
    """Weights, and all state: momentum and step."""
    state = [v for p in model.parameters() for _, v in sorted(optimizer.state[p].items())]
    return bits(model.parameters()), bits(state)


def ended(model, optimizer):
    """The weights, which all ranks have; closes the optimizer."""
    optimizer.check_replicas()
    optimizer.close()
    return bits(model.parameters())


# --- Parameters without a model. ------------------------------------------------------------------


def numbers(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def parameter(seed, *shape, dtype=torch.float32):
    return torch.nn.Parameter(numbers(seed, *shape).to(dtype))


def set_gradients(params, step, rank=0):
    for i, p in enumerate(params):
        p.grad = numbers(1000 * step + 100 * rank + i, *p.shape).to(p.dtype)


def moved(p, optimizer, step):
    """Distance of the step, with random signs."""
    before = p.detach().clone()
    set_gradients([p], step)
    optimizer.step()
    return (p.detach() - before).abs()


def narrowed(x, dtype):
    """As libpride rounds a master: bfloat16 with ties away from zero, the upper half of the bits."""
    if dtype != torch.bfloat16:
        return x.detach().to(dtype)
    bits = x.detach().contiguous().view(torch.int32) + 0x8000
    return (bits & ~0xFFFF).view(torch.float32).to(dtype)
