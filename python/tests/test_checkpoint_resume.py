# A run that resumes from its checkpoint has the same bits.
# SPDX-License-Identifier: Apache-2.0
#
# Oracle: the undisturbed run.
import os
import signal
import warnings

import pytest
import torch
import torch.distributed as dist

import models
import pride
from checkpoints import BF16, METHODS, ending, loaded, make, saved, undisturbed
from pride import _library as library


def save_and_die(folder, method, dtype, consolidate):
    rank = dist.get_rank()
    model, optimizer = make(method, dtype)
    models.train(model, optimizer, 5)
    if consolidate:
        optimizer.consolidate_state_dict()
    if not consolidate or rank == 0:
        with open(f"{folder}/{rank}.part", "wb") as file:
            file.write(saved(model, optimizer))
        os.rename(f"{folder}/{rank}.part", f"{folder}/{rank}.pt")
    dist.barrier()  # killed in the middle of steps that no file has
    models.train(model, optimizer, 2, first=5)
    os.kill(os.getpid(), signal.SIGKILL)


def resumed(folder, method, dtype, consolidate, overlap, bucket_size):
    model, optimizer = make(method, dtype, seed=77, lr=3e-4, overlap=overlap,
                            bucket_size=bucket_size, broadcast_parameters=True)
    file = torch.load(f"{folder}/{0 if consolidate else dist.get_rank()}.pt")
    model.load_state_dict(file["model"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.load_state_dict(state_dict=file["optimizer"])
    assert optimizer.param_groups[0]["lr"] == 1e-2
    models.train(model, optimizer, 5, first=5)
    return ending(model, optimizer)


def killed(many, body, *arguments):
    many.send((body, arguments, {}))
    for process in many.processes:
        process.join(60)
        assert process.exitcode == -signal.SIGKILL
    for pipe in many.pipes:
        pipe.close()


KILLED = [(method, consolidate, torch.float32) for method in METHODS
          for consolidate in (False, True)] + [("dlion-vote", False, BF16),
                                               ("onebit-adam", True, BF16)]


@pytest.mark.parametrize("method, consolidate, dtype", KILLED)
def test_a_killed_run_continues_with_the_same_bits(world, fresh_world, tmp_path, method,
                                                   consolidate, dtype):
    n = 3 if consolidate else 2
    expected = world(n).run(undisturbed, method, dtype)
    killed(fresh_world(n), save_and_die, str(tmp_path), method, dtype, consolidate)
    assert len(list(tmp_path.iterdir())) == (1 if consolidate else n)
    # servers' state lies by bucket: another size moves it
    got = world(n).run(resumed, str(tmp_path), method, dtype, consolidate, consolidate,
                       64 if consolidate else 4096)
    for rank in range(n):
        assert got[rank][0] == expected[rank][0], f"parameters of rank {rank}"
    if consolidate:
        assert [r[1] for r in got] == [r[1] for r in expected]


def master_orders(order):
    model, optimizer = make(dtype=BF16)
    models.train(model, optimizer, 4)
    state = loaded(saved(model, optimizer))
    assert all("master" in entry for entry in state["optimizer"]["state"].values())
    masters = [entry["master"] for entry in state["optimizer"]["state"].values()]
    models.train(model, optimizer, 3, first=4)
    expected = ending(model, optimizer)[0]
    again, other = make(dtype=BF16)
    if order == "model first":
        again.load_state_dict(state["model"])
    other.load_state_dict(state["optimizer"])
    if order == "optimizer first":
        again.load_state_dict(state["model"])
    again_saved = other.state_dict()["state"].values()
    assert all(torch.equal(entry["master"], m) for entry, m in zip(again_saved, masters))
    models.train(again, other, 3, first=4)
    assert ending(again, other)[0] == expected


@pytest.mark.parametrize("order", ["model first", "optimizer first"])
def test_masters_are_restored_in_either_order(world, order):
    world(2).run(master_orders, order)


def changed_narrow_parameters():
    model, optimizer = make(dtype=BF16)
    models.train(model, optimizer, 2)
    state = optimizer.state_dict()
    with torch.no_grad():
        model[0].weight.data[0, 0] = 5.0  # without a new version
    optimizer.load_state_dict(state)
    w = model[0].weight.detach().float().clone()
    m = optimizer.state_dict()["state"][0]["master"]
    assert m[0, 0] == 5.0  # the model's value counts
    assert not torch.equal(m, w) and torch.equal(m.to(BF16).float(), w)  # and no other is rounded
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.step()
    assert torch.equal(model[0].weight.float(), w)
    optimizer.close()


def test_values_of_the_model_count_and_masters_add_the_lower_bits(world):
    world(1).run(changed_narrow_parameters)


def fp32_state_into_bf16_model():
    model, optimizer = make()
    models.train(model, optimizer, 3)
    state = loaded(saved(model, optimizer))
    optimizer.close()
    narrow, other = make(dtype=BF16)
    narrow.load_state_dict(state["model"])
    other.load_state_dict(state["optimizer"])
    models.train(narrow, other, 2, first=3)
    back = loaded(saved(narrow, other))
    other.close()
    wide, third = make()
    wide.load_state_dict(back["model"])
    third.load_state_dict(back["optimizer"])
    models.train(wide, third, 1, first=5)
    third.close()


def test_dtype_of_the_model_may_change_between_runs(world):
    world(2).run(fp32_state_into_bf16_model)


def scheduled(method, stop):
    """10 steps with a scheduler; after `stop` of them in an optimizer of a fresh process's kind."""
    def begin():
        model, optimizer = make(method)
        return model, optimizer, torch.optim.lr_scheduler.OneCycleLR(
            optimizer, 1e-2, total_steps=12, cycle_momentum=False)

    model, optimizer, scheduler = begin()
    for step in range(10):
        if step == stop:
            state = loaded(saved(model, optimizer))
            schedule = scheduler.state_dict()
            groups = optimizer.param_groups
            optimizer.close()
            model, optimizer, scheduler = begin()
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            scheduler.load_state_dict(schedule)
            for key in ("lr", "initial_lr", "max_lr", "min_lr", "betas", "weight_decay"):
                assert optimizer.param_groups[0][key] == groups[0][key], key
            assert optimizer.param_groups[0]["pride"] is None
        models.train(model, optimizer, 1, first=step)
        scheduler.step()
    return ending(model, optimizer)


@pytest.mark.parametrize("method", ["dlion-vote", "adamw"])
def test_schedulers_resume_with_the_optimizer(world, method):
    assert world(2).run(scheduled, method, 4) == world(2).run(scheduled, method, None)


def grown(resume):
    rank = dist.get_rank()
    model, optimizer = make("adamw")
    late = torch.nn.Parameter(torch.ones(7))

    def steps(optimizer, model, late, first, n, with_late):
        for step in range(first, first + n):
            optimizer.zero_grad()
            models.backward(model, step)
            if with_late:
                late.grad = torch.full((7,), float(rank + step))
            optimizer.step()

    steps(optimizer, model, late, 0, 3, False)
    optimizer.consolidate_state_dict()  # of a time without the new group
    optimizer.add_param_group({"params": [("late", late)], "lr": 5e-3})
    steps(optimizer, model, late, 3, 2 if resume == "later" else 0, True)
    state = loaded(saved(model, optimizer))
    if resume == "no":
        steps(optimizer, model, late, 3, 5, True)
        return ending(model, optimizer)[0] + models.bits([late])
    first, other = make("adamw")
    again = torch.nn.Parameter(late.detach().clone())
    optimizer.close()
    first.load_state_dict(state["model"])
    other.close()
    other = pride.Optimizer([{"params": list(first.named_parameters())},
                             {"params": [("late", again)]}], 1e-2, method="adamw",
                            bucket_size=64, timeout=30)
    other.load_state_dict(state["optimizer"])
    assert other.param_groups[1]["lr"] == 5e-3
    done = 2 if resume == "later" else 0
    steps(other, first, again, 3 + done, 5 - done, True)
    return ending(first, other)[0] + models.bits([again])


@pytest.mark.parametrize("resume", ["at once", "later"])
def test_added_groups_are_saved_and_loaded(world, resume):
    assert world(2).run(grown, resume) == world(2).run(grown, "no")


def any_layout():
    """Layouts whose digest begins with a zero digit were refused by their own states."""
    found = 0
    for i in range(400):
        layout = library.make_layout([(f"p{i}", (3,), 0)])
        if library.lib.pride_layout_digest(layout) >> 60:
            continue
        p = torch.nn.Parameter(torch.ones(3))
        optimizer = pride.DistributedLion([(f"p{i}", p)])
        optimizer.load_state_dict(optimizer.state_dict())
        optimizer.close()
        found += 1
        if found == 3:
            return
    raise AssertionError("no such layout")


def test_states_load_whatever_the_digest_of_the_layout_is(world):
    world(1).run(any_layout)


def fresh_own_state(method):
    model, optimizer = make(method)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            optimizer.load_state_dict(optimizer.state_dict())
    models.train(model, optimizer, 10)
    return ending(model, optimizer)


@pytest.mark.parametrize("method", ["dlion-vote", "onebit-adam"])
def test_loading_a_fresh_optimizers_own_state_is_silent_and_changes_nothing(world, method):
    assert world(2).run(fresh_own_state, method) == world(2).run(undisturbed, method)
