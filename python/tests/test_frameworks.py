# The objects for frameworks: the programs of docs/frameworks.md as they stand and with their diffs,
# killed and resumed. The oracle of a resumed run is the run that was not killed.
# SPDX-License-Identifier: Apache-2.0
import glob
import importlib.util
import os
import pathlib
import re
import shutil

import pytest
import torch

import pride
from models import NEW_TORCH

NEEDED = ("transformers", "accelerate", "lightning", "peft", "tensorboard")
missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
if not NEW_TORCH or missing:
    pytest.skip(f"frameworks: torch {torch.__version__}, not installed: {missing or 'none'}; the "
                "stage of the newest torch runs these", allow_module_level=True)

from programs import Programs  # pylint: disable=wrong-import-position

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "frameworks.md"


def blocks():
    """{name of a program: (its text, the diffs behind it)}"""
    made, name = {}, None
    for kind, text in re.findall(r"^```(python|diff)\n(.*?)^```", PAGE.read_text(), re.M | re.S):
        if kind == "python":
            name = re.match(r"# (\w+)\.py", text).group(1)
            made[name] = text, []
        else:
            made[name][1].append(text)
    return made


def patched(text, diff):
    for hunk in diff.split("...\n"):
        lines = hunk.splitlines(keepends=True)
        old = "".join(line[1:] for line in lines if line[0] in " -")
        new = "".join(line[1:] for line in lines if line[0] in " +")
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


PROGRAMS = blocks()


def program(folder, name, diffs=1, changes=()):
    """A file with a program of the page, its first diffs and further changes."""
    text, all_diffs = PROGRAMS[name]
    for diff in all_diffs[:diffs]:
        text = patched(text, diff)
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    folder.mkdir(parents=True)
    file = folder / f"{name}.py"
    file.write_text(text)
    return file


@pytest.fixture(name="programs", scope="module")
def _programs():
    made = Programs("torch._dynamo", "transformers.trainer", "lightning.pytorch", "accelerate",
                    "peft", "torch.utils.tensorboard", "pride")
    yield made
    made.close()


@pytest.fixture(name="whole", scope="module")
def _whole(programs, tmp_path_factory):
    """whole(name): the folder of the run that was not killed."""
    made = {}

    def run(name):
        if name not in made:
            file = program(tmp_path_factory.mktemp(name) / "whole", name)
            programs.run(file, ranks=RANKS.get(name, 2))
            made[name] = file.parent / "out"
        return made[name]

    return run


def tensors(value, path=""):
    """{path: tensor} of all tensors inside."""
    if isinstance(value, torch.Tensor):
        return {path: value}
    entries = (value.items() if isinstance(value, dict) else enumerate(value)
               if isinstance(value, (list, tuple)) else ())
    return {k: t for key, v in entries for k, t in tensors(v, f"{path}/{key}").items()}


def states(folder, patterns):
    """All tensors of the files, by file and path."""
    from safetensors.torch import load_file
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    made = {}
    for file in sorted(f for pattern in patterns for f in glob.glob(str(folder / pattern))):
        if os.path.isdir(file):
            dcp_to_torch_save(file, f"{file}.pt")
            file = f"{file}.pt"
        loaded = load_file(file) if file.endswith(".safetensors") else torch.load(
            file, weights_only=False)
        made.update({(os.path.relpath(file, folder), k): t for k, t in tensors(loaded).items()})
    return made


def equal(a, b):
    assert a and a.keys() == b.keys()
    different = [key for key in a if not torch.equal(a[key], b[key])]
    assert not different


LAST = {"train_trainer": ["final/model.safetensors", "checkpoint-20/pride.rank*.pt"],
        "train_lightning": ["epoch=3-step=20.ckpt"],
        "train_accelerate": ["epoch3/model.safetensors", "epoch3/pride0.rank*.pt"],
        "train_fsdp": ["step20"]}
RANKS = {"train_fsdp": 4}


@pytest.mark.parametrize("name", LAST)
def test_program_runs_as_it_stands_on_the_page(name, programs, tmp_path):
    programs.run(program(tmp_path / "adamw", name, 0), ranks=RANKS.get(name, 2))


@pytest.mark.parametrize("name", LAST)
def test_killed_and_resumed_ends_as_if_it_had_not_been(name, programs, whole, tmp_path):
    file, ranks = program(tmp_path / "killed", name), RANKS.get(name, 2)
    killed = programs.results(file, die_in=13, ranks=ranks)
    assert {status for status, _ in killed} == {-9}, killed
    out = file.parent / "out"
    assert not states(out, LAST[name]), "it had ended before it was killed"
    outputs = programs.run(file, "--resume", ranks=ranks)
    assert not any("loads the momentum of rank" in output for output in outputs)
    expected = states(whole(name), LAST[name])
    momenta = [[t for (_, key), t in expected.items() if key.endswith(f"/m.rank{r}")]
               for r in (0, 1)]
    assert len(momenta[0]) >= 4 and not any(map(torch.equal, *momenta))
    equal(states(out, LAST[name]), expected)


def scalars(folder):
    """{tag: [(step, value), ...]} of TensorBoard's files below a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    made = {}
    for file in glob.glob(str(folder / "**" / "*tfevents*"), recursive=True):
        events = EventAccumulator(file)
        events.Reload()
        for tag in events.Tags()["scalars"]:
            made.setdefault(tag, []).extend((e.step, e.value) for e in events.Scalars(tag))
    return made


# Steps with a value of the optimizer, by program.
LOGGED = {"train_trainer": [5, 10, 15, 20], "train_lightning": [4, 9, 14, 19],
          "train_accelerate": [0, 1, 2, 3]}


@pytest.mark.parametrize("name", LOGGED)
def test_log_has_bytes_and_agreement(name, whole):
    found = {tag.split("train/")[-1]: values for tag, values in scalars(whole(name)).items()}
    assert sorted(step for step, _ in found["pride/bytes_sent"]) == LOGGED[name]
    sent, dense = (found[f"pride/{key}"][0][1] for key in ("bytes_sent", "fp32_bytes"))
    assert 0 < sent < dense / 10
    for _, share in found["pride/vote_agreement"]:
        assert 0.6 < share < 0.9  # of two ranks; a tie goes to one of them


def test_trainer_logs_to_wandb(programs, tmp_path):
    if importlib.util.find_spec("wandb") is None:
        pytest.skip("wandb is not installed")
    programs.run(program(tmp_path / "wandb", "train_trainer", changes=[
        ('report_to="tensorboard"', 'report_to="wandb"'), ("max_steps=20", "max_steps=5")]))
    [file] = glob.glob(str(tmp_path / "wandb" / "wandb" / "offline-run-*" / "*.wandb"))
    assert b"pride/vote_agreement" in pathlib.Path(file).read_bytes()


PROBE = """
class Probe(transformers.TrainerCallback):
    def on_train_begin(self, *_, optimizer, **__):
        torch.save(optimizer.state_dict()["state"], "state.pt")


trainer.add_callback(Probe)
trainer.train("""


def test_trainer_goes_on_with_another_number_of_ranks(programs, whole, tmp_path):
    saved = whole("train_trainer") / "checkpoint-10"
    file = program(tmp_path / "one", "train_trainer", changes=[
        ("Callback(trainer)", 'Callback(trainer, local="average")'),
        ('"--resume" in sys.argv', repr(str(saved))), ("trainer.train(", PROBE)])
    programs.run(file, ranks=1)
    states_of = [torch.load(saved / f"pride.rank{r}of2.pt")["state"] for r in (0, 1)]
    for i, entry in torch.load(file.parent / "state.pt").items():
        mean = (states_of[0][i]["m.rank0"] + states_of[1][i]["m.rank1"]) / 2
        assert torch.equal(entry["m.rank0"], mean), i


def test_a_checkpoint_without_the_file_of_a_rank_is_refused(programs, whole, tmp_path):
    copy = tmp_path / "out" / "checkpoint-10"
    shutil.copytree(whole("train_trainer") / "checkpoint-10", copy)
    (copy / "pride.rank1of2.pt").unlink()
    file = program(tmp_path / "program", "train_trainer", changes=[('"out"', '"../out"')])
    for status, output in programs.results(file, "--resume"):
        assert status == 1
        assert "out/checkpoint-10 lacks pride.rank1of2.pt" in output


def test_lora_trains_and_saves_the_adapters_alone(programs, tmp_path):
    from safetensors.torch import load_file

    file = program(tmp_path / "lora", "train_trainer", 2)
    programs.run(file)
    folder = file.parent / "out" / "final"
    saved = load_file(folder / "adapter_model.safetensors")
    assert len(saved) == 4 and all("lora_" in key for key in saved)
    assert any(bool(t.any()) for key, t in saved.items() if "lora_B" in key), "B begins as zeros"
    assert not (folder / "model.safetensors").exists()
    state = torch.load(file.parent / "out" / "checkpoint-20" / "pride.rank1of2.pt")
    assert sorted(tuple(entry["m.rank1"].shape) for entry in state["state"].values()) == sorted(
        tuple(t.shape) for t in saved.values())


def test_a_compiled_model_takes_the_steps_of_a_plain_one(programs, whole, tmp_path):
    file = program(tmp_path / "compiled", "train_trainer", changes=[
        ("use_cpu=True", 'use_cpu=True, torch_compile=True, torch_compile_backend="eager"')])
    programs.run(file)
    equal(states(file.parent / "out", LAST["train_trainer"]),
          states(whole("train_trainer"), LAST["train_trainer"]))


OVERFLOW = """
import lightning
import torch
from lightning.pytorch.plugins import MixedPrecision
import pride


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch, index):
        loss = self.layer(batch).float().square().mean()
        if index == 1 and self.global_rank == 1:
            loss = loss * float("inf")
        return loss

    def on_train_batch_end(self, *_):
        optimizer = self.optimizers().optimizer
        print("scale", scaler.get_scale(), optimizer.traffic()["skipped"],
              f"{optimizer.check_replicas():016x}")

    def configure_optimizers(self):
        return pride.DistributedLion(self.named_parameters(), lr=1e-2)


lightning.seed_everything(0)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
trainer = lightning.Trainer(
    max_epochs=1, accelerator="cpu", devices=2, strategy=pride.lightning.Strategy(), logger=False,
    enable_checkpointing=False, plugins=[MixedPrecision("16-mixed", "cpu", scaler)])
trainer.fit(Net(), torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=8))
"""


def test_overflow_on_one_rank_skips_the_step_and_halves_the_scale_on_all(programs, tmp_path):
    (tmp_path / "overflow.py").write_text(OVERFLOW)
    lines = [[line.split()[1:] for line in output.splitlines() if line.startswith("scale")]
             for output in programs.run(tmp_path / "overflow.py")]
    assert lines[0] == lines[1]
    assert [line[:2] for line in lines[0]] == [["1024.0", "0"]] + 3 * [["512.0", "1"]]
    assert lines[0][0][2] == lines[0][1][2] != lines[0][2][2]


MISUSE = {
    "an optimizer of pride's and a rate": (
        "train_lightning", [("torch.optim.AdamW(self", "pride.DistributedLion(self"),
                            ("Strategy()", "Strategy(lr=1e-4)")],
        "the optimizer is a DistributedLion already"),
    "a parameter that no optimizer has": (
        "train_lightning", [("self.parameters(), lr", "list(self.parameters())[1:], lr")],
        "'layers.0.weight': requires a gradient and is in no group of the AdamW"),
    "a rate that follows from no other": (
        "train_accelerate", [("torch.optim.AdamW(", "torch.optim.SGD(")],
        "no rate of dlion-vote follows from that of a SGD"),
    "another rule of the trainer": (
        "train_trainer", [("use_cpu=True", 'use_cpu=True, optim="adafactor"')],
        "no rate follows from learning_rate"),
}


@pytest.mark.parametrize("case", MISUSE)
def test_misuse_is_named(case, programs, tmp_path):
    name, changes, text = MISUSE[case]
    for status, output in programs.results(program(tmp_path / "misuse", name, changes=changes)):
        assert status == 1 and text in output


@pytest.mark.parametrize("package, version", [
    ("transformers", "5.3.1"), ("transformers", "6.0.0"), ("lightning", "2.5.9"),
    ("accelerate", "2.0.0rc1")])
def test_unknown_version_is_refused(package, version, monkeypatch):
    from pride import _frameworks

    ranges = {"transformers": ((5, 24), 5), "lightning": ((2, 6), 2), "accelerate": ((1, 15), 1)}
    _frameworks.require(package, *ranges[package])
    monkeypatch.setattr(_frameworks.importlib.metadata, "version", lambda name: version)
    with pytest.raises(pride.Error, match=f"{package} {re.escape(version)} is installed"):
        _frameworks.require(package, *ranges[package])


FIRST = 'torch.save({}.state_dict(), "first%d.pt" % __import__("os").getpid())\n'
LOCAL = 'pride.Optimizer, method="local-vote", options={"h": 64}'
# Programs with local steps, none of which has an exchange: the common parameters stay the first.
LOCAL_STEPS = {
    "train_trainer": ([
        ("Callback(trainer)", f"Callback(trainer, optimizer={LOCAL})"),
        ("trainer = ", FIRST.format("model") + "trainer = "),
        ("train_dataset=data)", "train_dataset=data, eval_dataset=data[:16])"),
        ("save_steps=5", 'save_steps=5, eval_strategy="steps", eval_steps=5, '
         "load_best_model_at_end=True"),
        ('save_model("out/final")', 'save_model("out/final")\nlosses = {entry["eval_loss"] for entry '
         'in trainer.state.log_history if "eval_loss" in entry}\nassert len(losses) == 1, losses')],
        ["checkpoint-5/model.safetensors", "final/model.safetensors"]),
    "train_lightning": ([
        ("Strategy()", f"Strategy(optimizer=__import__('functools').partial({LOCAL}))"),
        ("trainer.fit(Net()", "net = Net()\n" + FIRST.format("net") + "trainer.fit(net"),
        ('[ModelCheckpoint("out", save_top_k=-1)]', '[ModelCheckpoint("out", save_top_k=-1), '
         "lightning.pytorch.callbacks.WeightAveraging()]")], ["epoch=0*.ckpt", "epoch=3*.ckpt"]),
    "train_accelerate": ([
        ("loader, scheduler)", f"loader, scheduler, optimizer={LOCAL})"),
        ("        optimizer.step()\n", "        accelerator.save_state('out/before')\n"
         "        optimizer.step()\n"), ("x = torch.randn", FIRST.format("model") + "x = torch.randn")],
        ["epoch0/model.safetensors", "epoch3/model.safetensors", "before/model.safetensors"]),
}


@pytest.mark.parametrize("name", LOCAL_STEPS)
def test_what_is_saved_between_local_steps_is_the_common_model(name, programs, tmp_path):
    changes, files = LOCAL_STEPS[name]
    file = program(tmp_path / "local", name, changes=changes)
    programs.run(file)
    first = [torch.load(each) for each in glob.glob(str(file.parent / "first*.pt"))]
    assert len(first) == 2
    for pattern in files:
        saved = [(key, t) for key, t in states(file.parent / "out", [pattern]).items()
                 if "/optimizer_states" not in key[1] and "/loops" not in key[1]]
        found = 0
        for (_, key), values in saved:
            expected = first[0].get(key.split("/")[-1])
            if expected is not None and "averag" not in key:
                assert torch.equal(values, expected), key
                found += 1
        assert found >= 4, [key for key, _ in saved]
