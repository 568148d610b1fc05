# Small models and data of the tests.
# SPDX-License-Identifier: Apache-2.0
import torch


def mlp(seed=1, sizes=(12, 33, 7), dtype=torch.float32):
    torch.manual_seed(seed)
    layers = []
    for a, b in zip(sizes, sizes[1:]):
        layers += [torch.nn.Linear(a, b), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1]).to(dtype)


def batch(rank, step, n=8, inputs=12, outputs=7):
    g = torch.Generator().manual_seed(1000 * rank + step)
    return (torch.randn(n, inputs, generator=g),
            torch.randint(outputs, (n,), generator=g))


def backward(model, rank, step):
    x, y = batch(rank, step)
    loss = torch.nn.functional.cross_entropy(model(x.to(next(model.parameters()).dtype)).float(), y)
    loss.backward()
    return loss.item()


def train(model, optimizer, steps, rank, first=0):
    losses = []
    for step in range(first, first + steps):
        optimizer.zero_grad()
        losses.append(backward(model, rank, step))
        optimizer.step()
    return losses


def bits(parameters):
    """All values of the parameters as bytes."""
    return b"".join(p.detach().float().numpy().tobytes() for p in parameters)
