# What ranks compare before each step travels beside the first bucket. A refusal then comes before
# anything is applied, and ends the optimizer; in the first steps it changes nothing.
# SPDX-License-Identifier: Apache-2.0
#
# Oracle: the text of the refusal, the parameters of the step before, and the same on all ranks.
import pytest
import torch
import torch.distributed as dist

import models
import pride
from pride._native_step import NativeStep
from pride._world import World

LATE = 5  # a step after the first ones, whose rows come before it


def order_of(step):
    """What this rank does in a step: "send" its row, "begin" the native step, "wait" for the rows."""
    model, optimizer = models.make()
    models.train(model, optimizer, step)
    done, gather, begin = [], World.all_gather, NativeStep.begin

    def all_gather(self, mine):
        done.append("send")
        rows = gather(self, mine)

        def wait(*arguments):
            done.append("wait")
            return rows(*arguments)

        return wait

    def begun(self, *arguments, **keywords):
        done.append("begin")
        return begin(self, *arguments, **keywords)

    World.all_gather, NativeStep.begin = all_gather, begun
    try:
        models.train(model, optimizer, 1, step)
    finally:
        World.all_gather, NativeStep.begin = gather, begin
    optimizer.close()
    return done


def test_rows_are_waited_for_beside_the_first_bucket_and_in_the_first_steps_before(world):
    assert world(2).run(order_of, LATE) == [["send", "begin", "wait"]] * 2
    assert world(2).run(order_of, 1) == [["send", "wait", "begin"]] * 2


class _Stop(BaseException):
    """As KeyboardInterrupt, which would end the test's process."""


def _fault(kind, model, optimizer):
    """Rank 1 does one thing otherwise; returns the call to make instead of step()."""
    group, weight = optimizer.param_groups[0], model[0].weight
    if kind == "rate":
        group["lr"] *= 2
    elif kind == "maximize":
        group["maximize"] = True
    elif kind == "frozen":
        model[2].bias.requires_grad_(False)
        model[2].bias.grad = None
    elif kind == "sparse":
        weight.grad = weight.grad.to_sparse()
    elif kind == "NaN rate":
        group["lr"] = float("nan")
    elif kind == "interrupt":
        def stop():
            raise _Stop("no more")

        optimizer._parameters.table.collect_gradients = stop
    elif kind == "scaler":
        optimizer.grad_scale, optimizer.found_inf = torch.tensor(1.0), torch.tensor(0.0)
    elif kind == "load":
        return lambda: optimizer.load_state_dict(optimizer.state_dict())
    elif kind == "check":
        return optimizer.check_replicas
    return optimizer.step


def at_fault(kind, late, **arguments):
    """(exception, its text, whether parameters changed, the text of a further step, steps saved)"""
    model, optimizer = models.make(model=models.mlp(), bucket_size=128, **arguments)
    models.train(model, optimizer, late)
    before = models.bits(model.parameters())
    optimizer.zero_grad()
    models.backward(model, late)
    call = _fault(kind, model, optimizer) if dist.get_rank() == 1 else optimizer.step
    problem = None
    try:
        call()
    except BaseException as error:  # pylint: disable=broad-except
        problem = error
    changed = models.bits(model.parameters()) != before
    saved, further = optimizer.state_dict(), ""
    steps = int(saved["state"][0]["step"])
    if late == LATE:
        try:
            optimizer.step()
        except pride.CommError as error:
            further = str(error)
    optimizer.close()
    return type(problem), str(problem), changed, further, steps


FAULTS = {
    "rate": "lr of group 0 is 0.01 on rank(s) 0 and 0.02 on rank(s) 1: it must be equal on all ranks",
    "maximize": "maximize is False on rank(s) 0 and True on rank(s) 1",
    "frozen": "set of parameters with requires_grad=False of rank(s) 1 and of rank 0 differ",
    "sparse": "sparse", "NaN rate": "lr of group 0 = nan", "interrupt": "no more",
    "scaler": "rank(s) 1 have a GradScaler and others none",
    "load": "rank 0: step(), rank 1: load_state_dict()",
    "check": "rank 0: step(), rank 1: check_replicas()"}


@pytest.mark.parametrize("lanes", [0, 2])
@pytest.mark.parametrize("kind", FAULTS)
def test_a_late_refusal_comes_before_anything_is_applied_and_ends_the_optimizer(world, kind, lanes):
    for rank, (error, text, changed, further, steps) in enumerate(
            world(3 if kind == "sparse" else 2).run(at_fault, kind, LATE, lanes=lanes)):
        alone = kind == "interrupt" and rank == 1
        assert error is (_Stop if alone else pride.InvalidArgument), (error, text)
        assert FAULTS[kind] in text and not changed
        assert "no further steps" in further and FAULTS[kind] in further
        assert steps == LATE  # what was saved is of the last good step


def with_overlap(n_steps):
    """Rank 1 climbs in a step that backward has begun; frames do not tell of it."""
    model, optimizer = models.make(model=models.mlp(), overlap=True)
    models.train(model, optimizer, n_steps)
    before = models.bits(model.parameters())
    optimizer.param_groups[0]["maximize"] = dist.get_rank() == 1
    with pytest.raises(pride.InvalidArgument, match="maximize is False on"):
        models.train(model, optimizer, 1, n_steps)
    assert models.bits(model.parameters()) == before
    optimizer.close()


def test_with_overlap_rows_travel_beside_the_last_buckets(world):
    world(2).run(with_overlap, LATE)


@pytest.mark.parametrize("kind", ["rate", "frozen", "sparse", "load"])
def test_a_refusal_in_the_first_steps_changes_nothing(world, kind):
    for error, text, changed, _, steps in world(2).run(at_fault, kind, 1):
        assert error is pride.InvalidArgument and FAULTS[kind] in text
        assert not changed and steps == 1


def goes_on():
    """A refused step, and then the same steps as without it."""
    model, optimizer = models.make()
    models.train(model, optimizer, 1)
    optimizer.param_groups[0]["lr"] *= 1 + dist.get_rank()
    with pytest.raises(pride.InvalidArgument):
        models.train(model, optimizer, 1, 1)
    optimizer.param_groups[0]["lr"] /= 1 + dist.get_rank()
    models.train(model, optimizer, 4, 1)
    return models.ended(model, optimizer)


def trained():
    model, optimizer = models.make()
    models.train(model, optimizer, 5)
    return models.ended(model, optimizer)


def test_after_a_refusal_in_the_first_steps_the_run_goes_on(world):
    assert world(2).run(goes_on) == world(2).run(trained)


def joined(kind):
    """Rank 1 has no more data after LATE steps; rank 0 then does something wrong."""
    model, optimizer = models.make()
    with pride.join(optimizer):
        models.train(model, optimizer, LATE + 1)
        if dist.get_rank() == 0:
            models.train(model, optimizer, 1, LATE + 1)
            if kind == "call":
                optimizer.check_replicas()
            optimizer.param_groups[0]["lr"] = float("nan")
            models.train(model, optimizer, 1, LATE + 2)


@pytest.mark.parametrize("kind, text", [
    ("call", "rank 0: check_replicas(), rank 1: end of join()"), ("rate", "lr of group 0 = nan")])
def test_a_refusal_while_a_rank_has_no_data(world, kind, text):
    for error in world(2).errors(joined, kind):
        assert error[0] is pride.InvalidArgument and text in error[1]
