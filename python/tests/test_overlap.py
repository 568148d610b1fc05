# Exchanges beside backward: misuse is an error on all ranks, and no bit is changed.
# SPDX-License-Identifier: Apache-2.0
#
# Oracle: the same training without overlap. Errors are looked for on all ranks, long before the
# optimizer's time-out.
import contextlib
import time

import pytest
import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint

import models
import pride
from models import Branches, backward_of_branches, ended, inputs, make, taken

SOON = 10  # errors of one rank reach the others within this time


def misused(how, culprit):
    """Two good steps and three with overlap, then one rank's mistake: (text, seconds, next)."""
    rank = dist.get_rank()
    model, optimizer = make(model=Branches(), overlap=True)

    def backward(step):
        optimizer.zero_grad(set_to_none=True)
        backward_of_branches(model, step, taken(rank, step))

    for step in range(5):
        backward(step)
        optimizer.step()
    begin, text = time.monotonic(), None
    try:
        if rank == culprit:
            how(model, optimizer, backward)
        else:
            backward(5)
        optimizer.step()
    except (RuntimeError, ValueError, TypeError, KeyError) as error:
        text = f"{type(error).__name__}: {error}"
    seconds = time.monotonic() - begin
    after = None
    try:
        backward(6)
        optimizer.step()
    except pride.Error as error:
        after = str(error)
    optimizer.close()
    return text, seconds, after


def captured():
    """Backward, step() and check_replicas() in the capture of a CUDA graph, then a step: texts and
    whether the step moved the model."""
    model, optimizer = make(model=Branches(), overlap=True)
    texts = []
    for step in range(4):
        pride._device.is_capturing = lambda: True
        for call in (lambda: backward_of_branches(model, step, (True, True)), optimizer.step,
                     optimizer.check_replicas):
            try:
                call()
                texts.append("not refused")
            except pride.InvalidArgument as error:
                texts.append(str(error))
        pride._device.is_capturing = lambda: False
        optimizer.zero_grad(set_to_none=True)
        before = model.head.weight.detach().clone()
        backward_of_branches(model, step, (True, True))
        optimizer.step()
        texts.append("moved" if (before != model.head.weight).any() else "not moved")
    optimizer.check_replicas()
    optimizer.close()
    return texts


def test_a_capture_in_a_cuda_graph_is_refused_and_changes_nothing(world):
    for texts in world(2).run(captured):
        for i, text in enumerate(texts):
            assert text == "moved" if i % 4 == 3 else "Capture forward and backward" in text, text


def second_backward(model, optimizer, backward):
    backward(5)
    backward_of_branches(model, 6, (True, True))


def clip_by_torch(model, optimizer, backward):
    backward(5)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)


def clip_by_pride(model, optimizer, backward):
    backward(5)
    pride.clip_grad_norm_(optimizer, 1e-3)


def replace_gradient(model, optimizer, backward):
    backward(5)
    model.head.weight.grad = torch.ones_like(model.head.weight)


def drop_gradient(model, optimizer, backward):
    backward(5)
    model.head.weight.grad = None


def replace_memory(model, optimizer, backward):
    backward(5)
    model.head.weight.data = model.head.weight.data.clone()


def sparse_gradient(model, optimizer, backward):
    """Not from backward: of a parameter that backward does not reach."""
    backward(5)
    model.branches[1].weight.grad = torch.eye(16).to_sparse()


def other_rate(model, optimizer, backward):
    optimizer.param_groups[0]["lr"] = 0.5
    backward(5)


def rate_nan(model, optimizer, backward):
    optimizer.param_groups[0]["lr"] = float("nan")
    backward(5)


def check_in_between(model, optimizer, backward):
    backward(5)
    optimizer.check_replicas()


def raise_and_retry(model, optimizer, backward):
    with contextlib.suppress(KeyError):
        raise_in_backward(model)
    backward(5)


def raise_and_close(model, optimizer, backward):
    try:
        raise_in_backward(model)
    finally:
        optimizer.close()


class Raises(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise KeyError("in the middle of backward")


def raise_in_backward(model):
    """After the head's gradients are complete, before those of the trunk."""
    x = torch.relu(model.trunk(inputs(5)))
    model.head(Raises.apply(x)).pow(2).sum().backward()


# what the culprit does, what its own error says, what that of the others says
MISUSES = [
    (second_backward, "of a GAN's generator) belongs there", "second gradient before step"),
    (clip_by_torch, "was changed after backward", "changed"),
    (clip_by_pride, "use overlap=False", "overlap=True"),
    (replace_gradient, "gradient of head.weight was changed", "changed"),
    (replace_memory, "memory of a parameter was replaced", "memory of a parameter"),
    (drop_gradient, "gradient of head.weight was changed", "changed"),
    (sparse_gradient, "branches.1.weight is sparse", "sparse"),
    (other_rate, "", ""),
    (rate_nan, "lr of group 0 = nan", "lr of group 0 = nan"),
    (check_in_between, "check_replicas() between backward and step()", "between backward"),
    (raise_and_retry, "a second or repeated backward", "repeated backward"),
    (raise_and_close, "in the middle of backward", "closed in the middle of a step"),
]


@pytest.mark.parametrize("how, own, others", MISUSES, ids=lambda v: getattr(v, "__name__", ""))
@pytest.mark.parametrize("n, culprit", [(3, 0)])
def test_a_misuse_of_overlap_is_an_error_on_all_ranks(world, n, culprit, how, own, others):
    results = world(n).run(misused, how, culprit)
    for rank, (text, seconds, after) in enumerate(results):
        assert text is not None, f"rank {rank} saw no error"
        assert (own if rank == culprit else others) in text, f"rank {rank}: {text}"
        if rank != culprit:
            assert text.startswith(("CommError", "InvalidArgument")), text
        assert seconds < SOON, f"rank {rank} after {seconds:.1f} s: {text}"
        assert after is not None, f"rank {rank} goes on after: {text}"


def retried(overlap, raises=True):
    """A backward that raises on one rank is repeated there; with overlap inside no_sync()."""
    model, optimizer = make(model=Branches(), overlap=overlap)
    for step in range(6):
        optimizer.zero_grad(set_to_none=True)
        if raises and step == 4 and dist.get_rank() == 1:
            with contextlib.suppress(KeyError), optimizer.no_sync():
                raise_in_backward(model)
            optimizer.zero_grad(set_to_none=True)
        backward_of_branches(model, step, (True, True))
        optimizer.step()
    return ended(model, optimizer)


def test_a_backward_that_raised_may_be_repeated(world):
    expected = world(2).run(retried, False, False)
    for overlap in (False, True):
        assert world(2).run(retried, overlap) == expected


def clip_that_changes_nothing(overlap):
    model, optimizer = make(overlap=overlap)
    for step in range(5):
        optimizer.zero_grad(set_to_none=True)
        models.backward(model, step)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e6)  # times 1.0, in place
        optimizer.step()
    return ended(model, optimizer)


def test_clipping_with_overlap_is_refused_even_where_it_changes_no_value(world):
    assert len(set(world(2).run(clip_that_changes_nothing, False))) == 1
    for kind, text in world(2).errors(clip_that_changes_nothing, True):
        assert issubclass(kind, pride.Error)
        assert "changed after" in text


def ranks_without_gradients(overlap, maximize=False):
    """In each step some rank has no gradient at all, and in one no rank has."""
    rank, n = dist.get_rank(), dist.get_world_size()
    model, optimizer = make(model=Branches(), overlap=overlap, maximize=maximize)
    for step in range(3 * n + 3):
        optimizer.zero_grad(set_to_none=True)
        if step % n != rank and step != 2 * n:
            backward_of_branches(model, step, taken(rank, step))
        optimizer.step()
    return ended(model, optimizer)


@pytest.mark.parametrize("n", [2, 3])
def test_overlap_where_ranks_have_no_gradients(world, n):
    for maximize in (False, True):
        expected = world(n).run(ranks_without_gradients, False, maximize)
        assert world(n).run(ranks_without_gradients, True, maximize) == expected
        assert len(set(expected)) == 1


def by_closure(overlap, closure, checkpointed):
    model, optimizer = make(overlap=overlap)

    def loss_of(step):
        optimizer.zero_grad(set_to_none=True)
        x, y = models.batch(step)
        x.requires_grad_(checkpointed)
        h = checkpoint(model[:2], x) if checkpointed else model[:2](x)
        loss = torch.nn.functional.cross_entropy(model[2](h), y)
        loss.backward()
        return loss.item()

    losses = []
    for step in range(5):
        if closure:
            losses.append(optimizer.step(lambda: loss_of(step)))
        else:
            losses.append(loss_of(step))
            optimizer.step()
    return ended(model, optimizer), losses


def test_closures_and_checkpointed_activations_with_overlap(world):
    expected = world(2).run(by_closure, False, False, False)
    for arguments in ((True, True, False), (True, False, True), (False, True, True)):
        assert world(2).run(by_closure, *arguments) == expected, arguments


def in_turn(overlap):
    """A generator and a discriminator: each backward also reaches the other's parameters."""
    rank = dist.get_rank()
    torch.manual_seed(5)
    generator, critic = torch.nn.Linear(4, 12), Branches()
    options = dict(lr=1e-2, overlap=overlap, bucket_size=64, timeout=30)
    of_generator = pride.DistributedLion(generator.parameters(), **options)
    of_critic = pride.DistributedLion(critic.parameters(), **options)
    for step in range(6):
        noise = torch.randn(8, 4, generator=torch.Generator().manual_seed(100 * rank + step))
        of_critic.zero_grad(set_to_none=True)
        fake = generator(noise)
        (critic(fake.detach(), (True, True)).sum() -
         critic(inputs(step), (True, False)).sum()).backward()
        of_critic.step()
        of_generator.zero_grad(set_to_none=True)
        with of_critic.no_sync():
            (-critic(generator(noise), (True, True)).pow(2).sum()).backward()
        of_generator.step()
    for optimizer in (of_generator, of_critic):
        optimizer.check_replicas()
        optimizer.close()
    return models.bits(list(generator.parameters()) + list(critic.parameters()))


@pytest.mark.parametrize("n", [2, 3])
def test_two_optimizers_in_turn_with_overlap(world, n):
    expected = world(n).run(in_turn, False)
    assert len(set(expected)) == 1
    assert world(n).run(in_turn, True) == expected


def released(method, release, options):
    """(Weights and state, gradients that backward left in each step)."""
    model, optimizer = make(method=method, overlap=True, release_gradients=release, options=options)
    left = []
    for step in range(6):
        optimizer.zero_grad()
        models.backward(model, step)
        left.append(sum(p.grad is not None for p in model.parameters()))
        optimizer.step()
    return models.whole(model, optimizer), left


@pytest.mark.parametrize("method,options,releases", [
    ("dlion-vote", {}, True), ("dlion-avg", {}, True), ("signsgd-ef", {}, False),
    ("local-vote", {"h": 2}, False)])
def test_gradients_are_released_once_they_are_encoded(world, method, options, releases):
    kept = world(2).run(released, method, False, options)
    freed = world(2).run(released, method, True, options)
    assert [whole for whole, _ in freed] == [whole for whole, _ in kept]
    for (_, some), (_, all_of_them) in zip(freed, kept):
        assert some[:2] == all_of_them[:2]  # the first steps are compared as a whole
        assert (some[-1] == 0) == releases and all_of_them[-1] > 0


def test_releasing_needs_overlap():
    with pytest.raises(pride.InvalidArgument, match="release_gradients=True needs overlap=True"):
        make(release_gradients=True)
