# torch's defaults for dtype and device, which a caller may set: they change nothing.
# SPDX-License-Identifier: Apache-2.0
#
# Oracle: the same run under torch's own defaults. Models and data are made before they change.
import contextlib
import copy

import pytest
import torch

import models
import pride
from pride import _device, _frameworks

DEFAULTS = ["float64", "bfloat16"] + ["meta"] * models.NEW_TORCH  # torch 1.13 has no default device


@contextlib.contextmanager
def default(name):
    """With this dtype, or this device, as the default."""
    try:
        if name == "meta":
            torch.set_default_device(name)
        else:
            torch.set_default_dtype(getattr(torch, name))
        yield
    finally:
        torch.set_default_dtype(torch.float32)
        if models.NEW_TORCH:
            torch.set_default_device(None)


def trained(name, method="dlion-vote", dtype=torch.float32, virtual=None, **arguments):
    """All that a run, its state, its copy and its log have. All of pride's is made under the
    default."""
    model = models.mlp(dtype=dtype)
    ranks = range(virtual) if virtual else [None]
    batches = [[models.batch(step, rank) for rank in ranks] for step in range(6)]
    log = []
    with default(name):
        optimizer = models.make(method, model, **({"workers": virtual} if virtual else {}), **arguments)[1]
        # torch 1.13 has no hooks of steps, which the frameworks' log needs
        meter = _frameworks.Meter(optimizer) if models.NEW_TORCH else None
        for step, of_step in enumerate(batches):
            optimizer.zero_grad(set_to_none=True)
            for worker, (x, y) in enumerate(of_step):
                with optimizer.worker(worker) if virtual else contextlib.nullcontext():
                    models.loss_of(model, x, y).backward()
            if step == 2 and not arguments.get("overlap"):
                model[0].bias.grad = None
            optimizer.step()
            if step < 5 and meter:  # the last is the copy's
                log.append(meter.values())
            if step == 3:
                if not virtual:
                    optimizer.consolidate_state_dict()
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            if step == 4 and method != "local-vote":
                older, optimizer = optimizer, copy.deepcopy(optimizer)
                optimizer.check_replicas()  # builds the copy
                older.close()
        state = optimizer.state_dict()["state"]
        numbers = optimizer.memory(), optimizer.check_replicas(), optimizer.traffic()["bytes_sent"]
        optimizer.close()
    kept = [(i, key, str(t.dtype), str(t.device), t.numpy().tobytes())
            for i, entry in sorted(state.items()) for key, t in sorted(entry.items())]
    return models.bits(model.parameters()), kept, log, numbers


RUNS = {
    "bfloat16": dict(dtype=torch.bfloat16),
    "overlap": dict(overlap=True),
    "mean, clipped": dict(method="adamw", clip_global_norm=0.1),
    "shared momenta": dict(method="lion-cub"),
    "local steps": dict(method="local-vote", options={"h": 2}),
    "momentum in bfloat16": dict(options={"momentum_dtype": "bfloat16"}),
    "virtual workers": dict(virtual=3),
    "nodes": dict(node_group="auto"),
}
if models.NEW_TORCH:  # torch 1.13 has no products in float16 on the CPU
    RUNS["float16"] = dict(dtype=torch.float16)
_expected = {}


@pytest.mark.parametrize("name", DEFAULTS)
@pytest.mark.parametrize("run", RUNS)
def test_torchs_defaults_change_nothing(world, run, name):
    n = 1 if RUNS[run].get("virtual") else 2
    if run not in _expected:
        _expected[run] = world(n).run(trained, "float32", **RUNS[run])
    assert world(n).run(trained, name, **RUNS[run]) == _expected[run]


@pytest.mark.parametrize("wrong, what", [
    (torch.zeros(4, dtype=torch.bfloat16), "torch.bfloat16"), (torch.zeros(5), "5 values"),
    (torch.zeros(4, 2)[:, 0], r"strides \(2,\)"), (torch.zeros(4, device="meta"), "'meta'")])
def test_memory_of_another_kind_is_never_passed_to_libpride(wrong, what):
    good = torch.zeros(4)
    assert _device.HOST.address(good, torch.float32, 4) == _device.memory_at(good)
    with pytest.raises(pride.Error, match=what):
        _device.HOST.address(wrong, torch.float32, 4)
