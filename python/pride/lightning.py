"""pride in Lightning: a strategy that replaces ``"ddp"``.

    trainer = lightning.Trainer(strategy=pride.lightning.Strategy(), ...)

with one of pride's optimizers from ``configure_optimizers()``.
"""
# SPDX-License-Identifier: Apache-2.0
from lightning.pytorch.strategies import DDPStrategy

from . import _frameworks
from .optimizer import Optimizer

_frameworks.require("lightning", (2, 6), 2)


class Strategy(DDPStrategy):
    """Lightning's DDPStrategy without averaging; it takes the same arguments.

    Make optimizers in ``configure_optimizers()``, preferably from ``self.named_parameters()``, so
    that errors have the names. Lightning's checkpoints have the momenta of all ranks. Every
    ``log_every_n_steps`` the trainer's loggers get ``pride/bytes_sent`` of the last step and
    ``pride/vote_agreement``, the share of this rank's own signs that won.

    Raises:
        InvalidArgument: when training begins, if an optimizer is not one of pride's.
    """

    strategy_name = "pride"

    def configure_ddp(self) -> None:
        """Wraps the model and turns averaging off before the first backward."""
        super().configure_ddp()
        _frameworks.stop_averaging(self.model, self.world_size)

    def setup_optimizers(self, trainer) -> None:
        """Makes the optimizers over the wrapped model."""
        super().setup_optimizers(trainer)
        self._meters = [_frameworks.Meter(optimizer) for optimizer in self.optimizers]

    def setup_precision_plugin(self) -> None:
        """Ranks share the overflows that the plugin's scaler finds."""
        super().setup_precision_plugin()
        for optimizer in self.optimizers:
            optimizer.scaler = getattr(self.precision_plugin, "scaler", None)

    def optimizer_step(self, optimizer: Optimizer, closure, model=None, **kwargs):
        """A step, and the log of it."""
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
