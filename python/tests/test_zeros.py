# Rows that nobody touches stay near their values, however their tensor is used.
# SPDX-License-Identifier: Apache-2.0
#
# Oracle: the rows' first values.
import pytest
import torch

import pride

LR, STEPS, MOST = 1e-3, 240, 8


def in_turn(step, worker, _):
    """Two heads, one in each step; a third that one worker in turn uses."""
    return (step % 2 == 0, step % 2 == 1, step % 3 == worker)


def now_and_then(step, _, __):
    """Every third step, two of five, frozen for twenty steps of forty."""
    return (step % 3 == 0, step % 5 < 2, step % 40 < 20)


def by_half(step, worker, n):
    """Experts: one half of the workers each; one of the first worker."""
    return (worker <= n // 2, worker >= n // 2, worker == 0 and step % 2 == 1)


@pytest.mark.parametrize("use", [in_turn, now_and_then, by_half])
@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("method, options", [
    ("dlion-vote", {}), ("dlion-avg", {}), ("signum-vote", {}), ("lion-cub", {"bits": 4}),
    ("local-vote", {"h": 2})])
def test_untouched_rows_stay(method, options, n, use):
    torch.manual_seed(3)
    tables = [torch.nn.Parameter(torch.randn(12, 8, dtype=torch.float32)) for _ in range(3)]
    start = [table.detach().clone() for table in tables]
    optimizer = pride.VirtualWorkers(tables, LR, method=method, options=options, weight_decay=0,
                                     workers=n)
    period, moved = options.get("h", 1), [0.0] * 3
    for step in range(STEPS):
        for worker in range(n):
            with optimizer.worker(worker):
                for table, used in zip(tables, use(step // period, worker, n)):
                    table.grad = torch.zeros_like(table) if used else None
                    if used:  # the first rows only
                        table.grad[:4] = torch.randn(4, 8, dtype=torch.float32)
        optimizer.step()
        for i, table in enumerate(tables):
            far = (table.detach() - start[i])[4:].abs().max().item() / LR
            moved[i] = max(moved[i], far)
    assert max(moved) <= MOST, moved
    assert all((t.detach() - s)[:4].abs().max() > LR for t, s in zip(tables, start))
