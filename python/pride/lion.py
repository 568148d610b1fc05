"""Optimizers with the names of their methods."""
# SPDX-License-Identifier: Apache-2.0
from typing import Any, Iterable, Tuple

from .errors import check_one_of
from .optimizer import Optimizer


class DistributedLion(Optimizer):
    """Distributed Lion: ranks vote with the sign of their own Lion update.

    Liu et al. 2024, Algorithm 1 (arXiv:2404.00438). ``aggregation``: ``"vote"``, the majority of
    the signs, or ``"average"``, their mean. Bits that a rank sends per parameter, each times
    (N - 1) / N: 1 up; down 1 (vote) or about log2(N + 1) (average); see ``optimizer.traffic()``.
    Other arguments: :class:`Optimizer`.
    """

    def __init__(self, params: Iterable, lr: float = 1e-4,
                 betas: Tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0, *,
                 aggregation: str = "vote", **kwargs: Any) -> None:
        methods = {"vote": "dlion-vote", "average": "dlion-avg"}
        check_one_of("aggregation", aggregation, methods)
        super().__init__(params, lr, betas, None, weight_decay, method=methods[aggregation],
                         **kwargs)


class Lion(Optimizer):
    """Lion (Chen et al. 2023) on the mean gradient of all ranks; gradients travel in float32."""

    _METHOD = "lion"

    def __init__(self, params: Iterable, lr: float = 1e-4,
                 betas: Tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0,
                 **kwargs: Any) -> None:
        super().__init__(params, lr, betas, None, weight_decay, method=self._METHOD, **kwargs)


class LionCub(Lion):
    """Lion Cub (arXiv:2411.16462): ranks send few bits per parameter and synchronise momenta."""

    _METHOD = "lion-cub"
