# lab/experiments/gpu/board.py: its model, shards, rates, and runs at toy size.
# SPDX-License-Identifier: Apache-2.0
#
# Oracles: torch's AdamW on the sum of all micro-batches' gradients; signs of gradients, counted here; the
# board's numbers of parameters.
import json
import pathlib
import struct
import sys

import pytest
import torch
from torch.nn import functional as F

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "lab" / "experiments" / "gpu"))

pytestmark = pytest.mark.skipif(not hasattr(F, "rms_norm"),
                                reason=f"torch {torch.__version__}: board.py needs 2.4")
STEPS, CPU = 6, torch.device("cpu")


def run(out, *arguments):
    """(the run's line, lines of steps) of a toy."""
    import board

    try:
        board.main(["--toy", "--device", "cpu", "--steps", str(STEPS), "--out", str(out), *arguments])
    finally:
        torch.set_float32_matmul_precision("highest")
    first, *points = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    return first, points


@pytest.fixture(scope="module", name="runs")
def fixture_runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("board")
    kinds = {method: ["--method", method] for method in ("dlion-muon", "dlion-vote", "adamw", "muon")}
    kinds["votes"] = ["--method", "dlion-vote", "--rest", "same"]
    kinds["cautious"] = ["--method", "dlion-muon", "--cautious", "--momentum", "0.9", "--weight-decay", "0.5"]
    return {name: run(folder / name, *more) for name, more in kinds.items()}


def test_a_run_begins_at_the_log_of_the_vocabulary_and_learns(runs):
    for name, (first, points) in runs.items():
        assert first["method"] in (name, "dlion-muon" if name == "cautious" else "dlion-vote") and first["workers"] == 8, name
        assert [point["step"] for point in points] == [0, STEPS], name
        assert points[0]["val_loss"] == pytest.approx(torch.tensor(128.0).log().item(), abs=1e-6), name
        assert points[-1]["val_loss"] < points[0]["val_loss"] - 0.01, (name, points[-1])
        assert points[-1]["loss"] > 0 and points[-1]["seconds"] > 0


def test_bytes_are_those_of_eight_ranks(runs):
    sent = {name: points[-1]["bytes_sent"] / STEPS / first["parameters"]
            for name, (first, points) in runs.items()}
    ring = 2 * 7 / 8 * 4  # bytes a parameter of a float32 mean
    assert sent["adamw"] == sent["muon"] == pytest.approx(ring, rel=0.01)
    assert sent["votes"] == pytest.approx(ring / 32, rel=0.15)  # frames' headers
    assert sent["votes"] < sent["dlion-muon"] < sent["adamw"]
    assert sent["dlion-muon"] == sent["dlion-vote"] == sent["cautious"]


def float32(*shape):
    """The model in float32, and not at 0, where most gradients are 0."""
    import board_net

    model = board_net.BoardGPT(*shape).float()
    for p in model.parameters():
        if not p.any():
            torch.nn.init.normal_(p, std=0.1)
    return model


def after(folder, steps, *arguments):
    """(the Training, its parameters by name before each of these steps and after them)."""
    import board

    args = board.arguments(["--toy", "--shards", str(folder), "--out", str(folder), *arguments])
    args.vocabulary = board.TOY_TOKENS
    made = board.Training(args, board.rule_of(args), board.TOY, CPU)
    values = []
    for step in range(steps + 1):
        values.append({name: p.detach().clone() for name, p in made.model.named_parameters()})
        if step < steps:
            made.step(board.share(step, STEPS, made.rule.warmup))
    made.optimizer.close()
    return made, values


def gradients(values, window):
    """The gradients of each micro-batch by name, of a model with these values."""
    import board

    size = board.TOY
    model = float32(board.TOY_TOKENS, size.layers, size.width, size.head, size.context)
    model.load_state_dict(values)
    inputs, targets = board.sequences(window, size.context, CPU)
    for part in zip(inputs.split(size.sequences), targets.split(size.sequences)):
        model.zero_grad()
        model(*part).backward()
        yield {name: p.grad for name, p in model.named_parameters()}


def test_adamw_steps_as_torch_on_the_summed_gradients(tmp_path, monkeypatch):
    import board

    monkeypatch.setattr(board, "BoardGPT", float32)
    board.synthetic(tmp_path, board.TOY, STEPS, 0)
    made, values = after(tmp_path, 3, "--method", "adamw")
    plain = {name: torch.nn.Parameter(value) for name, value in values[0].items()}
    names = {id(p): name for name, p in made.model.named_parameters()}
    optimizer = torch.optim.AdamW([
        dict(params=[plain[names[id(p)]] for p in group["params"]], lr=lr,
             **{key: group[key] for key in ("betas", "eps", "weight_decay")})
        for group, lr in zip(made.optimizer.param_groups, made.first_rates)])
    for step, window in zip(range(3), board.batches(tmp_path, "train", board.TOY.batch)):
        parts = list(gradients({name: p.detach() for name, p in plain.items()}, window))
        for name, p in plain.items():
            p.grad = sum(part[name] for part in parts)
        for group, lr in zip(optimizer.param_groups, made.first_rates):
            group["lr"] = lr * board.share(step, STEPS, 100)
        optimizer.step()
    for name, p in plain.items():
        assert torch.allclose(values[-1][name], p, atol=1e-5), name


def test_the_first_step_of_a_vote_is_the_majority_of_the_micro_batches(tmp_path, monkeypatch):
    import board

    monkeypatch.setattr(board, "BoardGPT", float32)
    board.synthetic(tmp_path, board.TOY, STEPS, 0)
    made, (before, done) = after(tmp_path, 1, "--method", "dlion-vote", "--rest", "same",
                                 "--rest-scale", "0.01")
    window = next(board.batches(tmp_path, "train", board.TOY.batch))
    parts = list(gradients(before, window))
    names = {id(p): name for name, p in made.model.named_parameters()}
    decided = 0
    for group, lr in zip(made.optimizer.param_groups, made.first_rates):
        for name in (names[id(p)] for p in group["params"]):
            votes = torch.stack([part[name].sign() for part in parts])
            clear = (votes != 0).all(0) & (votes.sum(0) != 0)  # a hash decides zeros and ties
            moved = before[name] * (1 - lr * group["weight_decay"]) - lr * votes.sum(0).sign()
            assert torch.allclose(done[name][clear], moved[clear], atol=1e-6), name
            decided += clear.sum().item()
    assert decided > 0.5 * made.n, decided


def test_the_model_has_the_boards_parameters_and_initial_values():
    import board

    size = board.BOARD
    with torch.device("meta"):
        model = board.BoardGPT(50304, size.layers, size.width, size.head, 2)
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    matrices = sum(n for name, n in sizes.items() if name.startswith("blocks.") and n > 4 * size.width)
    assert (sum(sizes.values()), matrices) == (162_354_816, 84_934_656)
    assert size.batch == 524_288 == 8 * 65_536 and size.held_out * size.batch == 10_485_760
    for name, p in board.BoardGPT(512, 1, 64, 32, 2).named_parameters():
        spread = 1.0 if "embed" in name else (3 * p.shape[-1]) ** -0.5
        if p.dim() == 1 or "proj" in name:
            assert (p == (1 if "gains" in name else 0)).all(), name
        else:
            assert p.float().std().item() == pytest.approx(spread, rel=0.05), name


def test_rates_move_each_matrix_as_the_boards_muon():
    import board

    with torch.device("meta"):
        model = board.BoardGPT(512, 1, 64, 32, 2)
    muon, votes = (board.groups_of(model, board.RULES[name], None) for name in ("muon", "dlion-muon"))
    for group in [*muon[:-3], *votes[:-3]]:
        assert group["lr"] * group["weight_decay"] == pytest.approx(0.025 * 0.05)
    signs = {name: group["lr"] for group in votes for name, _ in group["params"]}
    for group in muon[:-3]:  # an orthogonal matrix has coordinates of longer side ** -0.5
        for name, p in group["params"]:
            assert signs[name] == pytest.approx(group["lr"] * max(p.shape) ** -0.5), name
    for groups in (muon, votes):
        assert [group["lr"] for group in groups[-3:]] == [0.7, 0.004, 0.015]
        assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))
    same = board.groups_of(model, board.RULES["dlion-vote"], 0.5)
    assert [group["lr"] for group in same[-3:]] == [0.35, 0.002, 0.0075]
    assert [group["weight_decay"] for group in same[-3:]] == [0.002] * 3
    assert not any("method" in group for group in same)


def test_rates_are_flat_and_fall_to_zero():
    import board

    made = [board.share(step, 1000, 0) for step in (0, 299, 300, 650, 999)]
    assert made == pytest.approx([1, 1, 1, 0.5, 0.001 / 0.7])
    assert board.share(9, 1000, 100) == pytest.approx(0.1)


def shard(file, tokens, count=None, version=1):
    head = struct.pack("<3i", 20240520, version, len(tokens) if count is None else count)
    file.write_bytes(head.ljust(1024, b"\0") + struct.pack(f"<{len(tokens)}H", *tokens))


def test_shards_have_the_boards_header_or_none(tmp_path):
    import board
    from images import NoData

    shard(tmp_path / "a_train_1.bin", [*range(40000, 40009)])
    (tmp_path / "a_train_2.bin").write_bytes(struct.pack("<6H", *range(6)))
    windows = [board.sequences(w, 4, CPU) for w in board.batches(tmp_path, "train", 4)]
    assert [x.tolist()[0][0] for x, _ in windows] == [40000, 0]  # the first shard leaves 4 tokens over
    assert all((y == x + 1).all() for x, y in windows)
    for more in (dict(count=8), dict(version=2)):
        shard(tmp_path / "a_train_1.bin", [1, 2, 3], **more)
        with pytest.raises(NoData, match="a_train_1.bin: version"):
            next(board.batches(tmp_path, "train", 4))
    with pytest.raises(NoData, match=r"no \*val\*.bin"):
        next(board.batches(tmp_path, "val", 4))


def test_too_few_tokens_and_a_second_run_are_refused(tmp_path, capsys):
    for name, n in (("train", 515), ("val", 1026)):
        (tmp_path / f"{name}_000.bin").write_bytes(bytes(2 * n))
    with pytest.raises(SystemExit, match="no further batch of 512 tokens"):
        run(tmp_path / "out", "--method", "adamw", "--shards", str(tmp_path))
    with pytest.raises(SystemExit, match="has a run already"):
        run(tmp_path / "out")
    capsys.readouterr()
