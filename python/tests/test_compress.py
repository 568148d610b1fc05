# `compress`: the programs of docs/frameworks.md with their own optimizer, over quantized gradients.
# SPDX-License-Identifier: Apache-2.0
import pytest

from test_frameworks import (  # skips this module where that one is skipped
    LAST, LOGGED, PROGRAMS, _programs, equal, program, scalars, states)

WITH = {"train_trainer": ("Callback(trainer)", 'Callback(trainer, compress="int4")'),
        "train_lightning": ("Strategy()", 'Strategy(compress="int4")'),
        "train_accelerate": ("loader, scheduler)", 'loader, scheduler, compress="int4")')}
FILES = {name: [pattern for pattern in LAST[name] if "rank*" not in pattern] for name in WITH}


@pytest.fixture(name="whole", scope="module")
def _whole(programs, tmp_path_factory):
    """whole(name): the folder of the run that was not killed."""
    made = {}

    def run(name):
        if name not in made:
            file = program(tmp_path_factory.mktemp(name) / "whole", name, changes=[WITH[name]])
            programs.run(file)
            made[name] = file.parent / "out"
        return made[name]

    return run


# AdamW's steps have one size whatever the gradients are; SGD's follow them.
SGD = {"train_trainer": ("learning_rate=1e-3", 'optim="sgd", learning_rate={}'),
       "train_lightning": ("AdamW(self.parameters(), lr=1e-3", "SGD(self.parameters(), lr={}"),
       "train_accelerate": ("AdamW(model.parameters(), lr=1e-3", "SGD(model.parameters(), lr={}")}
SUM = """
trained = trainer.model if "trainer" in globals() else model
print("sum", sum(p.double().sum().item() for p in trained.parameters()))
"""


@pytest.mark.parametrize("name", WITH)
def test_the_run_is_that_of_the_plain_program_but_for_rounding(name, programs, tmp_path):
    made = {}
    for run, rate, compress in (("none", 0, False), ("plain", 0.1, False), ("int8", 0.1, True)):
        old, new = SGD[name]
        changes = [(old, new.format(rate))] + [(WITH[name][0], WITH[name][1].replace("int4", "int8"))
                                               ] * compress
        file = program(tmp_path / run, name, int(compress), changes=changes)
        file.write_text(file.read_text() + SUM)
        sums = [[line for line in output.splitlines() if line.startswith("sum")]
                for output in programs.run(file)]
        assert len(sums[0]) == 1 and sums[0] == sums[1]
        made[run] = states(file.parent / "out", FILES[name])

    def difference(first, second):
        return max(float((first[key].float() - second[key].float()).abs().max()) for key in first
                   if "optim" not in str(key))

    moved = difference(made["none"], made["plain"])
    assert moved > 0.01 and 0 < difference(made["plain"], made["int8"]) < 0.03 * moved


@pytest.mark.parametrize("name", WITH)
def test_killed_and_resumed_ends_as_if_it_had_not_been(name, programs, whole, tmp_path):
    file = program(tmp_path / "killed", name, changes=[WITH[name]])
    assert {status for status, _ in programs.results(file, die_in=13)} == {-9}
    programs.run(file, "--resume")
    equal(states(file.parent / "out", FILES[name]), states(whole(name), FILES[name]))
    assert not list(file.parent.glob("out/**/pride*"))  # nothing to save


@pytest.mark.parametrize("name", WITH)
def test_log_has_the_bytes(name, whole):
    found = {tag.split("train/")[-1]: values for tag, values in scalars(whole(name)).items()}
    assert sorted(step for step, _ in found["pride/bytes_sent"]) == LOGGED[name]
    sent, dense = (found[f"pride/{key}"][0][1] for key in ("bytes_sent", "fp32_bytes"))
    assert dense / 10 < sent < dense / 4
    assert "pride/vote_agreement" not in found


MISUSE = {
    "a word": ("train_trainer", [("Callback(trainer)", 'Callback(trainer, compress="int3")')],
               "compress='int3': must be one of bf16, int8, int4, int2"),
    "a rate of the method": ("train_lightning", [("Strategy()", 'Strategy(lr=1, compress="int4")')],
                             "keeps your optimizer: leave out lr"),
    "a method": ("train_accelerate", [("loader, scheduler)", "loader, scheduler, method='lion', "
                                       "optimizer=pride.Optimizer, compress='int4')")],
                 "keeps your optimizer: leave out optimizer, method"),
    "pride's optimizer": ("train_lightning", [
        WITH["train_lightning"], ("torch.optim.AdamW(self", "pride.DistributedLion(self")],
        "a DistributedLion of pride's, which exchanges by itself: leave compress out"),
}


@pytest.mark.parametrize("case", MISUSE)
def test_misuse_is_named(case, programs, tmp_path):
    name, changes, text = MISUSE[case]
    for status, output in programs.results(program(tmp_path / "misuse", name, changes=changes)):
        assert status == 1 and text in output, output


MODELS = """
import accelerate, torch, pride
from pride._comm_hooks import hook_of
accelerator = accelerate.Accelerator(cpu=True)
models = [torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()) for _ in range(3)]
alone = pride.accelerate.prepare(accelerator, models[0], compress="int4")
first, second = pride.accelerate.prepare(accelerator, *models[1:], compress="int8")
found = [hook_of(model) for model in (alone, first, second)]
assert [hook and hook.bits for hook in found] == ([4, 8, 8] if accelerator.num_processes > 1 else [None] * 3)
try:
    pride.accelerate.prepare(accelerator, first, compress="int4")
    assert accelerator.num_processes == 1
except pride.InvalidArgument as error:
    assert "compressed already, as 'int8'" in str(error), error
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_accelerates_models(programs, tmp_path, ranks):
    (tmp_path / "models.py").write_text(MODELS)
    programs.run(tmp_path / "models.py", ranks=ranks)


def test_one_rank_has_nothing_to_exchange(programs, tmp_path):
    for name, change in WITH.items():
        changes = [change] + ([("devices=2", "devices=1")] if "lightning" in name else [])
        programs.run(program(tmp_path / name, name, changes=changes), ranks=1)


assert set(WITH) == set(PROGRAMS) - {"train_fsdp"} and _programs is not None
