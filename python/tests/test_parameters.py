# Parameters of all kinds: tied, unusual, of half precision, frozen; and those that are refused.
# SPDX-License-Identifier: Apache-2.0
#
# Oracle: steps of signs written in torch (one rank: x - lr * sign).
import warnings

import pytest
import torch
import torch.distributed as dist

import models
import pride
from models import moved, numbers, parameter, set_gradients


def test_a_tied_parameter_has_one_state_and_the_sum_of_its_gradients():
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(5, 4)
            self.head = torch.nn.Linear(4, 5, bias=False)
            self.head.weight = self.embedding.weight

    model = Tied()
    start = model.embedding.weight.detach().clone()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of the list below
        lists = [list(model.parameters()), [model.embedding.weight, model.head.weight]]
        for params in lists:
            with torch.no_grad():
                model.head.weight.copy_(start)
            optimizer = pride.DistributedLion(params, 0.5)
            assert len(optimizer._parameters.slots) == 1
            model.zero_grad()
            model.head(model.embedding(torch.tensor([1, 2]))).pow(2).sum().backward()
            gradient = model.head.weight.grad.clone()
            optimizer.step()
            moved_ = gradient != 0
            assert torch.equal(model.embedding.weight[moved_],
                               (start - 0.5 * gradient.sign())[moved_])
            assert model.embedding.weight is model.head.weight
            optimizer.close()


def test_unusual_dense_parameters():
    flat = numbers(9, 20)
    shared = torch.nn.Parameter(numbers(8, 6))
    shared.share_memory_()
    params = {
        "empty": parameter(0, 0, 3),
        "scalar": parameter(1),
        "channels last": torch.nn.Parameter(
            numbers(2, 2, 3, 4, 5).contiguous(memory_format=torch.channels_last)),
        "transposed": torch.nn.Parameter(numbers(3, 4, 6).t()),
        "first half": torch.nn.Parameter(flat[:10]),
        "second half": torch.nn.Parameter(flat[10:]),
        "shared memory": shared,
        "frozen": parameter(5, 7).requires_grad_(False),
        "plain": parameter(6, 7),
        "expanded later": parameter(7, 1, 4),
        "tensor": numbers(10, 3).requires_grad_(),
    }
    assert not params["transposed"].is_contiguous()
    layout = {name: p.stride() for name, p in params.items()}
    before = {name: p.detach().clone() for name, p in params.items()}
    optimizer = pride.DistributedLion(params.items(), 0.5)
    gradients = {name: numbers(50 + i, *p.shape) for i, (name, p) in enumerate(params.items())}
    loss = sum((gradients[name] * p).sum() for name, p in params.items() if p.requires_grad)
    for way in range(2):
        if way:
            optimizer.zero_grad(set_to_none=False)
            before = {name: p.detach().clone() for name, p in params.items()}
            loss = sum((-gradients[n] * p).sum() * 1e6 for n, p in params.items()
                       if p.requires_grad)
        loss.backward()
        optimizer.step()
        for name, p in params.items():
            g = gradients[name] * (0 if name == "frozen" else -1 if way else 1)
            assert torch.equal(p, before[name] - 0.5 * g.sign()), name
            assert p.stride() == layout[name], name
    assert torch.equal(torch.cat([params["first half"], params["second half"]]), flat)
    assert params["shared memory"].is_shared()
    assert params["frozen"].grad is None


@pytest.mark.parametrize("kind", ["same", "overlapping"])
def test_different_parameters_over_the_same_memory_are_refused(kind):
    whole = numbers(0, 10)
    first = torch.nn.Parameter(whole if kind == "same" else whole[:6])
    second = torch.nn.Parameter(whole if kind == "same" else whole[5:])
    with pytest.raises(pride.InvalidArgument, match="'?head'? .*memory.*'?embedding'?|"
                                                    "'?embedding'? .*'?head'? .*memory"):
        pride.DistributedLion([("embedding", first), ("head", second)])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_tiny_updates_of_half_precision_add_up_in_the_master(dtype):
    p = torch.nn.Parameter(torch.ones(64, dtype=dtype))
    wide = torch.nn.Parameter(torch.ones(64))
    lr = 2.0 ** -14
    assert torch.ones(1, dtype=dtype) - lr == 1  # below the resolution at 1
    optimizer, oracle = pride.DistributedLion([p], lr), pride.DistributedLion([wide], lr)
    for step in range(100):
        set_gradients([p], 0)
        p.grad.abs_()
        wide.grad = p.grad.float()
        optimizer.step()
        oracle.step()
        assert torch.equal(p, models.narrowed(wide, dtype)), step
        optimizer.zero_grad(set_to_none=step % 2 == 0)
    assert torch.allclose(p.float(), torch.tensor(1 - 100 * lr), atol=2 ** -8)
    assert (p < 1).all()
    assert p.dtype == dtype and optimizer.state[p]["m.rank0"].dtype == torch.float32


REFUSED = {
    "complex": (lambda: torch.nn.Parameter(torch.zeros(3, dtype=torch.complex64)), "complex"),
    "sparse": (lambda: torch.zeros(3, 3).to_sparse().requires_grad_(), "not a dense tensor"),
    "float64": (lambda: torch.nn.Parameter(torch.zeros(3, dtype=torch.float64)), "float64"),
    "integer": (lambda: torch.nn.Parameter(torch.zeros(3, dtype=torch.int64), False), "int64"),
    "meta": (lambda: torch.nn.Parameter(torch.zeros(3, device="meta")), "meta"),
    "lazy": (lambda: torch.nn.LazyLinear(3).weight, "initiali"),
}


@pytest.mark.filterwarnings("ignore:Lazy")
@pytest.mark.parametrize("kind", REFUSED)
def test_parameters_that_cannot_be_optimized_are_refused_by_name(kind):
    make, word = REFUSED[kind]
    with pytest.raises((pride.InvalidArgument, TypeError), match=word) as caught:
        pride.DistributedLion([("first", parameter(0, 3)), ("the.other", make())])
    assert "the.other" in str(caught.value)
    with pytest.raises((pride.InvalidArgument, TypeError), match="group 0 parameter 1"):
        pride.DistributedLion([parameter(0, 3), make()])


def test_lists_that_torch_refuses():
    p = parameter(0, 3)
    with pytest.raises(ValueError, match="empty parameter list"):
        pride.DistributedLion([])
    with pytest.raises(ValueError, match="empty parameter list"):
        pride.DistributedLion(iter(()))
    with pytest.raises(TypeError, match="iterable of Tensors"):
        pride.DistributedLion(p)
    with pytest.raises(TypeError, match="can only optimize Tensors"):
        pride.DistributedLion(["weights"])
    with pytest.raises(ValueError, match="non-leaf"):
        pride.DistributedLion([p * 2])
    with pytest.raises(ValueError, match="more than one parameter group"):
        pride.DistributedLion([{"params": [p]}, {"params": [p]}])
    for unordered in ({p}, [{"params": {p}}]):
        with pytest.raises(TypeError, match="order"):
            pride.DistributedLion(unordered)
    with pytest.warns(UserWarning, match="duplicate parameters"):
        optimizer = pride.DistributedLion([p, p], 0.5)
    assert set(moved(p, optimizer, 0).tolist()) <= {0.5, 0.49999994, 0.50000006}
    with pytest.raises(pride.InvalidArgument, match="two parameters are named 'w'"):
        pride.DistributedLion([("w", p), ("w", parameter(1, 3))])


def test_empty_groups_and_parameters_without_elements_alone():
    a = parameter(0, 3)
    optimizer = pride.DistributedLion([{"params": []}, {"params": [a]}], 0.5)
    assert (moved(a, optimizer, 0) > 0).all()
    nothing = parameter(0, 0)
    optimizer = pride.DistributedLion([nothing], 0.5)
    nothing.grad = torch.zeros(0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    optimizer.step()
    with pytest.raises(ValueError, match="no parameters"):
        pride.DistributedLion([{"params": []}])


def test_names_are_taken_from_named_parameters():
    model = models.mlp()
    optimizer = pride.DistributedLion(model.named_parameters())
    assert [slot.name for slot in optimizer._parameters.slots] == [n for n, _ in model.named_parameters()]
    optimizer = pride.DistributedLion([{"params": model[0].named_parameters()},
                                       {"params": [("last", model[2].weight)]}])
    assert [slot.name for slot in optimizer._parameters.slots] == ["weight", "bias", "last"]
    assert all(isinstance(p, torch.Tensor) for g in optimizer.param_groups for p in g["params"])


# --- Frozen parameters. ---------------------------------------------------------------------------


def freezing(overlap):
    """One parameter is frozen from the start, one from step 3 on; all are released at step 5."""
    rank = dist.get_rank()
    params = [parameter(i, 40) for i in range(3)] + [parameter(3, 9, dtype=torch.bfloat16)]
    for p in params[1:2] + params[3:]:
        p.requires_grad_(False)
    optimizer = pride.DistributedLion(params, 0.125, weight_decay=0.5, overlap=overlap)
    moved_, shrunk = [], []
    for step in range(8):
        if step == 3:
            params[2].requires_grad_(False)
        if step == 5:
            for p in params:
                p.requires_grad_(True)
        optimizer.zero_grad(set_to_none=True)
        before = [p.detach().clone() for p in params]
        live = [p for p in params if p.requires_grad and not (step == 7 and p is params[0])]
        sum((p.float() * numbers(10 * step + rank, *p.shape)).sum() for p in live).backward()
        optimizer.step()
        moved_.append([not torch.equal(p, b) for p, b in zip(params, before)])
        shrunk.append(torch.equal(params[0], before[0] * (1 - 0.125 * 0.5)))
    optimizer.check_replicas()
    optimizer.close()
    return moved_, shrunk, models.bits(params)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("n", [1, 2])
def test_frozen_parameters_are_not_decayed(world, n, overlap):
    results = world(n).run(freezing, overlap)
    for moved_, shrunk, _ in results:
        assert moved_ == 3 * [[True, False, True, False]] + 2 * [[True, False, False, False]] + (
            3 * [[True] * 4])
        assert shrunk[-1], "one that is unused, and not frozen, is decayed"
    assert len({bits for _, _, bits in results}) == 1


def frozen_on_one():
    params = [parameter(0, 5), parameter(1, 5)]
    params[1].requires_grad_(dist.get_rank() == 0)
    optimizer = pride.DistributedLion(params, 0.125, weight_decay=0.5, timeout=20)
    set_gradients(params[:1], 0, dist.get_rank())
    optimizer.step()


def test_a_parameter_frozen_on_one_rank_alone_is_an_error(world):
    for kind, text in world(2).errors(frozen_on_one):
        assert issubclass(kind, ValueError) and "requires_grad=False of rank(s) 1" in text
