# What the tests of checkpoints share: optimizers, their states as bytes, and the undisturbed run.
# SPDX-License-Identifier: Apache-2.0
import io

import torch

import models

METHODS = ["dlion-vote", "lion-cub", "adamw", "onebit-adam", "signsgd-ef", "dgc"]
OPTIONS = {"onebit-adam": {"freeze_steps": 4}}
BF16 = torch.bfloat16


def make(method="dlion-vote", dtype=torch.float32, seed=1, lr=1e-2, **kwargs):
    return models.make(method, models.mlp(seed, dtype=dtype), lr, options=OPTIONS.get(method),
                       **kwargs)


def ending(model, optimizer):
    """All that a run leaves behind, as bytes; closes the optimizer."""
    state = optimizer.state_dict()
    values = [(i, key, t.numpy().tobytes()) for i, entry in sorted(state["state"].items())
              for key, t in sorted(entry.items())]
    return models.ended(model, optimizer), values


def packed(state):
    data = io.BytesIO()
    torch.save(state, data)
    return data.getvalue()


def saved(model, optimizer):
    return packed({"model": model.state_dict(), "optimizer": optimizer.state_dict()})


def loaded(data):
    return torch.load(io.BytesIO(data))


def undisturbed(method, dtype=torch.float32):
    model, optimizer = make(method, dtype)
    models.train(model, optimizer, 10)
    return ending(model, optimizer)
