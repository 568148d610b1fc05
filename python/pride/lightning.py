"""pride in Lightning: a strategy that replaces ``"ddp"``.

    trainer = lightning.Trainer(strategy=pride.lightning.Strategy(), ...)
"""
# SPDX-License-Identifier: Apache-2.0
from typing import Any, Callable, Optional

from lightning.pytorch.strategies import DDPStrategy

from . import _frameworks
from .lion import DistributedLion
from .optimizer import Optimizer

_frameworks.require("lightning", (2, 6), 2)


class Strategy(DDPStrategy):
    """Lightning's DDPStrategy without averaging.

    It takes over the optimizers of ``configure_optimizers()``, e.g. an AdamW, with their schedulers
    (:func:`pride.take_over`). Without ``lr`` rates stay in their units, with a factor inside. With
    ``lr`` groups and torch's schedulers get rates in the method's units, and their ratios stay. A
    group without decay keeps none if others have decay. pride's own optimizers are used unchanged.
    Checkpoints of Lightning have the momenta of all ranks. Every ``log_every_n_steps`` the trainer's
    loggers get ``pride/bytes_sent`` of the last step and ``pride/vote_agreement``, the share of this
    rank's own signs that won.

    Args:
        lr: the rate of the method; default: derived from the module's.
        weight_decay: the decay of the method; default: the module's, so that ``lr * weight_decay``
            stays.
        optimizer: called with groups of ``(name, parameter)`` pairs to make the optimizer.
        compress: ``"int8"``, ``"int4"``, ``"int2"`` or ``"bf16"``: the module's optimizers stay, and DDP
            exchanges gradients of so many bits (:func:`pride.ddp_hook`). Neither of the above.
        arguments: of DDPStrategy.

    Raises:
        InvalidArgument: when training begins: an optimizer is pride's and ``lr`` or ``weight_decay``
            is given; or a refusal of :func:`pride.take_over`.
    """

    strategy_name = "pride"

    def __init__(self, lr: Optional[float] = None, weight_decay: Optional[float] = None,
                 optimizer: Callable[..., Optimizer] = DistributedLion,
                 compress: Optional[str] = None, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._make, self._rates = optimizer, {
            key: value for key, value in (("lr", lr), ("weight_decay", weight_decay))
            if value is not None}
        self._compressed = None if compress is None else _frameworks.Compressed(
            compress, optimizer, arguments=self._rates)

    def configure_ddp(self) -> None:
        """Wraps the model and turns averaging off before the first backward."""
        super().configure_ddp()
        if self._compressed is not None:
            self._compressed.begin([self.model], self.world_size)
            return
        _frameworks.stop_averaging(self.model, self.world_size)

    def setup_optimizers(self, trainer) -> None:
        """Makes the optimizers over the wrapped model."""
        super().setup_optimizers(trainer)
        if self._compressed is not None:
            for optimizer in self.optimizers:
                self._compressed.check(optimizer)
            self._meters = [self._compressed] * len(self.optimizers)
            return
        schedulers = [config.scheduler for config in self.lr_scheduler_configs]
        self.optimizers = [_frameworks.in_place_of(
            given, self.lightning_module, self._make, self._rates,
            _frameworks.those_of(given, schedulers), self.optimizers) for given in self.optimizers]
        self._meters = [_frameworks.Meter(optimizer) for optimizer in self.optimizers]

    def setup_precision_plugin(self) -> None:
        """Lets all ranks share the overflows that the plugin's GradScaler finds."""
        super().setup_precision_plugin()
        for optimizer in self.optimizers if self._compressed is None else ():
            optimizer.scaler = getattr(self.precision_plugin, "scaler", None)

    def lightning_module_state_dict(self):
        """What checkpoints save of the model: with local steps the common parameters."""
        if self._compressed is None:
            _frameworks.show_common(self.optimizers)
        return super().lightning_module_state_dict()

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
