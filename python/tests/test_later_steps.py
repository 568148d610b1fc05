# What goes wrong after the first steps: averaging that comes back, parameters that pride has not.
# SPDX-License-Identifier: Apache-2.0
#
# Oracle: the training without the fault.
import contextlib
import gc
import threading
import warnings

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import models
import pride
from pride import _outside

LATE = 5  # the step in which it begins


def average(parameters):
    for p in parameters:
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def late_averaging(kind, n_nodes=0, late=LATE, **arguments):
    """(step of the refusal, its text, whether that step changed parameters)."""
    if n_nodes:
        groups = [dist.new_group([2 * i, 2 * i + 1]) for i in range(n_nodes)]
        arguments["node_group"] = groups[dist.get_rank() // 2]
    model, optimizer = models.make(model=models.mlp(), **arguments)
    used = model
    join = pride.join(optimizer) if kind == "join" else contextlib.nullcontext()
    try:
        with join:
            for step in range(late + 7):
                if step == late and kind in ("ddp", "join"):
                    used = DistributedDataParallel(model)
                optimizer.zero_grad()
                models.backward(used, step, 0 if kind == "data" and step >= late else None)
                if step >= late and kind == "by hand":
                    average(model.parameters())
                before = models.bits(model.parameters())
                optimizer.step()
    except pride.InvalidArgument as error:
        return step, str(error), models.bits(model.parameters()) != before
    finally:
        optimizer.close()
    return None


@pytest.mark.parametrize("kind, overlap", [
    ("ddp", False), ("by hand", False), ("data", False), ("join", False), ("data", True)])
@pytest.mark.parametrize("late", [LATE, 50])
def test_averaging_that_comes_back_is_refused_in_its_third_step(world, kind, overlap, late):
    for step, text, changed in world(2).run(late_averaging, kind, late=late, overlap=overlap):
        assert step == late + 2 and "averaged already" in text and not changed


def test_averaging_that_comes_back_among_nodes(world):
    for step, text, changed in world(4).run(late_averaging, "by hand", n_nodes=2):
        assert step == LATE + 2 and "averaged already" in text and not changed


def test_equal_gradients_may_be_allowed_and_one_rank_has_none(world):
    assert world(2).run(late_averaging, "by hand", equal_gradients="allow") == [None] * 2
    assert world(1).run(late_averaging, "by hand") == [None]


def partly_equal(which):
    """Training in which some gradients are equal on all ranks, in every step."""
    model, optimizer = models.make(model=models.mlp())
    for step in range(10):
        optimizer.zero_grad()
        models.backward(model, step)
        for i, p in enumerate(model.parameters()):
            if which == "all but one value":
                p.grad.fill_(1.0 + step)
            elif which == "all but one tensor" and i:
                p.grad.fill_(1.0)
            elif which == "zeros":
                p.grad.zero_()
        if which == "all but one value":
            model[0].weight.grad[7, 3] += dist.get_rank()
        optimizer.step()
    return models.ended(model, optimizer)


@pytest.mark.parametrize("which", ["all but one value", "all but one tensor", "zeros", "none"])
def test_gradients_of_which_some_are_equal_are_no_alarm(world, which):
    assert len(set(world(2).run(partly_equal, which))) == 1


def equal_now_and_then(overlap, n_equal=2):
    """Training in which ranks have equal batches in steps in a row, and then not."""
    model, optimizer = models.make(model=models.mlp(), overlap=overlap)
    for step in range(24):
        optimizer.zero_grad()
        models.backward(model, step, 0 if step % 8 < n_equal and step >= 8 else None)
        optimizer.step()
    return models.ended(model, optimizer)


@pytest.mark.parametrize("overlap", [False, True])
def test_equal_gradients_in_fewer_than_three_steps_in_a_row_are_chance(world, overlap):
    assert len(set(world(2).run(equal_now_and_then, overlap))) == 1


def not_finite(value, begin, on_non_finite):
    """Training in which all ranks have the same gradients, not finite, in three steps."""
    model, optimizer = models.make(model=models.mlp(), on_non_finite=on_non_finite)
    for step in range(begin + 6):
        optimizer.zero_grad()
        models.backward(model, step)
        if begin <= step < begin + 3:
            for p in model.parameters():
                p.grad.fill_(value)
        optimizer.step()
    return models.ended(model, optimizer)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("begin", [0, 4])
def test_equal_gradients_that_are_not_finite_prove_nothing(world, value, begin):
    assert len(set(world(2).run(not_finite, value, begin, "skip"))) == 1
    for error in world(2).errors(not_finite, value, begin, "raise"):
        assert error[0] is pride.NonFiniteGradient


# --- Parameters of the model that pride's optimizer has not. --------------------------------------


class Two(torch.nn.Module):
    """pride has `own`; `rest` is stepped by AdamW, or not at all."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.own, self.rest = torch.nn.Linear(12, 16), torch.nn.Linear(16, 7)

    def forward(self, x):
        return self.rest(torch.relu(self.own(x)))


def second_optimizer(kind, ddp=False, order="pride first", steps=20):
    """(warnings, texts of check_replicas() and check_replicas(model)) of training with AdamW for the
    rest."""
    model = Two()
    if kind == "each rank's own":
        torch.manual_seed(dist.get_rank())
        model.rest.reset_parameters()
    used = pride.local_gradients(DistributedDataParallel(model)) if ddp else model
    optimizer = pride.DistributedLion(model.own.parameters(), 1e-3, timeout=30)
    if kind == "a second of pride's":
        other = pride.Optimizer(model.rest.parameters(), 1e-3, method="dlion-avg", timeout=30)
    else:
        other = torch.optim.AdamW(model.rest.parameters(), 1e-3)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for step in range(steps):
            optimizer.zero_grad()
            other.zero_grad()
            models.backward(used, step)
            if kind == "averaged" or (kind == "late" and step < LATE):
                average(model.rest.parameters())
            for each in [optimizer, other] if order == "pride first" else [other, optimizer]:
                each.step()
    compared = []
    for given in ((), (model,)):
        try:
            optimizer.check_replicas(*given)
            compared.append(None)
        except pride.InvalidArgument as error:
            compared.append(str(error))
    optimizer.close()
    return [str(w.message) for w in seen if "pride" in str(w.message)], compared


@pytest.mark.parametrize("ddp", [False, True])
@pytest.mark.parametrize("kind, order", [("at once", "pride first"), ("at once", "pride last"),
                                         ("late", "pride first")])
def test_parameters_of_another_optimizer_that_drift_apart_are_named_once(world, ddp, kind, order):
    for said, (own, all_of_them) in world(2).run(second_optimizer, kind, ddp, order):
        assert len(said) == 1 and "differ between ranks now: 'rest.weight' and 1 more" in said[0]
        assert own is None and "'rest.weight' and 1 more" in all_of_them


@pytest.mark.parametrize("kind", ["averaged", "a second of pride's", "each rank's own"])
def test_other_parameters_that_stay_equal_or_never_were_are_no_alarm(world, kind):
    for said, (own, all_of_them) in world(2).run(second_optimizer, kind):
        assert said == [] and own is None
        assert (all_of_them is None) == (kind != "each rank's own")


class Empty(torch.nn.Linear):
    def __len__(self):
        return 0


class Mute(torch.nn.Module):
    def parameters(self, recurse=True):
        raise RuntimeError("no parameters here")


def odd_modules(kind):
    """Warnings of training with a model that has no bool(), beside one that has no parameters()."""
    model, mute = Two(), Mute()
    if kind == "compiled":
        kept = torch.compile(model, backend="eager")
    else:
        kept = Empty(3, 2)
        kept.model = model
    optimizer = pride.DistributedLion(model.own.parameters(), 1e-3, timeout=30)
    other = torch.optim.AdamW(model.rest.parameters(), 1e-3)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for step in range(10):
            optimizer.zero_grad()
            other.zero_grad()
            models.backward(model, step)
            optimizer.step()
            other.step()
    optimizer.close()
    del kept, mute
    return [str(w.message) for w in seen if "differ between ranks now" in str(w.message)]


@pytest.mark.parametrize("kind", ["compiled", "empty"])
def test_modules_without_bool_or_parameters(world, kind):
    if kind == "compiled" and not hasattr(torch, "compile"):
        pytest.skip("this torch has no torch.compile")
    for said in world(2).run(odd_modules, kind):
        assert len(said) == 1 and "rest.weight' and 1 more" in said[0]


def adapter(late, ddp, overlap, how="found"):
    """Warnings of training in which another parameter gets gradients, and no optimizer has it."""
    model = Two()
    if how != "found":
        gc.freeze()  # no search finds the model then
    model.rest.requires_grad_(not late)
    used = pride.local_gradients(DistributedDataParallel(model)) if ddp else model
    optimizer = pride.DistributedLion(model.own.parameters(), 1e-3, timeout=30, overlap=overlap) if (
        how != "taken over") else pride.take_over(torch.optim.AdamW(model.own.parameters()), model)
    if how == "compared":
        optimizer.check_replicas(model)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for step in range(20):
            model.rest.requires_grad_(not late or step >= LATE)
            model.zero_grad()
            models.backward(used, step)
            optimizer.step()
    optimizer.close()
    return [str(w.message) for w in seen if "pride" in str(w.message)]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("late, ddp", [(False, False), (False, True), (True, False)])
def test_a_parameter_that_no_optimizer_has_is_named_once(world, late, ddp, overlap):
    for said in world(2).run(adapter, late, ddp, overlap):
        assert len(said) == 1 and "parameter 'rest.weight' and 1 more gets gradients" in said[0]


@pytest.mark.parametrize("how", ["taken over", "compared"])
def test_a_model_that_pride_was_given_is_looked_at_where_no_search_finds_it(world, how):
    for said in world(2).run(adapter, True, False, False, how):
        assert len(said) == 1 and "parameter 'rest.weight' and 1 more gets gradients" in said[0]


@contextlib.contextmanager
def freeing_tensors():
    """In the block another thread frees tensors that C++ owns, as Gloo's threads do."""
    p, is_over = torch.zeros(1, requires_grad=True), threading.Event()

    def free():
        while not is_over.is_set():
            p.grad = torch.zeros(1)  # frees the last one

    thread = threading.Thread(target=free)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def test_a_search_among_all_objects_holds_no_tensor_that_another_thread_frees():
    model = Two()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with freeing_tensors():
            for _ in range(20):
                found = _outside._alive(torch.nn.Module)
                assert {id(m) for m in model.modules()} <= {id(m) for m in found}
    said = [str(w.message) for w in seen]
    assert not any("Deallocating Tensor that still has live PyObject references" in s for s in said)


def late_difference(index):
    """Warnings of training in which rank 1 changes one of 16 other tensors, after the first steps."""
    model = Two()
    model.more = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(3)) for _ in range(14)])
    optimizer = pride.DistributedLion(model.own.parameters(), 1e-3, timeout=30)
    other = torch.optim.SGD([*model.rest.parameters(), *model.more], 0.0)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for step in range(8 * 16 + 2):
            if step == LATE and dist.get_rank() == 1:
                model.more[index].data += 1
            optimizer.zero_grad()
            models.backward(model, step)
            optimizer.step()
    optimizer.close()
    del other
    return [str(w.message) for w in seen if "differ between ranks now" in str(w.message)]


@pytest.mark.parametrize("index", [0, 1, 2, 3])  # neighbours
def test_each_tensor_has_its_turn(world, index):
    for said in world(2).run(late_difference, index):
        assert len(said) == 1 and f"'more.{index}'" in said[0]


def replicas_of(kind):
    model, optimizer = models.make(model=Two())
    other = Two()
    if kind == "other" and dist.get_rank() == 1:
        other.rest.bias.data[2] += 1e-3
    elif kind == "shapes" and dist.get_rank() == 1:
        other.rest = torch.nn.Linear(16, 3)
    optimizer.check_replicas(other if kind != "own" else model)


@pytest.mark.parametrize("kind, text", [
    ("own", None), ("equal", None), ("other", "'rest.bias'"), ("shapes", "names and shapes")])
def test_check_replicas_of_a_model(world, kind, text):
    for error in world(2).errors(replicas_of, kind):
        assert error is None if text is None else text in error[1]
