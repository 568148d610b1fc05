# Matrices of methods such as dlion-muon: by group, by the types of modules, by name.
# SPDX-License-Identifier: Apache-2.0
import contextlib
import copy
import io
import pickle

import pytest
import torch
from torch import nn

import models
import pride
from models import set_gradients
from pride._matrices import matrix_kinds

pytestmark = pytest.mark.skipif("dlion-muon" not in [m.name for m in pride.methods()],
                                reason="this build has no CBLAS")

VOCABULARY, WIDTH = 40, 12


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.multihead = nn.Linear(WIDTH, 3 * WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)


class Model(nn.Module):
    """Its gradients are numbers, of each step and rank."""

    def forward(self, step):
        seed = 1000 * step + 100 * models.own_rank()
        return sum((p * models.numbers(seed + i, *p.shape)).sum()
                   for i, p in enumerate(self.parameters()))


def gpt(head=None, tied=False, first=False, depth=2):
    """Embeddings, blocks and, under the name `head`, the layer that makes the logits."""
    model, output = Model(), nn.Linear(WIDTH, VOCABULARY)
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


# --- Optimizers. ----------------------------------------------------------------------------------

METHODS = {"dlion-muon": {}, "dlion-muon-avg": {}, "muon": {}, "local-muon": {"h": 1},
           "turn-muon": {"turns": 1}, "local-vote": {"h": 1, "local": "muon"}}


def made(params, method="dlion-muon", options=None, **more):
    """An optimizer, and what it printed."""
    options = {**METHODS[method], **(options or {})}
    with contextlib.redirect_stderr(io.StringIO()) as printed:
        optimizer = pride.Optimizer(params, 1e-2, method=method, options=options, timeout=30, **more)
    return optimizer, printed.getvalue()


def steps(model, optimizer):
    for step in range(2):
        optimizer.zero_grad()
        model(step).backward()
        optimizer.step()


def stepped(model, optimizer):
    steps(model, optimizer)
    optimizer.close()
    return models.bits(model.parameters())


def named(model, renamed=()):
    return [(dict(renamed).get(name, name), p) for name, p in model.named_parameters()]


def by_hand(model, matrices):
    """Groups without names."""
    return [{"params": [p for name, p in model.named_parameters() if (name in matrices) == matrix],
             "matrix": matrix} for matrix in (True, False)]


def oracle(method, head="proj"):
    """The bits of names that the default words recognise, cut alike."""
    torch.manual_seed(3)
    model = gpt(head)
    names = {"tok.weight": "wte", "at.weight": "wpe", f"{head}.weight": "lm_head"}
    names.update({name: name.replace("multihead", "first") for name in BLOCKS})
    return stepped(model, made(named(model, names.items()), method)[0])


def model_of(head="proj"):
    torch.manual_seed(3)
    return gpt(head)


@pytest.mark.parametrize("method", METHODS)
def test_groups_decide(method):
    model = model_of()
    optimizer, printed = made(by_hand(model, BLOCKS), method)
    assert f"pride: {method}: matrices: group 0 parameter" in printed
    assert stepped(model, optimizer) == oracle(method)
    model = model_of()
    assert stepped(model, made(named(model), method)[0]) != oracle(method)  # by name alone


@pytest.mark.parametrize("method", METHODS)
def test_a_tensor_without_a_name_is_refused(method):
    with pytest.raises(pride.InvalidArgument, match=(
            f"{method}: tensors without a name: group 0 parameter 0, .*named_parameters")):
        made(model_of().parameters(), method)
    with pytest.raises(pride.InvalidArgument, match="tensors without a name: group 1 parameter 0"):
        made([{"params": [models.parameter(1, 4, 4)], "matrix": True},
              {"params": [models.parameter(2, 4, 4)]}], method)
    vectors, printed = made([models.parameter(1, 9), models.parameter(2, 1, 4)], method)
    assert "matrices: none" in printed
    vectors.close()


def test_other_methods_need_no_names():
    optimizer = pride.DistributedLion(model_of().parameters())
    optimizer.close()


@pytest.mark.parametrize("options, text", [
    ({"not_matrices": "tok,logits"}, "option not_matrices: no tensor's name contains 'logits'"),
    ({"not_matrices": "=tok"}, "option not_matrices: no tensor's name is 'tok'"),
    ({"split": "attn"}, "option split: no tensor's name contains 'attn'"),
    ({"split": "qkv=4+2*2"}, "option split: no tensor's name contains 'qkv'")])
def test_a_word_that_names_no_tensor_is_refused(options, text):
    with pytest.raises(pride.InvalidArgument, match=text):
        made(model_of().named_parameters(), options=options)


def test_a_whole_name_excludes_one_tensor():
    model = model_of()
    optimizer, printed = made(model.named_parameters(),
                              options={"not_matrices": "tok,at.,=proj.weight"})
    assert printed == (
        "pride: dlion-muon: matrices: blocks.*.multihead.weight (2), blocks.*.proj.weight (2); "
        "no matrices: tok.weight, at.weight, proj.weight and 9 of one dimension\n")
    assert stepped(model, optimizer) == oracle("dlion-muon")


@pytest.mark.parametrize("split", ["qkv=4+2*2,out", {"qkv": [4, 2, 2], "out": None},
                                   {"qkv": "4+2*2", "out": (4, 4, 4)}])
def test_blocks_are_a_text_or_sizes(split):
    optimizer, printed = made([("qkv", models.parameter(1, 8, 4)), ("out", models.parameter(2, 4, 12))],
                              options={"split": split})
    assert printed == ("pride: dlion-muon: matrices: none; split: qkv (3 blocks), out (3 blocks)\n")
    optimizer.close()


@pytest.mark.parametrize("sizes", [[4, 2.0, 2], [4, True], [], [8, 0], True, {}])
def test_blocks_of_other_sizes_are_refused(sizes):
    with pytest.raises(pride.InvalidArgument, match="split"):
        made([("qkv", models.parameter(1, 8, 4))], options={"split": {"qkv": sizes}})


@pytest.mark.parametrize("flag", [0, "no", 1.0])
def test_another_flag_is_refused(flag):
    with pytest.raises(pride.InvalidArgument, match="group 0: matrix = .*, must be True or False"):
        made([{"params": [models.parameter(1, 4, 4)], "matrix": flag}])


def test_a_changed_flag_is_refused_and_a_load_keeps_it():
    model = model_of()
    optimizer, _ = made(by_hand(model, BLOCKS))
    saved = optimizer.state_dict()
    for group in saved["param_groups"]:
        group["matrix"] = not group["matrix"]
    optimizer.load_state_dict(saved)
    assert stepped(model, optimizer) == oracle("dlion-muon")
    optimizer, _ = made(by_hand(model_of(), BLOCKS))
    optimizer.param_groups[1]["matrix"] = True
    set_gradients([p for group in optimizer.param_groups for p in group["params"]], 0)
    with pytest.raises(pride.InvalidArgument, match="group 1: matrix is True now and was False"):
        optimizer.step()
    optimizer.close()


def test_a_group_that_is_added_decides():
    model = model_of()
    first, second = by_hand(model, BLOCKS)
    optimizer, _ = made([first])
    with pytest.raises(pride.InvalidArgument, match="tensors without a name: group 1 parameter 0"):
        optimizer.add_param_group({"params": second["params"]})
    optimizer.add_param_group(second)
    assert stepped(model, optimizer) == oracle("dlion-muon")


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_a_copy_has_the_same_matrices(how):
    model = model_of()
    optimizer, _ = made(by_hand(model, BLOCKS))
    for group in optimizer.param_groups:  # as if types of modules had decided
        del group["matrix"]
    copied, other = copy.deepcopy((model, optimizer)) if how == "deepcopy" else pickle.loads(
        pickle.dumps((model, optimizer)))
    assert stepped(copied, other) == oracle("dlion-muon")
    optimizer.close()


def of_known_model(options=None):
    """On each rank: what was printed, and the bits of the step."""
    model = torch.nn.parallel.DistributedDataParallel(model_of("lm"))
    pride.local_gradients(model)
    optimizer, printed = made(model.parameters(), options=options)
    return printed, stepped(model, optimizer)


def test_a_known_model_needs_no_names(world):
    printed, bits = zip(*world(2).run(of_known_model))
    assert printed == ("pride: dlion-muon: matrices: blocks.*.multihead.weight (2), "
                       "blocks.*.proj.weight (2); no matrices: tok.weight, at.weight, lm.weight "
                       "and 9 of one dimension\n", "")
    assert list(bits) == world(2).run(oracle, "dlion-muon", "lm")
    printed = world(2).run(of_known_model, {"not_matrices": "none"})[0][0]  # words go before types
    assert "matrices: tok.weight, at.weight, blocks" in printed
    assert "no matrices: 9 of one dimension" in printed


def of_other_flags():
    rank = torch.distributed.get_rank()
    made([{"params": [("w", models.parameter(1, 4, 4))], "matrix": rank == 0}])


def test_ranks_agree_on_flags(world):
    errors = world(2).errors(of_other_flags)
    assert all("layouts of rank(s) 1 and of rank 0 differ" in str(error) for error in errors)
    assert "'w' of shape (4, 4), group 0, no matrix" in str(errors[1])


def test_a_split_names_matrices_beside_a_rest_that_has_no_such_name(capfd):
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out = nn.Linear(8, 12, bias=False), nn.Linear(4, 8, bias=False)
            self.lm_head = nn.Linear(8, 3, bias=False)

    split = {"qkv": [8, 2, 2]}
    pride.Optimizer(pride.muon_groups(Attention(), matrices=dict(options={"split": split}))).close()
    assert capfd.readouterr().err == ("pride: dlion-muon: matrices: out.weight; split: qkv.weight "
                                      "(3 blocks); adamw: lm_head.weight\n")
    with pytest.raises(pride.InvalidArgument, match="'lm_head=3' names no matrix of this method"):
        pride.Optimizer([{"params": [("qkv", models.parameter(1, 12, 8)),
                                    ("lm_head", models.parameter(2, 3, 8))]}],
                        method="dlion-muon", options={"split": "lm_head=3"})
