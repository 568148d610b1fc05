# momentum_dtype="bfloat16": the momentum in 2 bytes, rounded to nearest as it is written. Oracle:
# torch's own rounding.
# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

import pride
from models import numbers, parameter

METHODS = ["dlion-vote", "dlion-avg", "signum-vote", "signum-avg", "lion"]
NARROW = {"momentum_dtype": "bfloat16"}


def trained(method, options, steps, optimizer=None, p=None, first=0):
    p = parameter(0, 7, 11) if p is None else p
    if optimizer is None:
        optimizer = pride.Optimizer([p], 0.01, method=method, options=options, weight_decay=0.1)
    for step in range(first, first + steps):
        p.grad = numbers(step, 7, 11)
        optimizer.step()
    return p, optimizer


def momentum(optimizer, p):
    return next(v for k, v in optimizer.state[p].items() if k.split(".")[0] == "m")


@pytest.mark.parametrize("method", METHODS)
def test_the_momentum_is_rounded_in_each_step(method):
    p, optimizer = trained(method, NARROW, 6)
    beta = 0.99
    want = torch.zeros(7, 11)
    for step in range(6):
        want = beta * want + torch.tensor(1 - beta, dtype=torch.float32) * numbers(step, 7, 11)
        want = want.to(torch.bfloat16).float()
    m = momentum(optimizer, p)
    assert m.dtype == torch.bfloat16
    assert torch.equal(m.float(), want)
    (saved,) = optimizer.state_dict()["state"].values()
    of_file = next(v for k, v in saved.items() if k.split(".")[0] == "m")
    assert of_file.dtype == torch.float32 and torch.equal(of_file, want)
    assert optimizer.memory()["state"] == 2 * 128  # 77 values, padded to 128


@pytest.mark.parametrize("method", METHODS)
def test_a_run_that_is_resumed_has_the_same_bits(method):
    p, whole = trained(method, NARROW, 8)
    q, first = trained(method, NARROW, 4)
    r = torch.nn.Parameter(q.detach().clone())
    second = pride.Optimizer([r], 0.01, method=method, options=NARROW, weight_decay=0.1)
    second.load_state_dict(first.state_dict())
    trained(method, NARROW, 4, second, r, first=4)
    assert torch.equal(p, r) and torch.equal(momentum(whole, p), momentum(second, r))


def test_a_state_of_the_other_type_is_refused():
    p, wide = trained("dlion-vote", {}, 2)
    q, narrow = trained("dlion-vote", NARROW, 2)
    with pytest.raises(pride.InvalidArgument, match="momentum_dtype"):
        narrow.load_state_dict(wide.state_dict())


@pytest.mark.parametrize("method", ["adamw", "lion-cub", "local-vote", "signsgd-ef"])
def test_other_methods_refuse_it_by_name(method):
    with pytest.raises(pride.InvalidArgument, match="momentum_dtype"):
        pride.Optimizer([parameter(0, 3)], method=method, options=NARROW)
