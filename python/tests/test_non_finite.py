# Gradients that are not finite, without a scaler: an error or a skipped step on all ranks.
# SPDX-License-Identifier: Apache-2.0
#
# Oracle: the run that leaves the step out.
import pytest
import torch.distributed as dist

import models
import pride
from models import whole


def not_finite(policy, overlap, value, culprit, recover=False):
    """Step 3 has a NaN or Inf on one rank: (text of the error, weights, steps, skipped)."""
    rank = dist.get_rank()
    model, optimizer = models.make(weight_decay=0.1, overlap=overlap, on_non_finite=policy)
    texts, untouched = [], None
    for step in range(6):
        if step == 3:
            saved = ({k: v.clone() for k, v in model.state_dict().items()}, optimizer.state_dict())
            before = models.bits(model.parameters())
        optimizer.zero_grad(set_to_none=True)
        x, y = models.batch(step)
        if step == 3 and rank == culprit:
            x[2, 5] = value
        try:
            models.loss_of(model, x, y).backward()  # overlap begins the step
            optimizer.step()
        except (pride.NonFiniteGradient, pride.InvalidArgument) as error:
            texts.append((type(error).__name__, str(error)))
            if recover:
                model.load_state_dict(saved[0])
                optimizer.load_state_dict(saved[1])
        if step == 3:
            untouched = models.bits(model.parameters()) == before
    if not texts or recover:
        optimizer.check_replicas()
    traffic = optimizer.traffic()
    result = whole(model, optimizer)
    optimizer.close()
    return texts, untouched, (traffic["steps"], traffic["skipped"]), result


def without_step_3():
    model, optimizer = models.make(weight_decay=0.1)
    models.train(model, optimizer, 3)
    models.train(model, optimizer, 2, first=4)
    optimizer.check_replicas()
    result = whole(model, optimizer)
    optimizer.close()
    return result


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("n", [1, 3])
def test_a_nan_on_one_rank_raises_on_all(world, n, overlap):
    results = world(n).run(not_finite, "raise", overlap, float("nan"), n - 1)
    assert len({texts[0] for texts, _, _, _ in results}) == 1
    for texts, _, counts, _ in results:
        kinds = [kind for kind, _ in texts]
        assert kinds[0] == "NonFiniteGradient" and len(texts) == 3
        assert texts[0][1].startswith("step 4: NaN or Inf in the gradient of '"), texts[0]
        assert texts[0][1].endswith(f"on rank {n - 1}"), texts[0]
        assert all("load a state to go on" in text for _, text in texts[1:]), texts
        assert counts == (3, 0)


@pytest.mark.parametrize("overlap", [False, True])
def test_after_a_nan_a_loaded_state_goes_on_as_if_the_step_had_not_been(world, overlap):
    results = world(2).run(not_finite, "raise", overlap, float("inf"), 0, True)
    expected = world(2).run(without_step_3)
    for (texts, untouched, counts, result), other in zip(results, expected):
        assert len(texts) == 1 and untouched and counts == (5, 0)
        assert result == other


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
@pytest.mark.parametrize("n", [1, 3])
def test_a_step_that_is_not_finite_is_skipped_on_all(world, n, value, overlap):
    results = world(n).run(not_finite, "skip", overlap, value, 0)
    assert len({result[0] for _, _, _, result in results}) == 1
    for texts, untouched, counts, (weights, _) in results:
        assert texts == [] and untouched and counts == (5, 1)
        assert b"\x00\x00\xc0\x7f" not in weights
