# Parameters that their owner edits between steps: values, memory, types and lists.
# SPDX-License-Identifier: Apache-2.0
#
# Oracle: steps of signs written in torch (x - lr * sign).
import pytest
import torch

import pride
from models import numbers, parameter, set_gradients


def edit_load(model, values):
    model.load_state_dict({"weight": values})


def edit_data(model, values):
    model.weight.data = values.clone()


def edit_data_in_place(model, values):
    model.weight.data.copy_(values)


def edit_data_twice(model, values):
    for factor in (3.0, 1.0):
        model.weight.data = factor * values


def edit_in_place(model, values):
    with torch.no_grad():
        model.weight.copy_(values)


def edit_numpy(model, values):
    if model.weight.dtype == torch.bfloat16:
        return edit_data_in_place(model, values)
    model.weight.detach().numpy()[...] = values.numpy()


def edit_swap(model, values):
    if not hasattr(torch.utils, "swap_tensors"):  # torch before 2.3
        return edit_data(model, values)
    torch.utils.swap_tensors(model.weight, torch.nn.Parameter(values.clone()))


def edit_order(model, values):
    model.weight.data = values.t().contiguous().t()


EDITS = [edit_load, edit_data, edit_data_in_place, edit_data_twice, edit_in_place, edit_numpy,
         edit_swap, edit_order]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("edit", EDITS, ids=lambda e: e.__name__)
def test_edits_between_steps_are_honoured(edit, dtype):
    model = torch.nn.Linear(6, 5, bias=False).to(dtype)
    optimizer = pride.DistributedLion(model.parameters(), 0.25)
    for step in range(3):
        set_gradients([model.weight], step)
        optimizer.step()
        values = numbers(70 + step, 5, 6).to(dtype)
        edit(model, values)
        assert torch.equal(model.weight, values)
        g = torch.ones(5, 6, dtype=dtype) * 1e6 ** 0.5 * 40
        model.weight.grad = g
        optimizer.step()
        if dtype == torch.bfloat16:  # the edited value kept its lower half
            assert torch.allclose(model.weight.float(), values.float() - 0.25, 2 ** -7, 2 ** -9), step
        else:
            assert torch.equal(model.weight, (values.float() - 0.25).to(dtype)), step
    optimizer.check_replicas()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_an_edit_of_one_row_keeps_the_masters_of_the_others(dtype):
    p = torch.nn.Parameter(torch.ones(4, 3, dtype=dtype))
    lr = 2.0 ** -14
    optimizer = pride.DistributedLion([p], lr)
    for step in range(100):
        p.grad = torch.ones(4, 3, dtype=dtype)
        optimizer.step()
        if step == 50:
            p.data[2] = 3.0
    assert torch.equal(p[0], torch.full((3,), 1 - 100 * lr).to(dtype)) and (p[0] < 1).all()
    assert torch.equal(p[2], torch.full((3,), 3 - 49 * lr).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_that_changes_its_memory_format(dtype):
    model = torch.nn.Conv2d(3, 3, 3, bias=False).to(dtype)
    optimizer = pride.DistributedLion(model.parameters(), 0.25)
    for change in (lambda: model.to(memory_format=torch.channels_last), lambda: model.to(dtype),
                   lambda: setattr(model.weight, "data", model.weight.data.transpose(0, 1)),
                   lambda: model.to(memory_format=torch.contiguous_format)):
        change()
        before = model.weight.detach().clone()
        signs = numbers(0, 3, 3, 3, 3).sign()
        model.weight.grad = (1000 * signs).to(dtype)
        optimizer.step()
        rounding = 0 if dtype == torch.float32 else 2.0 ** -8  # of `before`, which is not the master
        assert torch.allclose(model.weight.float(), before.float() - 0.25 * signs, 0, rounding)
        assert model.weight.stride() == before.stride()
        optimizer.zero_grad(set_to_none=True)


def test_another_type_is_refused_by_name_until_it_is_as_before():
    model = torch.nn.Linear(3, 4, bias=False)
    optimizer = pride.DistributedLion(model.named_parameters(), 0.25)
    for change, text in ((model.half, "weight has dtype torch.float16 now and had torch.float32"),
                         (model.double, "weight is torch.float64")):
        change()
        before = model.weight.detach().clone()
        for use in (optimizer.step, optimizer.check_replicas, optimizer.state_dict):
            with pytest.raises(pride.InvalidArgument, match=text):
                use()
        assert torch.equal(model.weight, before)
    model.float()
    x = model.weight.detach().clone()
    model.weight.grad = torch.ones(4, 3)
    optimizer.step()
    assert torch.equal(model.weight, x - 0.25)


def test_parameters_that_come_to_share_memory_are_refused_by_name():
    a, b = parameter(0, 8), parameter(1, 8)
    optimizer = pride.DistributedLion([("a", a), ("b", b)], 0.25)
    b.data = a.data
    set_gradients([a, b], 0)
    with pytest.raises(pride.InvalidArgument, match="'a' and 'b' share memory"):
        optimizer.step()


def test_data_of_another_shape_is_refused_by_name():
    p = parameter(0, 3, 4)
    optimizer = pride.DistributedLion([("fc.weight", p)], 0.25)
    p.data = torch.zeros(4)
    p.grad = torch.ones(4)
    with pytest.raises(pride.InvalidArgument, match=r"fc.weight .*\(4,\).*\(3, 4\)"):
        optimizer.step()
    p.grad = None
    p.data = torch.zeros(3, 4)
    p.grad = torch.ones(3, 4)
    optimizer.step()
    assert torch.equal(p, torch.full((3, 4), -0.25))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_backward_through_values_from_before_the_step_raises_as_with_torch(dtype):
    for make in (lambda p: torch.optim.SGD(p, 0.1), lambda p: pride.DistributedLion(p, 0.1)):
        p = parameter(0, 4, dtype=dtype)
        optimizer = make([p])
        for _ in range(2):
            loss = (p * p).sum()
            loss.backward(retain_graph=True)
            optimizer.step()
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                loss.backward()
            p.grad = None
            (p * p).sum().backward()  # a new forward pass is fine
            p.grad = None


def test_forward_values_of_the_new_parameters():
    """No operation keeps the old memory: the module computes with what the step has written."""
    model = torch.nn.LSTM(3, 4)
    x = numbers(0, 5, 2, 3)
    optimizer = pride.DistributedLion(model.parameters(), 0.25)
    for _ in range(2):
        model.zero_grad()
        model(x)[0].sum().backward()
        optimizer.step()
        copy = torch.nn.LSTM(3, 4)
        copy.load_state_dict(model.state_dict())
        assert torch.equal(model(x)[0], copy(x)[0])


def test_two_optimizers_step_one_parameter_in_turn():
    p = parameter(0, 8)
    first = pride.DistributedLion([p], 0.5)
    second = pride.DistributedLion([p], 0.25)
    x = p.detach().clone()
    for optimizer, lr in ((first, 0.5), (second, 0.25), (first, 0.5)):
        p.grad = torch.ones(8)
        optimizer.step()
        x -= lr
        assert torch.equal(p, x)


def test_parameters_put_into_groups_by_hand_are_refused():
    a, b = parameter(0, 4), parameter(1, 4)
    for change in (lambda g: g[0]["params"].append(b), lambda g: g[0].update(params=[b]),
                   lambda g: g.append(dict(g[0], params=[b])), lambda g: g.clear()):
        optimizer = pride.DistributedLion([a], 0.25)
        set_gradients([a, b], 0)
        change(optimizer.param_groups)
        with pytest.raises(pride.InvalidArgument, match="add_param_group"):
            optimizer.step()
