# lab/experiments/gpu: the tiny experiments, end to end on two cores.
# SPDX-License-Identifier: Apache-2.0
#
# Oracles: the vectors of GPT-2's tokens that others published, and a run by ranks of their own.
import json
import os
import pathlib
import shutil
import sys

import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = pathlib.Path(os.environ.get("PRIDE_DATA") or ROOT / ".." / "shared" / "data")
sys.path.insert(0, str(ROOT / "lab" / "experiments" / "gpu"))

import charts  # noqa: E402  pylint: disable=wrong-import-position
import make_shards  # noqa: E402  pylint: disable=wrong-import-position
import plans  # noqa: E402  pylint: disable=wrong-import-position
import table  # noqa: E402  pylint: disable=wrong-import-position

pytestmark = pytest.mark.skipif(int(torch.__version__.split(".")[0]) < 2,
                                reason=f"torch {torch.__version__}: the experiments need 2.x")
CPU = torch.device("cpu")


def images():
    for folder in (DATA, DATA / "cifar10"):
        if any(folder.glob("data_batch_*.bin*")) and any(folder.glob("test_batch.bin*")):
            return folder
    pytest.skip(f"no CIFAR-10 in {DATA}: set PRIDE_DATA to the folder of its binary files")


def vocabulary():
    for folder in (DATA / "gpt2_bpe", DATA.parent / "gpt2_bpe"):
        if (folder / "encoder.json").exists():
            return folder
    pytest.skip(f"no gpt2_bpe with GPT-2's encoder.json and vocab.bpe in {DATA} or beside it")


def lines(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def make_twice(name, only, folder, out, capsys):
    """The lines of a tiny experiment, which a second call leaves as they are."""
    import run

    arguments = [name, "--tiny", "--device", "cpu", "--data", str(folder), "--out", str(out), "--only", only]
    threads = torch.get_num_threads()
    try:
        assert run.main(arguments) == 0
        first = (out / f"{name}.jsonl").read_text()
        capsys.readouterr()
        assert run.main(arguments) == 0
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision("highest")
    assert (out / f"{name}.jsonl").read_text() == first
    assert capsys.readouterr().out == ""
    return lines(out / f"{name}.jsonl")


def check(row, out):
    curve = lines(out / row["curve"])
    assert [point["step"] for point in curve] == list(range(row["every"], row["steps"] + 1, row["every"]))
    assert curve[-1]["loss"] == row["loss"] > 0 and curve[-1]["bytes_sent"] == row["bytes_sent"] > 0
    each = row["batch"] * (1 if row["init"] else row["context"] or 1)
    assert row["seen"] == row["steps"] * row["workers"] * each
    assert row["ms_per_step"] > 0 and len(row["param_hash"]) == 16


def test_tiny_cifar(tmp_path, capsys):
    rows = make_twice("cifar-small", "cifar-small-[adt]*-n2-*", images(), tmp_path, capsys)
    assert {row["label"] for row in rows} >= {"adamw", "dlion-vote", "dlion-muon"}
    for row in rows:
        check(row, tmp_path)
        assert 0 <= row["accuracy"] <= 1
        bits = row["bits_per_parameter_and_step"]
        assert 32 <= bits < 33 if row["label"] == "adamw" else bits < 4
    assert "| `dlion-vote` |" in "\n".join(table.table(table.groups(rows)))
    check_charts(rows, tmp_path)


def check_charts(rows, out):
    charts.main([str(out / "charts"), str(out / "cifar-small.jsonl")])
    made = {file.stem: json.loads(file.read_text()) for file in (out / "charts").glob("*.json")}
    names = [f"cifar-small-n2-tiny-{x}" for x in ("images", "bits", "time-100m", "time-1g", "time-10g")]
    assert sorted(made) == sorted(names)
    for row in rows:
        seen, bits, slow, _, fast = ({s["name"]: s for s in made[name]["series"]}[row["label"]] for name in names)
        assert seen["x"][-1] == row["seen"] and seen["y"][-1] == row["loss"]
        assert bits["x"][-1] == 8 * row["bytes_sent"] / row["parameters"]
        # the compute is the same: the difference is that of the bytes
        assert slow["x"][-1] - fast["x"][-1] == pytest.approx(8 * row["bytes_sent"] * (1e-8 - 1e-10))


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    out = tmp_path_factory.mktemp("data") / "shards"
    make_shards.main(["--out", str(out), "--vocab", str(vocabulary()), "--val-fraction", "0.2",
                      str(ROOT / "docs")])
    return out


def test_tiny_lm(tmp_path, capsys, shards):
    rows = make_twice("lm-30m", "lm-30m-[dm]*-n2-*", shards, tmp_path, capsys)
    assert {row["label"] for row in rows} >= {"dlion-vote", "muloco-h30"}
    for row in rows:
        check(row, tmp_path)
        assert row["unit"] == "tokens" and abs(row["loss"] - 10.8) < 0.5  # of 50,257 tokens at first


def test_tiny_finetune(tmp_path, capsys, shards):
    import training

    if not any((DATA / "fewshot").glob("*.jsonl")):
        pytest.skip(f"no questions in {DATA}/fewshot")
    data = tmp_path / "data"
    data.mkdir()
    for name, folder in (("fewshot", DATA / "fewshot"), ("gpt2_bpe", vocabulary()), ("shards", shards)):
        (data / name).symlink_to(folder)
    base, = make_twice("base", "*", data, tmp_path, capsys)
    rows = make_twice("finetune", "finetune-dlion-vote-*", data, tmp_path, capsys)
    assert [(row["label"], row["lora"]) for row in rows] == [("dlion-vote-whole", 0), ("dlion-vote-lora", 4)]
    for row in rows:
        check(row, tmp_path)
        # LoRA's products begin with zeros, so both begin with the base
        assert row["unit"] == "questions" and row["before"] == rows[0]["before"]
        assert row["loss"] != row["before"]["loss"]
    kept = torch.load(tmp_path / "models" / "base.pt", weights_only=True)
    assert kept["run"] == base["run"]
    begun = training.start(None, plans.runs_of("finetune", True)[0], CPU, tmp_path / "models").state_dict()
    assert all(torch.equal(begun[name], value) for name, value in kept["weights"].items())
    assert rows[1]["parameters"] == 4 * (32 * (4 + 2 + 5 + 5)) < rows[0]["parameters"] == base["parameters"]


def test_a_base_that_is_missing_is_named(tmp_path, capsys):
    import run

    arguments = ["finetune", "--tiny", "--device", "cpu", "--data", str(DATA), "--out", str(tmp_path / "out")]
    vocabulary()
    assert run.main(arguments) == 2
    torch.set_float32_matmul_precision("highest")
    assert "first make the run of the experiment base" in capsys.readouterr().err


def test_an_answer_weighs_one_and_long_prompts_lose_their_left():
    import questions

    tokens, weights = questions.row_of([1, 2, 3], [7, 8], 6)
    assert tokens == [1, 2, 3, 7, 8, questions.END_OF_TEXT, questions.END_OF_TEXT]
    assert weights == [0, 0, 0.5, 0.5, 0, 0]  # of the tokens from the second on
    assert questions.row_of([1, 2, 3], [7, 8], 3) == ([2, 3, 7, 8], [0, 0.5, 0.5])


def test_tokens_are_those_published():
    encoder = make_shards.Encoder(vocabulary())
    with open(vocabulary() / "vectors_published.jsonl", encoding="utf-8", newline="\n") as file:
        for row in map(json.loads, file):
            assert list(encoder.encode(row["text"])) == row["ids"], row["text"]


def tiny_run(**changes):
    run = next(r for r in plans.runs_of("cifar-small", True) if r.label == "dlion-vote")
    for name, value in changes.items():
        setattr(run, name, value)
    return run


def values_of(model):
    return [p.detach().clone() for p in model.parameters()]


def by_rank(run, folder):
    """On each rank: the worker of that number."""
    import images as task_images
    import models
    import training

    task = task_images.Images(run, folder, CPU, {})
    model = training.start(task, run, CPU)
    task.begin([models.own_rank()])
    gradient, optimizer = training.Gradient(model, run.how, None), training.make_optimizer(model, run)
    for step in range(run.steps):
        for group in optimizer.param_groups:
            group["lr"] = training.rate(run, step)
        _, grads = gradient(task.batches(step)[0])
        for p, grad in zip(gradient.parameters, grads):
            p.grad = grad[0]
        optimizer.step()
    made = f"{optimizer.check_replicas():016x}", optimizer.traffic()["bytes_sent"]
    optimizer.close()
    return made


def by_workers(run, folder):
    import images as task_images
    import training

    return training.train(task_images.Images(run, folder, CPU, {}), run, CPU)[0]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_virtual_workers_have_the_bits_of_ranks(world, dtype):
    run = tiny_run(dtype=dtype, at_once=1)
    mine = by_workers(run, images())
    for theirs in world(run.workers).run(by_rank, run, images()):
        assert (mine["param_hash"], mine["bytes_sent"]) == theirs


def test_joined_workers_are_those_of_the_method():
    # the sums are float32 in both, in the same order; only the division differs
    joined, apart = (by_workers(tiny_run(method="adamw", options={}, betas=(0.9, 0.999), joined=j,
                                         dtype="float32"), images()) for j in (True, False))
    assert abs(joined["loss"] - apart["loss"]) < 1e-4
    # what is counted has the frames' heads, 2.5 % of so small a model
    assert joined["bytes_sent"] == pytest.approx(apart["bytes_sent"], rel=0.03)
    assert (joined["bytes_are"], apart["bytes_are"]) == ("computed", "counted")


@pytest.mark.parametrize("name", list(plans.EXPERIMENTS))
def test_runs_are_planned_for_five_minutes(name):
    runs = plans.runs_of(name)
    assert len({run.name for run in runs}) == len(runs)
    assert max(run.minutes for run in runs) <= 5


def test_workers_at_once_train_as_one_after_the_other():
    # the same sums in another order
    apart, together = (by_workers(tiny_run(method="sgdm", lr=0.1, options={}, betas=None, at_once=n,
                                           dtype="float32"), images()) for n in (1, 2))
    assert (apart["workers_at_once"], together["workers_at_once"]) == (1, 2)
    assert abs(apart["loss"] - together["loss"]) < 1e-4


def test_a_pack_has_all_that_gpu_sh_runs(tmp_path, monkeypatch, capsys):
    import tarfile

    import pack

    build, shards = tmp_path / "build", tmp_path / "shards"
    shards.mkdir()
    (shards / "train_000.bin").write_bytes(bytes(8))
    monkeypatch.setenv("PRIDE_BUILD", str(build))
    with pytest.raises(SystemExit, match="build the preset gpu"):
        pack.main([str(tmp_path / "none.tar.xz")])
    for name in ("src/c/libpride.so", *pack.PROGRAMS):
        (build / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(sys.executable, build / name)  # ldd reads it
    with pytest.raises(SystemExit, match=f"no .* in {tmp_path}"):
        pack.main([str(tmp_path / "none.tar.xz"), str(tmp_path)])
    pack.main([str(tmp_path / "gpu.tar.xz"), str(shards)])
    with tarfile.open(tmp_path / "gpu.tar.xz") as tar:
        names = {name.removeprefix("pride-gpu/") for name in tar.getnames()}
    assert names >= {"commit", "scripts/gpu.sh", "python/pride/optimizer.py", "python/tests/test_cuda.py",
                     "python/benchmarks/gpu_step.py", "lab/experiments/gpu/run.py", "lib/libpride.so",
                     "bin/cuda_device_test", "bin/pride", "data/shards/train_000.bin"}
    assert f"{len(names)} files" in capsys.readouterr().out
