"""Optimizers with the names of their methods."""
# SPDX-License-Identifier: Apache-2.0
from typing import Any, Iterable, Tuple

from .errors import check_one_of
from .optimizer import Optimizer


class DistributedLion(Optimizer):
    """Distributed Lion: ranks vote with the sign of their own Lion update.

    Liu et al. 2024, Algorithm 1 (arXiv:2404.00438): ``"vote"`` takes the majority, ``"average"``
    the mean of the signs. Sends one bit a parameter up and one
    (``"vote"``) or about log2(N + 1) (``"average"``) down, each (N - 1) / N times; see
    ``optimizer.traffic()``. The arguments are those of :class:`Optimizer`.
    """

    def __init__(self, params: Iterable, lr: float = 1e-4,
                 betas: Tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0, *,
                 aggregation: str = "vote", **kwargs: Any) -> None:
        methods = {"vote": "dlion-vote", "average": "dlion-avg"}
        check_one_of("aggregation", aggregation, methods)
        super().__init__(params, lr, betas, None, weight_decay, method=methods[aggregation],
                         **kwargs)


class Lion(Optimizer):
    """Lion (Chen et al. 2023) on the mean gradient of all ranks, which is exchanged in float32."""

    _METHOD = "lion"

    def __init__(self, params: Iterable, lr: float = 1e-4,
                 betas: Tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0,
                 **kwargs: Any) -> None:
        super().__init__(params, lr, betas, None, weight_decay, method=self._METHOD, **kwargs)


class LionCub(Lion):
    """Lion Cub (arXiv:2411.16462): votes of few bits, momenta synchronised."""

    _METHOD = "lion-cub"
