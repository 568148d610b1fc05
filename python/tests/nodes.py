# Runs with node_group=, and what they must equal.
# SPDX-License-Identifier: Apache-2.0
import torch
import torch.distributed as dist

import models
import pride

STEPS = 5
SIZES = (12, 33, 7)
METHODS = [("dlion-vote", None), ("dlion-avg", None), ("lion", None), ("adamw", None),
           ("signum-vote", None), ("signum-avg", None), ("dlion-muon", None),
           ("turn-muon", {"turns": 2}), ("local-vote", {"h": 2}), ("diloco", {"h": 2}),
           ("lion-cub", {"sync": "vectors"})]


def model_of(dtype=torch.float32):
    """No gradient is 0."""
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(12, 33), torch.nn.Tanh(), torch.nn.Linear(33, 7),
                               torch.nn.Tanh(), torch.nn.Linear(7, 2)).to(dtype)


def groups_of(local):
    """This rank's node, of as many ranks."""
    mine = None
    for first in range(0, dist.get_world_size(), local):
        ranks = list(range(first, first + local))
        made = dist.new_group(ranks)
        mine = made if dist.get_rank() in ranks else mine
    return mine


def make(method="dlion-avg", options=None, dtype=torch.float32, model=None, **more):
    model = model_of(dtype) if model is None else model
    params = [{"params": [(n, p) for n, p in model.named_parameters() if (p.ndim > 1) == matrix],
               "weight_decay": 0.1 * matrix} for matrix in (True, False)]
    return model, pride.Optimizer(params, 1e-2, method=method, options=options, bucket_size=64,
                                  timeout=30, **more)


def backward(model, rank, step, spread=False):
    """spread: each rank uses other layers."""
    x, _ = models.batch(step, rank)
    x = x.to(model[0].weight.dtype)
    y = model(x).sin().sum() if not spread else (
        model[0](x).sin().sum() if (rank + step) % 3 else model[4](x[:, :7]).sin().sum())
    y.backward()


def backward_of_node(model, node, local, step, spread=False):
    totals = None
    for rank in range(node * local, node * local + local):
        for p in model.parameters():
            p.grad = None
        backward(model, rank, step, spread)
        own = [None if p.grad is None else p.grad.float() for p in model.parameters()]
        totals = own if totals is None else [
            b if a is None else a if b is None else a + b for a, b in zip(totals, own)]
    for p, total in zip(model.parameters(), totals):
        p.grad = None if total is None else (total / local).to(p.dtype)


def ending(model, optimizer):
    """(weights, state) as bytes, of the tensors that this rank has."""
    optimizer.check_replicas()
    with optimizer.common_parameters():
        weights = models.bits(model.parameters())
    state = {(i, key): t.numpy().tobytes() for i, entry in
             optimizer.state_dict()["state"].items() for key, t in entry.items()}
    optimizer.close()
    return weights, state


def train(model, optimizer, steps, first=0, spread=False, nan=None):
    """nan: the step in which the last rank's gradient is not finite."""
    for step in range(first, first + steps):
        optimizer.zero_grad(set_to_none=True)
        backward(model, dist.get_rank(), step, spread)
        if step == nan and dist.get_rank() == dist.get_world_size() - 1:
            model[2].bias.grad[3] = float("nan")
        optimizer.step()


def with_nodes(local, method, options=None, dtype=torch.float32, spread=False, auto=False, nan=None,
               **more):
    model, optimizer = make(method, options, dtype,
                            node_group="auto" if auto else groups_of(local), **more)
    train(model, optimizer, STEPS, 0, spread, nan)
    assert optimizer.traffic()["skipped"] == (nan is not None)
    held = sum(t.numel() for entry in optimizer.state.values() for key, t in entry.items()
               if not key.startswith("step"))
    traffic = optimizer.traffic()
    return held, traffic, ending(model, optimizer)


def one_rank_a_node(local, method, options=None, dtype=torch.float32, spread=False, nan=None, **more):
    model, optimizer = make(method, options, dtype, **more)
    for step in range(STEPS):
        backward_of_node(model, dist.get_rank(), local, step, spread)
        if step == nan and dist.get_rank() == dist.get_world_size() - 1:
            model[2].bias.grad[3] = float("nan")
        optimizer.step()
    held = sum(t.numel() for entry in optimizer.state.values() for key, t in entry.items()
               if not key.startswith("step"))
    traffic = optimizer.traffic()
    return held, traffic, ending(model, optimizer)


def compare(world, nodes, local, *arguments, auto=False, **more):
    """The results with nodes, and without."""
    expected = world(nodes).run(one_rank_a_node, local, *arguments, **more)
    results = world(nodes * local).run(with_nodes, local, *arguments, auto=auto, **more)
    for node in range(nodes):
        union = {}
        for _, _, (weights, state) in results[node * local:(node + 1) * local]:
            assert weights == expected[node][2][0], f"node {node}"
            union.update(state)
        assert union == expected[node][2][1], f"node {node}"
    assert expected[0][2][0] != models.bits(model_of().parameters())
    return results, expected
