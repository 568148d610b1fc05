# Gradients of each rank's own batch: under DDP, accumulated, beside backward, and misused.
# SPDX-License-Identifier: Apache-2.0
#
# Oracle: the same training with a plain module, without DDP and without overlap. Errors are looked
# for on all ranks, long before the optimizer's time-out.
import contextlib
import gc
import time
import weakref

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import models
import pride
from pride import _hooks

TIMEOUT = 30   # of the optimizers here, in seconds
SOON = 10      # errors of one rank reach the others within this time


def own_batch(step, rank=None):
    g = torch.Generator().manual_seed(1000 * (dist.get_rank() if rank is None else rank) + step)
    return torch.randn(8, 12, generator=g)


class Branches(torch.nn.Module):
    """A trunk and two branches, which forward takes or not."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.trunk = torch.nn.Linear(12, 16)
        self.branches = torch.nn.ModuleList([torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)])
        self.head = torch.nn.Linear(16, 3)

    def forward(self, x, taken):
        x = torch.relu(self.trunk(x))
        for branch, used in zip(self.branches, taken):
            if used:
                x = x + torch.relu(branch(x))
        return self.head(x)


def taken(rank, step):
    """Branch 0: by some ranks only; branch 1: by all in some steps, by none in the others."""
    return (step + rank) % 3 != 0, step % 2 == 0


def run_branches(ddp, overlap):
    rank = dist.get_rank()
    model = Branches()
    if ddp:
        model = pride.local_gradients(DistributedDataParallel(model, find_unused_parameters=True))
    optimizer = pride.DistributedLion(model.parameters(), 1e-2, weight_decay=0.1, overlap=overlap,
                                      bucket_size=64, timeout=TIMEOUT)
    for step in range(7):
        optimizer.zero_grad(set_to_none=True)
        model(own_batch(step), taken(rank, step)).pow(2).sum().backward()
        optimizer.step()
    state = [v.clone() for p in model.parameters() for k, v in optimizer.state[p].items()]
    optimizer.check_replicas()
    optimizer.close()
    return models.bits(model.parameters()), models.bits(state)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_ddp_with_unused_parameters_has_the_bits_of_a_plain_module(world, n):
    expected = world(n).run(run_branches, False, False)
    assert len({weights for weights, _ in expected}) == 1
    for overlap in (False, True):
        assert world(n).run(run_branches, True, overlap) == expected, f"overlap {overlap}"
    assert world(n).run(run_branches, False, True) == expected, "plain, with overlap"


def wrapped_twice():
    """As run_branches(True, False), in a second DDP around the same module."""
    model = Branches()
    ddp = pride.local_gradients(DistributedDataParallel(model, find_unused_parameters=True))
    ddp = pride.local_gradients(DistributedDataParallel(model, find_unused_parameters=True))
    gc.collect()
    optimizer = pride.DistributedLion(ddp.parameters(), 1e-2, weight_decay=0.1, bucket_size=64,
                                      timeout=TIMEOUT)
    for step in range(7):
        optimizer.zero_grad(set_to_none=True)
        ddp(own_batch(step), taken(dist.get_rank(), step)).pow(2).sum().backward()
        optimizer.step()
    optimizer.close()
    return models.bits(model.parameters())


def test_a_second_ddp_around_the_module_counts_unused_parameters_too(world):
    expected = [weights for weights, _ in world(2).run(run_branches, False, False)]
    assert world(2).run(wrapped_twice) == expected


@pytest.mark.parametrize("overlap", [False, True])
def test_ddp_whose_gradients_are_views_of_its_buckets(world, overlap):
    for to_none in (True, False):
        got = world(2).run(run_views, overlap, to_none)
        assert got == world(2).run(run_views, overlap, to_none, False), f"to_none {to_none}"


def run_views(overlap, to_none, ddp=True):
    """All parameters are used; gradients are DDP's views of its buckets."""
    model = models.mlp()
    if ddp:
        model = pride.local_gradients(DistributedDataParallel(model, gradient_as_bucket_view=True))
    optimizer = pride.DistributedLion(model.parameters(), 1e-2, overlap=overlap, bucket_size=64,
                                      timeout=TIMEOUT)
    for step in range(6):
        optimizer.zero_grad(set_to_none=to_none)
        models.backward(model, dist.get_rank(), step)
        optimizer.step()
    optimizer.close()
    return models.bits(model.parameters())


def discarded(ddp):
    """A batch that reaches both branches is given up; the next one reaches none."""
    model = Branches()
    if ddp:
        model = pride.local_gradients(DistributedDataParallel(model, find_unused_parameters=True))
    optimizer = pride.DistributedLion(model.parameters(), 1e-2, bucket_size=64, timeout=TIMEOUT)
    for step in range(4):
        for use in ((True, True), (step == 0, False)):
            optimizer.zero_grad()
            model(own_batch(step), use).pow(2).sum().backward()
        if not ddp:  # a plain module keeps zeros where DDP's zeros count as unused
            for p in model.branches[1].parameters():
                p.grad = None
            if step:
                for p in model.branches[0].parameters():
                    p.grad = None
        optimizer.step()
    optimizer.close()
    return models.bits(model.parameters())


def test_gradients_that_were_zeroed_before_the_step_are_unused(world):
    assert world(2).run(discarded, True) == world(2).run(discarded, False)


def accumulated(ddp, overlap):
    """Three backwards a step; in the last one some parameters are not used any more."""
    rank = dist.get_rank()
    model = Branches()
    if ddp:
        model = pride.local_gradients(DistributedDataParallel(model, find_unused_parameters=True))
    optimizer = pride.DistributedLion(model.parameters(), 1e-2, overlap=overlap, bucket_size=64,
                                      timeout=TIMEOUT)
    for step in range(5):
        optimizer.zero_grad(set_to_none=True)
        for part in range(3):
            with contextlib.ExitStack() as stack:
                if part < 2:
                    stack.enter_context(optimizer.no_sync())
                    if ddp:
                        stack.enter_context(model.no_sync())
                use = (part == 0 and rank == 0, part == 1)
                model(own_batch(3 * step + part), use).pow(2).sum().backward()
        optimizer.step()
    optimizer.close()
    return models.bits(model.parameters())


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
    optimizer = pride.DistributedLion(model.parameters(), 1e-2, equal_gradients=policy,
                                      timeout=TIMEOUT)
    text = None
    for step in range(3):
        optimizer.zero_grad()
        rank = 0 if kind == "same data" else dist.get_rank()
        models.backward(used, rank, step)
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
    optimizer = pride.DistributedLion([p, other], 1e-2, timeout=TIMEOUT)
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


def references():
    """Whether models and optimizers are freed when the caller drops them."""
    def make():
        model = pride.local_gradients(DistributedDataParallel(models.mlp()))
        optimizer = pride.DistributedLion(model.parameters(), 1e-2, overlap=True, timeout=TIMEOUT)
        for step in range(4):
            optimizer.zero_grad()
            models.backward(model, dist.get_rank(), step)
            optimizer.step()
        return (weakref.ref(model), weakref.ref(optimizer),
                weakref.ref(model.module[0].weight))

    gc.collect()
    held = len(_hooks._watched)
    made = make()
    gc.collect()
    return [ref() is None for ref in made], len(_hooks._watched) - held


def test_models_and_optimizers_are_freed(world):
    for freed, left in world(2).run(references):
        assert freed == [True, True, True]
        assert left <= 0


# --- Clipping and averages. -----------------------------------------------------------------------


def clipped(how):
    rank = dist.get_rank()
    model = models.mlp()
    optimizer = pride.DistributedLion(model.parameters(), 1e-2, timeout=TIMEOUT)
    norms = []
    for step in range(4):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        models.backward(model, rank, step)
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
    optimizer.close()
    return models.bits(model.parameters()), norms


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


# --- Overlap: errors reach all ranks. -------------------------------------------------------------


def misused(how, culprit):
    """Two good steps and three with overlap, then one rank's mistake: (text, seconds, next)."""
    rank = dist.get_rank()
    model = Branches()
    optimizer = pride.DistributedLion([(n, p) for n, p in model.named_parameters()], 1e-2,
                                      overlap=True, bucket_size=64, timeout=TIMEOUT)

    def backward(step):
        optimizer.zero_grad(set_to_none=True)
        model(own_batch(step), taken(rank, step)).pow(2).sum().backward()

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


def second_backward(model, optimizer, backward):
    backward(5)
    model(own_batch(6), (True, True)).pow(2).sum().backward()


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
    x = torch.relu(model.trunk(own_batch(5)))
    model.head(Raises.apply(x)).pow(2).sum().backward()


# what the culprit does, what its own error says, what that of the others says
MISUSES = [
    (second_backward, "second gradient before step", "second gradient before step"),
    (clip_by_torch, "was changed after backward", "changed"),
    (clip_by_pride, "use overlap=False", "overlap=True"),
    (replace_gradient, "gradient of head.weight was changed", "changed"),
    (drop_gradient, "gradient of head.weight was changed", "changed"),
    (sparse_gradient, "branches.1.weight is sparse", "sparse"),
    (other_rate, "", ""),
    (rate_nan, "lr of group 0 is NaN", "lr of group 0 is NaN"),
    (check_in_between, "check_replicas() between backward and step()", "between backward"),
    (raise_and_retry, "backward or of one that was repeated", "one that was repeated"),
    (raise_and_close, "in the middle of backward", "closed in the middle of a step"),
]


@pytest.mark.parametrize("how, own, others", MISUSES, ids=lambda v: getattr(v, "__name__", ""))
@pytest.mark.parametrize("n, culprit", [(2, 1), (3, 0)])
def test_a_misuse_of_overlap_is_an_error_on_all_ranks(world, n, culprit, how, own, others):
    results = world(n).run(misused, how, culprit)
    for rank, (text, seconds, after) in enumerate(results):
        assert text is not None, f"rank {rank} saw no error"
        assert (own if rank == culprit else others) in text, f"rank {rank}: {text}"
        if rank != culprit:
            assert text.startswith("CommError") or how is other_rate, text
        assert seconds < SOON, f"rank {rank} after {seconds:.1f} s: {text}"
        assert after is not None, f"rank {rank} goes on after: {text}"


def retried(overlap):
    """A backward that raises on one rank is repeated there; with overlap inside no_sync()."""
    rank = dist.get_rank()
    model = Branches()
    optimizer = pride.DistributedLion(model.parameters(), 1e-2, overlap=overlap, bucket_size=64,
                                      timeout=TIMEOUT)
    for step in range(6):
        optimizer.zero_grad(set_to_none=True)
        if step == 4 and rank == 1:
            with contextlib.suppress(KeyError), optimizer.no_sync():
                raise_in_backward(model)
            optimizer.zero_grad(set_to_none=True)
        model(own_batch(step), (True, True)).pow(2).sum().backward()
        optimizer.step()
    optimizer.close()
    return models.bits(model.parameters())


def test_a_backward_that_raised_may_be_repeated(world):
    expected = world(2).run(run_all_used)
    for overlap in (False, True):
        assert world(2).run(retried, overlap) == expected


def run_all_used():
    model = Branches()
    optimizer = pride.DistributedLion(model.parameters(), 1e-2, bucket_size=64, timeout=TIMEOUT)
    for step in range(6):
        optimizer.zero_grad(set_to_none=True)
        model(own_batch(step), (True, True)).pow(2).sum().backward()
        optimizer.step()
    optimizer.close()
    return models.bits(model.parameters())


def clip_that_changes_nothing(overlap, to_none=True):
    model = models.mlp()
    optimizer = pride.DistributedLion(model.parameters(), 1e-2, overlap=overlap, bucket_size=64,
                                      timeout=TIMEOUT)
    for step in range(5):
        optimizer.zero_grad(set_to_none=to_none)
        models.backward(model, dist.get_rank(), step)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e6)  # times 1.0, in place
        optimizer.step()
    optimizer.close()
    return models.bits(model.parameters())


def test_clipping_with_overlap_is_refused_even_where_it_changes_no_value(world):
    assert len(set(world(2).run(clip_that_changes_nothing, False))) == 1
    for kind, text in world(2).errors(clip_that_changes_nothing, True):
        assert issubclass(kind, pride.Error)
        assert "changed after" in text


def ranks_without_gradients(overlap, maximize=False):
    """In each step some rank has no gradient at all, and in one no rank has."""
    rank, n = dist.get_rank(), dist.get_world_size()
    model = Branches()
    optimizer = pride.DistributedLion(model.parameters(), 1e-2, overlap=overlap, bucket_size=64,
                                      maximize=maximize, timeout=TIMEOUT)
    for step in range(3 * n + 3):
        optimizer.zero_grad(set_to_none=True)
        if step % n != rank and step != 2 * n:
            model(own_batch(step), taken(rank, step)).pow(2).sum().backward()
        optimizer.step()
    optimizer.close()
    return models.bits(model.parameters())


@pytest.mark.parametrize("n", [2, 3])
def test_overlap_where_ranks_have_no_gradients(world, n):
    for maximize in (False, True):
        expected = world(n).run(ranks_without_gradients, False, maximize)
        assert world(n).run(ranks_without_gradients, True, maximize) == expected
        assert len(set(expected)) == 1


def by_closure(overlap, closure, checkpointed):
    rank = dist.get_rank()
    model = models.mlp()
    optimizer = pride.DistributedLion(model.parameters(), 1e-2, overlap=overlap, bucket_size=64,
                                      timeout=TIMEOUT)

    def loss_of(step):
        optimizer.zero_grad(set_to_none=True)
        x, y = models.batch(rank, step)
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
    optimizer.close()
    return models.bits(model.parameters()), losses


def test_closures_and_checkpointed_activations_with_overlap(world):
    expected = world(2).run(by_closure, False, False, False)
    for arguments in ((True, True, False), (True, False, True), (False, True, True)):
        assert world(2).run(by_closure, *arguments) == expected, arguments


def in_turn(overlap):
    """A generator and a discriminator: each backward also reaches the other's parameters."""
    rank = dist.get_rank()
    torch.manual_seed(5)
    generator, critic = torch.nn.Linear(4, 12), Branches()
    options = dict(lr=1e-2, overlap=overlap, bucket_size=64, timeout=TIMEOUT)
    of_generator = pride.DistributedLion(generator.parameters(), **options)
    of_critic = pride.DistributedLion(critic.parameters(), **options)
    for step in range(6):
        noise = torch.randn(8, 4, generator=torch.Generator().manual_seed(100 * rank + step))
        of_critic.zero_grad(set_to_none=True)
        fake = generator(noise)
        (critic(fake.detach(), (True, True)).sum() -
         critic(own_batch(step), (True, False)).sum()).backward()
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
