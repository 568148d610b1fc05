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


def changed(first, second):
    """The largest difference of two runs' parameters."""
    assert first.keys() == second.keys()
    return max(float((first[key].float() - second[key].float()).abs().max()) for key in first
               if "optim" not in str(key))


@pytest.mark.parametrize("name", WITH)
def test_the_run_is_that_of_the_plain_program_but_for_rounding(name, programs, whole, tmp_path):
    plain = program(tmp_path / "plain", name, 0)
    programs.run(plain)
    difference = changed(states(plain.parent / "out", FILES[name]), states(whole(name), FILES[name]))
    assert 0 < difference < 0.02  # of AdamW, 20 steps of up to 1e-3


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


def test_one_rank_has_nothing_to_exchange(programs, tmp_path):
    for name, change in WITH.items():
        changes = [change] + ([("devices=2", "devices=1")] if "lightning" in name else [])
        programs.run(program(tmp_path / name, name, changes=changes), ranks=1)


assert set(WITH) == set(PROGRAMS) - {"train_fsdp"} and _programs is not None
