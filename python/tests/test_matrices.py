# Matrices of methods such as dlion-muon: by group, by the types of modules, by name.
# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn

from pride._matrices import matrix_kinds

VOCABULARY, WIDTH = 40, 12


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.multihead = nn.Linear(WIDTH, 3 * WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)


def gpt(head=None, tied=False, first=False, depth=2):
    """Embeddings, blocks and, under the name `head`, the layer that makes the logits."""
    model, output = nn.Module(), nn.Linear(WIDTH, VOCABULARY)
    model.tok = nn.Embedding(VOCABULARY, WIDTH)
    model.at = nn.Embedding(WIDTH, WIDTH)  # of the shape of a block's layer
    if head and first:
        model.add_module(head, output)
    model.blocks = nn.ModuleList(Block() for _ in range(depth))
    if head and not first:
        model.add_module(head, output)
    if tied:
        output.weight = model.tok.weight
    return model


def vision():
    model = nn.Module()
    model.patch_embed = nn.Conv2d(3, WIDTH, 4)
    model.blocks = nn.Sequential(Block(), Block())
    model.fc = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10))
    return model


def perceptron():
    return nn.Sequential(nn.Linear(9, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


def attention():
    model = nn.Module()
    model.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, 2), 2)
    model.out = nn.utils.weight_norm(nn.Linear(WIDTH, 5))
    return model


BLOCKS = {f"blocks.{i}.{name}.weight": True for i in range(2) for name in ("multihead", "proj")}
TABLES = {"tok.weight": False, "at.weight": False}
MODELS = {
    "an output of any name": (lambda: gpt("proj"), {**TABLES, **BLOCKS, "proj.weight": False}),
    "an output made first": (lambda: gpt("proj", first=True),
                             {**TABLES, **BLOCKS, "proj.weight": False}),
    "a tied output": (lambda: gpt("proj", tied=True), {**TABLES, **BLOCKS}),
    "an output that is a function": (gpt, {**TABLES, **BLOCKS}),
    "one block": (lambda: gpt(depth=1), {**TABLES, **dict(list(BLOCKS.items())[:2])}),
    "images": (vision, {"patch_embed.weight": None, **BLOCKS, "fc.1.weight": False}),
    "layers in a row": (perceptron, {"0.weight": True, "2.weight": True, "4.weight": False}),
    "no linear layer": (lambda: nn.Conv2d(1, 2, 3), {"weight": None}),
    "torch's own blocks": (attention, {
        **{f"layers.layers.{i}.{name}": kind for i in range(2) for name, kind in {
            "self_attn.in_proj_weight": None, "self_attn.out_proj.weight": True,
            "linear1.weight": True, "linear2.weight": True}.items()},
        "out.weight_g": None, "out.weight_v": None}),
}


@pytest.mark.parametrize("name", MODELS)
def test_types_of_modules_tell_matrices(name):
    make, expected = MODELS[name]
    model = make()
    kinds = matrix_kinds(model)
    assert list(kinds) == [name for name, _ in model.named_parameters()]
    assert {name: kind for name, kind in kinds.items()
            if model.get_parameter(name).dim() > 1} == expected
    assert all(kind is None for name, kind in kinds.items() if name not in expected)
