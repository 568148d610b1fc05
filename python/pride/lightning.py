"""pride in Lightning: a strategy that replaces ``"ddp"``.

    trainer = lightning.Trainer(strategy=pride.lightning.Strategy(lr=1e-4, weight_decay=1.0), ...)
"""
# SPDX-License-Identifier: Apache-2.0
from typing import Any, Callable, Optional

from lightning.pytorch.strategies import DDPStrategy

from . import _frameworks
from .errors import InvalidArgument
from .lion import DistributedLion
from .optimizer import Optimizer

_frameworks.require("lightning", (2, 6), 2)


class Strategy(DDPStrategy):
    """Lightning's DDPStrategy without averaging.

    With ``lr`` it replaces the optimizers of ``configure_optimizers()``, e.g. an AdamW, by pride's
    over the same groups. The groups' rates keep their ratios, and a group without decay keeps none
    if others have decay. Without ``lr`` make pride's optimizers in ``configure_optimizers()``,
    preferably from ``self.named_parameters()``, so that errors name parameters. Checkpoints of
    Lightning have the momenta of all ranks. Every ``log_every_n_steps`` the trainer's loggers get
    ``pride/bytes_sent`` of the last step and ``pride/vote_agreement``, the share of this rank's own
    signs that won.

    Args:
        lr: replaces the module's rate.
        weight_decay: replaces the module's decay; with ``lr``.
        optimizer: called with groups of ``(name, parameter)`` pairs to make the optimizer.
        arguments: of DDPStrategy.

    Raises:
        InvalidArgument: ``weight_decay`` without ``lr``. When training begins: an optimizer is not
            pride's and no ``lr`` is given; an optimizer is pride's and ``lr`` is given; a scheduler
            belongs to an optimizer that is replaced.
    """

    strategy_name = "pride"

    def __init__(self, lr: Optional[float] = None, weight_decay: Optional[float] = None,
                 optimizer: Callable[..., Optimizer] = DistributedLion, **arguments: Any) -> None:
        super().__init__(**arguments)
        if weight_decay is not None and lr is None:
            raise InvalidArgument("pride: weight_decay without lr: a vote needs another rate, too")
        self._make, self._rates = optimizer, {
            key: value for key, value in (("lr", lr), ("weight_decay", weight_decay))
            if value is not None}

    def configure_ddp(self) -> None:
        """Wraps the model and turns averaging off before the first backward."""
        super().configure_ddp()
        _frameworks.stop_averaging(self.model, self.world_size)

    def setup_optimizers(self, trainer) -> None:
        """Makes the optimizers over the wrapped model."""
        super().setup_optimizers(trainer)
        if self._rates:
            schedulers = [config.scheduler for config in self.lr_scheduler_configs]
            self.optimizers = [_frameworks.in_place_of(
                given, self.lightning_module, self._make, self._rates, schedulers)
                for given in self.optimizers]
        self._meters = [_frameworks.Meter(optimizer) for optimizer in self.optimizers]

    def setup_precision_plugin(self) -> None:
        """Lets all ranks share the overflows that the plugin's GradScaler finds."""
        super().setup_precision_plugin()
        for optimizer in self.optimizers:
            optimizer.scaler = getattr(self.precision_plugin, "scaler", None)

    def optimizer_step(self, optimizer: Optimizer, closure, model=None, **kwargs):
        """Runs a step and logs its values."""
        result = super().optimizer_step(optimizer, closure, model, **kwargs)
        trainer = (model or self.lightning_module).trainer
        number = next(i for i, own in enumerate(self.optimizers) if own is optimizer)
        name = "pride/" if len(self.optimizers) == 1 else f"pride{number}/"
        if (trainer.global_step + 1) % trainer.log_every_n_steps == 0:
            values = {key.replace("pride/", name): v
                      for key, v in self._meters[number].values().items()}
            for logger in trainer.loggers:
                logger.log_metrics(values, step=trainer.global_step)
        return result
