# Gradients of each rank's own batch: under DDP, accumulated, averaged by mistake, clipped.
# SPDX-License-Identifier: Apache-2.0
#
# Oracle: the same training with a plain module, without DDP and without overlap.
import contextlib
import gc
import weakref

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import models
import pride
from models import Branches, backward_of_branches, ended, make, taken
from pride import _hooks


def wrapped(model, **options):
    return pride.local_gradients(DistributedDataParallel(model, **options))


def branches(ddp):
    return wrapped(Branches(), find_unused_parameters=True) if ddp else Branches()


def run_branches(ddp, overlap, twice=False):
    """twice: in a second DDP around the same module."""
    model = branches(ddp)
    if twice:
        model = wrapped(model.module, find_unused_parameters=True)
        gc.collect()
    model, optimizer = make(model=model, weight_decay=0.1, overlap=overlap)
    for step in range(7):
        optimizer.zero_grad(set_to_none=True)
        backward_of_branches(model, step, taken(dist.get_rank(), step))
        optimizer.step()
    state = models.whole(model, optimizer)[1]
    return ended(model, optimizer), state


@pytest.mark.parametrize("n", [1, 2, 3])
def test_ddp_with_unused_parameters_has_the_bits_of_a_plain_module(world, n):
    expected = world(n).run(run_branches, False, False)
    assert len({weights for weights, _ in expected}) == 1
    for overlap in (False, True):
        assert world(n).run(run_branches, True, overlap) == expected, f"overlap {overlap}"
    assert world(n).run(run_branches, False, True) == expected, "plain, with overlap"


def test_a_second_ddp_around_the_module_counts_unused_parameters_too(world):
    expected = world(2).run(run_branches, False, False)
    assert world(2).run(run_branches, True, False, True) == expected


def run_views(overlap, to_none, ddp=True):
    """All parameters are used; gradients are DDP's views of its buckets."""
    model = wrapped(models.mlp(), gradient_as_bucket_view=True) if ddp else models.mlp()
    model, optimizer = make(model=model, overlap=overlap)
    for step in range(6):
        optimizer.zero_grad(set_to_none=to_none)
        models.backward(model, step)
        optimizer.step()
    return ended(model, optimizer)


@pytest.mark.parametrize("overlap", [False, True])
def test_ddp_whose_gradients_are_views_of_its_buckets(world, overlap):
    for to_none in (True, False):
        got = world(2).run(run_views, overlap, to_none)
        assert got == world(2).run(run_views, overlap, to_none, False), f"to_none {to_none}"


def discarded(ddp):
    """A batch that reaches both branches is given up; the next one reaches none."""
    model, optimizer = make(model=branches(ddp))
    for step in range(4):
        for use in ((True, True), (step == 0, False)):
            optimizer.zero_grad()
            backward_of_branches(model, step, use)
        if not ddp:  # a plain module keeps zeros where DDP's zeros count as unused
            for branch in model.branches if step else model.branches[1:]:
                for p in branch.parameters():
                    p.grad = None
        optimizer.step()
    return ended(model, optimizer)


def test_gradients_that_were_zeroed_before_the_step_are_unused(world):
    assert world(2).run(discarded, True) == world(2).run(discarded, False)


def accumulated(ddp, overlap):
    """Three backwards a step; in the last one some parameters are not used any more."""
    model, optimizer = make(model=branches(ddp), overlap=overlap)
    for step in range(5):
        optimizer.zero_grad(set_to_none=True)
        for part in range(3):
            with contextlib.ExitStack() as stack:
                if part < 2:
                    stack.enter_context(optimizer.no_sync())
                    if ddp:
                        stack.enter_context(model.no_sync())
                use = (part == 0 and dist.get_rank() == 0, part == 1)
                backward_of_branches(model, 3 * step + part, use)
        optimizer.step()
    return ended(model, optimizer)


@pytest.mark.parametrize("n", [1, 3])
def test_accumulation_over_several_backwards(world, n):
    expected = world(n).run(accumulated, False, False)
    assert len(set(expected)) == 1
    for ddp, overlap in ((False, True), (True, False), (True, True)):
        assert world(n).run(accumulated, ddp, overlap) == expected, f"DDP {ddp}, overlap {overlap}"


# --- Gradients that are averaged already. ---------------------------------------------------------


def averaged(policy, kind):
    """(text of the error, whether parameters are as they were) with gradients equal everywhere."""
    model = models.mlp()
    before = models.bits(model.parameters())
    used = DistributedDataParallel(model) if kind == "ddp" else model
    optimizer = make(model=model, equal_gradients=policy)[1]
    text = None
    for step in range(3):
        optimizer.zero_grad()
        models.backward(used, step, 0 if kind == "same data" else None)
        try:
            optimizer.step()
        except pride.InvalidArgument as error:
            text = str(error)
            break
    changed = models.bits(model.parameters()) != before
    optimizer.close()
    return text, changed


@pytest.mark.parametrize("kind", ["ddp", "same data"])
def test_averaged_gradients_and_equal_data_are_refused_on_all_ranks_or_allowed(world, kind):
    for text, changed in world(2).run(averaged, "refuse", kind):
        assert "averaged" in text and "pride.local_gradients(ddp_model)" in text
        assert "DistributedSampler" in text and 'equal_gradients="allow"' in text
        assert not changed
    for text, changed in world(2).run(averaged, "allow", kind):
        assert text is None and changed
    for text, changed in world(2).run(averaged, "refuse", "own data"):
        assert text is None and changed
    for text, changed in world(1).run(averaged, "refuse", kind):
        assert text is None and changed, "one rank has nobody to be equal to"


def zeros_first(steps):
    p = torch.nn.Parameter(torch.ones(10))
    other = torch.nn.Parameter(torch.ones(3))
    optimizer = pride.DistributedLion([p, other], 1e-2, timeout=30)
    for _ in range(steps):
        p.grad = torch.zeros(10)
        optimizer.step()
    p.grad = None
    optimizer.step()  # no gradient anywhere
    p.grad = torch.ones(10)
    try:
        optimizer.step()
    except pride.InvalidArgument as error:
        return str(error)
    finally:
        optimizer.close()
    return None


@pytest.mark.parametrize("steps", [1, 4])
def test_zeros_are_no_alarm_and_do_not_use_up_the_check(world, steps):
    for text in world(2).run(zeros_first, steps):
        assert text is not None and "averaged" in text


def test_local_gradients_takes_ddp_models_alone():
    with pytest.raises(TypeError, match="Linear is not a DistributedDataParallel"):
        pride.local_gradients(torch.nn.Linear(2, 2))


def not_a_number():
    model = wrapped(models.mlp())
    optimizer = pride.DistributedLion(model.parameters(), timeout=30)
    models.backward(model, 0)
    model.module[2].weight.grad[3, 5] = float("nan")
    optimizer.step()


def test_errors_have_the_names_of_the_module(world):
    for kind, text in world(2).errors(not_a_number):
        assert kind is pride.NonFiniteGradient and "2.weight" in text and "group 0" not in text


def references():
    """Whether models and optimizers are freed when the caller drops them."""
    def used():
        model, optimizer = make(model=wrapped(models.mlp()), overlap=True)
        models.train(model, optimizer, 4)
        return (weakref.ref(model), weakref.ref(optimizer),
                weakref.ref(model.module[0].weight))

    gc.collect()
    held = len(_hooks._watched)
    made = used()
    gc.collect()
    return [ref() is None for ref in made], len(_hooks._watched) - held


def test_models_and_optimizers_are_freed(world):
    for freed, left in world(2).run(references):
        assert freed == [True, True, True]
        assert left <= 0


# --- Clipping and averages. -----------------------------------------------------------------------


def clipped(how):
    model, optimizer = make()
    norms = []
    for step in range(4):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        models.backward(model, step)
        norm = torch.sqrt(sum(p.grad.double().pow(2).sum() for p in model.parameters())).item()
        if how == "optimizer":
            got = pride.clip_grad_norm_(optimizer, 0.5)
        elif how == "parameters":
            got = pride.clip_grad_norm_(model.parameters(), 0.5)
        else:
            got = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        assert abs(float(got) - norm) < 1e-4 * norm
        norms.append(float(got))
        optimizer.step()
    return ended(model, optimizer), norms


def test_clipping_is_of_each_ranks_own_gradient(world):
    expected = world(3).run(clipped, "torch")
    assert len({tuple(norms) for _, norms in expected}) == 3
    assert all(max(norms) > 0.5 for _, norms in expected)
    for how in ("optimizer", "parameters"):
        assert world(3).run(clipped, how) == expected


def means():
    group = dist.new_group([0, 1])
    rank = dist.get_rank()
    everywhere = pride.mean_over_ranks(torch.tensor(float(rank), requires_grad=True))
    first_two = pride.mean_over_ranks(rank, group) if rank < 2 else None
    return everywhere, first_two, pride.mean_over_ranks(1e300), type(everywhere)


def test_mean_over_ranks(world):
    assert world(3).run(means) == [(1.0, 0.5, 1e300, float)] * 2 + [(1.0, None, 1e300, float)]
    assert pride.mean_over_ranks(torch.tensor(2.5)) == 2.5
