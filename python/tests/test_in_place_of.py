# The optimizer that the objects for frameworks make in place of another: rates, decays, schedulers.
# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

import pride
from pride import _frameworks


def test_groups_of_an_optimizer_that_is_taken_over_keep_their_ratios():
    def rates(schedulers=lambda given: [], usual=1e-3, **arguments):
        """Rates and decays in the groups, the factors on both, and the scheduler's highest rate."""
        model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
        groups = [{"params": [model[0].weight], "lr": 2e-3}, {"params": [model[1].weight]},
                  {"params": [model[0].bias, model[1].bias], "weight_decay": 0.0}]
        given = torch.optim.AdamW(groups, lr=usual, weight_decay=0.1)
        of_given = schedulers(given)
        made = _frameworks.in_place_of(given, model, pride.DistributedLion, arguments, of_given)
        assert [slot.name for slot in made._parameters.slots] == ["0.weight", "1.weight", "0.bias", "1.bias"]
        for scheduler in of_given:
            scheduler.step()
        return [pytest.approx((group["lr"], group["weight_decay"], group["pride_lr_scale"],
                               group["pride_weight_decay_scale"])) for group in made.param_groups]

    third = (1 / 3, 3.0)
    assert rates() == [(2e-3, 0.1, *third), (1e-3, 0.1, *third), (1e-3, 0.0, *third)]
    assert rates(weight_decay=1.0) == [(2e-3, 1.0, 1 / 3, 1.0), (1e-3, 1.0, 1 / 3, 1.0),
                                       (1e-3, 0.0, *third)]
    assert rates(lr=1e-4, weight_decay=1.0) == [(2e-4, 1.0, 1.0, 1.0), (1e-4, 1.0, 1.0, 1.0),
                                                (1e-4, 0.0, 1.0, 1.0)]
    assert rates(lr=1e-4) == [(2e-4, 1.0, 1.0, 1.0), (1e-4, 1.0, 1.0, 1.0), (1e-4, 0.0, 1.0, 1.0)]
    half = [(1e-4, 1.0, 1.0, 1.0), (5e-5, 1.0, 1.0, 1.0), (5e-5, 0.0, 1.0, 1.0)]
    schedulers = torch.optim.lr_scheduler
    for make in (lambda o: [schedulers.LambdaLR(o, lambda step: step / 2)],
                 lambda o: [schedulers.StepLR(o, 1, 0.5)],
                 lambda o: [schedulers.SequentialLR(o, [schedulers.ConstantLR(o, 0.5, 9)], [])],
                 lambda o: [schedulers.CosineAnnealingLR(o, 2, 0.0)]):
        assert rates(make, lr=1e-4) == half
    unknown = [(0.0, 0.1, 0.1, 10.0)] * 2 + [(0.0, 0.0, 0.1, 10.0)]  # by a factor
    assert rates(lambda o: schedulers.LambdaLR(o, lambda step: 0.0) and [], lr=1e-4) == unknown


def test_an_optimizer_of_prides_is_used_unchanged():
    model = torch.nn.Linear(3, 2)
    own = pride.DistributedLion(model.parameters())
    assert _frameworks.in_place_of(own, model, pride.Lion, {}) is own
    with pytest.raises(pride.InvalidArgument, match="is a DistributedLion already"):
        _frameworks.in_place_of(own, model, pride.Lion, {"lr": 1e-4})
