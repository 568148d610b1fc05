# Virtual workers from Python: one process plays N workers.
# SPDX-License-Identifier: Apache-2.0
#
# Oracle: the same run by ranks of their own over Gloo.
import copy
import pickle
import io

import pytest
import torch

import models
import pride

N, STEPS = 3, 5
KINDS = [("dlion-vote", {}), ("adamw", {}), ("signsgd-ef", {}), ("dgc", {}),
         ("lion-cub", {}), ("local-vote", {"h": 2}), ("local-ef", {"h": 2, "delay": 1})]


def make(method, options, dtype, **kwargs):
    model = models.Branches().to(dtype)
    door = pride.VirtualWorkers if "workers" in kwargs else pride.Optimizer
    return model, door(model.parameters(), method=method, options=options, lr=0.01,
                       weight_decay=0.1, **kwargs)


def backward(model, rank, step):
    x = models.batch(step, rank)[0].to(model.head.weight.dtype)
    model(x, models.taken(rank, step)).float().square().mean().backward()


def texts_and_tensors(state):
    """As bits, by parameter and key."""
    tensors = {(i, key): value.float().numpy().tobytes() for i, entry in state["state"].items()
               for key, value in entry.items()}
    return {int(r): t for r, t in state["param_groups"][0]["pride"]["ranks"].items()}, tensors


def by_rank(method, options, dtype, steps=STEPS, start=None, lr=0.01):
    """On each of the ranks."""
    model, optimizer = make(method, options, dtype)
    rank = models.own_rank()
    if start is not None:
        model.load_state_dict(start[0])
        optimizer.load_state_dict(start[1])
    first = int(next(iter(optimizer.state.values()))["step"])
    for step in range(first, first + steps):
        optimizer.zero_grad(set_to_none=True)
        backward(model, rank, step)
        optimizer.step()
    sent = optimizer.traffic()["bytes_sent"]
    optimizer.to_common()
    optimizer.consolidate_state_dict()
    made = model.state_dict(), optimizer.state_dict(), sent
    optimizer.close()
    return made


def by_workers(method, options, dtype, steps=STEPS, start=None):
    model, optimizer = make(method, options, dtype, workers=N)
    if start is not None:
        model.load_state_dict(start[0])
        optimizer.load_state_dict(start[1])
    first = int(next(iter(optimizer.state.values()))["step"])
    for step in range(first, first + steps):
        for i in range(N):
            with optimizer.worker(i):
                backward(model, i, step)
        optimizer.step()
    made = model.state_dict(), optimizer.state_dict(), optimizer.traffic()["bytes_sent"]
    optimizer.close()
    return made


def expect_same(got, want):
    for name, value in want[0].items():
        assert torch.equal(got[0][name], value), name
    assert texts_and_tensors(got[1]) == texts_and_tensors(want[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("method, options", KINDS)
def test_have_the_bits_of_ranks(world, method, options, dtype):
    ranks = world(N).run(by_rank, method, options, dtype)
    mine = by_workers(method, options, dtype)
    expect_same(mine, ranks[0])
    if "delay" not in options:  # whose last exchange a rank has not counted
        assert mine[2] == ranks[0][2]


@pytest.mark.parametrize("method, options", KINDS)
def test_go_on_from_the_states_of_ranks_and_the_other_way_round(world, method, options):
    ranks = world(N)
    ours = by_workers(method, options, torch.float32, 3)
    theirs = ranks.run(by_rank, method, options, torch.float32, 3)[0]
    expect_same(ours, theirs)
    expected = ranks.run(by_rank, method, options, torch.float32, 3, theirs[:2])[0]
    expect_same(by_workers(method, options, torch.float32, 3, theirs[:2]), expected)
    file = io.BytesIO()
    torch.save(ours[:2], file)
    file.seek(0)
    start = torch.load(file)
    expect_same(ranks.run(by_rank, method, options, torch.float32, 3, start)[0], expected)


def test_gradients_begin_and_end_with_none():
    model, optimizer = make("dlion-vote", {}, torch.float32, workers=2)
    backward(model, 0, 0)  # of an evaluation, say: it is no worker's
    for i in range(2):
        with optimizer.worker(i):
            assert all(p.grad is None for p in model.parameters())
            backward(model, i, 0)
        assert all(p.grad is None for p in model.parameters())
    optimizer.step()
    other, same = make("dlion-vote", {}, torch.float32, workers=2)
    for i in range(2):
        with same.worker(i):
            backward(other, i, 0)
    same.step()
    assert models.bits(model.parameters()) == models.bits(other.parameters())


def test_local_steps_have_a_model_of_their_own_in_each_block():
    model, optimizer = make("diloco", {"h": 4}, torch.float32, workers=2)
    start = models.bits(model.parameters())
    seen = []
    for step in range(2):
        for i in range(2):
            with optimizer.worker(i):
                seen.append(models.bits(model.parameters()))
                backward(model, i, step)
        optimizer.step()
        assert models.bits(model.parameters()) == start, "outside of blocks: those in common"
    assert seen[0] == seen[1] == start
    assert len({start, seen[2], seen[3]}) == 3, "each worker has taken its own step"


def test_refuses_what_is_no_step():
    model, optimizer = make("dlion-vote", {}, torch.float32, workers=3)
    with optimizer.worker(2):
        backward(model, 2, 0)
    with pytest.raises(pride.InvalidArgument, match=r"worker\(2\) twice in a step"):
        with optimizer.worker(2):
            pytest.fail("the block was entered")
    with pytest.raises(pride.InvalidArgument, match=r"without the gradients of worker\(s\) 0, 1 of 3"):
        optimizer.step()
    with pytest.raises(pride.InvalidArgument, match=r"worker\(3\), there are 3"):
        with optimizer.worker(3):
            pytest.fail("the block was entered")
    with pytest.raises(ZeroDivisionError):  # hands nothing over
        with optimizer.worker(0):
            backward(model, 0, 0)
            1 / 0  # pylint: disable=pointless-statement
    for i in range(2):
        with optimizer.worker(i):
            backward(model, i, 0)
    before = models.bits(model.parameters())
    optimizer.step()
    assert models.bits(model.parameters()) != before


@pytest.mark.parametrize("settings, text", [
    (dict(workers=0), "workers = 0, must be"),
    (dict(workers=True), "workers = True, must be"),
    (dict(workers=2000), "from 1 to 1024")])
def test_refuses_settings(settings, text):
    with pytest.raises(pride.InvalidArgument, match=text):
        make("dlion-vote", {}, torch.float32, **settings)


def test_a_grad_scaler_is_refused():
    model, optimizer = make("dlion-vote", {}, torch.float32, workers=1)
    with optimizer.worker(0):
        backward(model, 0, 0)
    optimizer.found_inf = torch.zeros(1)
    with pytest.raises(pride.InvalidArgument, match="GradScaler with virtual workers"):
        optimizer.step()


def test_a_gradient_that_is_not_finite_skips_the_step_of_all_or_raises():
    model, optimizer = make("dlion-vote", {}, torch.float32, workers=2,
                            on_non_finite="skip")
    before = models.bits(model.parameters())
    for i in range(2):
        with optimizer.worker(i):
            backward(model, i, 0)
            if i == 1:
                model.head.weight.grad[0, 0] = float("nan")
    optimizer.step()
    assert models.bits(model.parameters()) == before
    assert optimizer.traffic()["last_step"]["skipped"]
    assert "on rank 1" in optimizer.traffic()["last_step"]["note"]
    model, optimizer = make("dlion-vote", {}, torch.float32, workers=1)
    state = copy.deepcopy(optimizer.state_dict())
    with optimizer.worker(0):
        backward(model, 0, 0)
        model.head.weight.grad[0, 0] = float("inf")
    with pytest.raises(pride.NonFiniteGradient, match="on rank 0"):
        optimizer.step()
    optimizer.load_state_dict(state)
    with optimizer.worker(0):
        backward(model, 0, 0)
    optimizer.step()


def test_a_load_gives_up_a_step_that_was_begun():
    model, optimizer = make("dlion-vote", {}, torch.float32, workers=2)
    state = copy.deepcopy(optimizer.state_dict())
    with optimizer.worker(0):
        backward(model, 5, 5)
    optimizer.load_state_dict(state)
    for i in range(2):
        with optimizer.worker(i):
            backward(model, i, 0)
    optimizer.step()
    other, fresh = make("dlion-vote", {}, torch.float32, workers=2)
    for i in range(2):
        with fresh.worker(i):
            backward(other, i, 0)
    fresh.step()
    assert models.bits(model.parameters()) == models.bits(other.parameters())


def test_copies_and_added_groups():
    model, optimizer = make("dlion-vote", {}, torch.float32, workers=2)
    for i in range(2):
        with optimizer.worker(i):
            backward(model, i, 0)
    optimizer.step()
    made_model, made = copy.deepcopy((model, optimizer))
    for m, o in ((model, optimizer), (made_model, made)):
        extra = torch.nn.Parameter(torch.ones(5))
        o.add_param_group({"params": [extra]})
        for i in range(2):
            with o.worker(i):
                backward(m, i, 1)
                (extra.sum() * (i + 1)).backward()
        o.step()
        assert not torch.equal(extra.detach(), torch.ones(5))
    assert models.bits(model.parameters()) == models.bits(made_model.parameters())
    assert texts_and_tensors(optimizer.state_dict()) == texts_and_tensors(made.state_dict())


def test_take_over_makes_them():
    """The same steps as of an optimizer made by hand, in the units of the AdamW."""
    model, other = models.mlp(), models.mlp()
    given = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    taken = pride.take_over(given, model, workers=2)
    assert type(taken) is pride.VirtualWorkers
    by_hand = pride.VirtualWorkers(other.named_parameters(), lr=3e-3 * (1 / 3), method="dlion-vote",
                                   weight_decay=0.1 / (1 / 3), workers=2)
    for m, optimizer in ((model, taken), (other, by_hand)):
        for i in range(2):
            with optimizer.worker(i):
                models.loss_of(m, *models.batch(0, i)).backward()
        optimizer.step()
    assert models.bits(model.parameters()) == models.bits(other.parameters())


@pytest.mark.parametrize("method, options", KINDS, ids=str)
def test_a_pickle_goes_on(method, options):
    model, optimizer = make(method, options, torch.float32, workers=2)

    def step(m, o, number):
        for i in range(2):
            with o.worker(i):
                backward(m, i, number)
        o.step()

    step(model, optimizer, 0)
    model_too, too = pickle.loads(pickle.dumps((model, optimizer)))
    for m, o in ((model, optimizer), (model_too, too)):
        step(m, o, 1)
        step(m, o, 2)
    assert models.bits(model.parameters()) == models.bits(model_too.parameters())
    assert texts_and_tensors(optimizer.state_dict()) == texts_and_tensors(too.state_dict())


def test_the_state_between_the_blocks_of_workers_is_refused():
    model, optimizer = make("dlion-vote", {}, torch.float32, workers=2)
    with optimizer.worker(1):
        backward(model, 1, 0)
    for call in (optimizer.state_dict, lambda: copy.deepcopy(optimizer)):
        with pytest.raises(pride.InvalidArgument, match="between the blocks of workers"):
            call()
    with optimizer.worker(0):
        backward(model, 0, 0)
    optimizer.step()
    optimizer.consolidate_state_dict()  # as a script does that is also for ranks
    assert {"m.rank0", "m.rank1"} <= set(optimizer.state_dict()["state"][0])


def test_take_over_without_workers_makes_an_optimizer_of_ranks():
    model = models.mlp()
    taken = pride.take_over(torch.optim.AdamW(model.parameters()), model, workers=None, coordinator=None)
    assert type(taken) is pride.Optimizer
