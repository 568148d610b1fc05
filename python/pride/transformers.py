"""pride in Hugging Face's Trainer: one line after the trainer's construction.

    trainer = transformers.Trainer(model, args, train_dataset=data)
    pride.transformers.Callback(trainer)
"""
# SPDX-License-Identifier: Apache-2.0
from typing import Any, Callable, Optional

import torch
import transformers

from . import _frameworks
from .errors import InvalidArgument
from .lion import DistributedLion
from .optimizer import Optimizer

_frameworks.require("transformers", (5, 24), 5)


class Callback(transformers.TrainerCallback):
    """Makes a Trainer train with pride: its optimizer, no averaging, checkpoints, the log. Or, with
    ``compress``, only quantizes the gradients that DDP averages.

    The callback adds itself to the trainer. The trainer makes the optimizer in ``train()``, over
    its own groups (with and without weight decay). An optimizer that was given to the trainer, e.g.
    an AdamW, is taken over with its scheduler (:func:`pride.take_over`). Each rank's momentum is saved in the trainer's
    checkpoints, as ``pride.rank0of2.pt``, so that
    ``trainer.train(resume_from_checkpoint=True)`` resumes bit for bit. Logs get
    ``pride/bytes_sent`` of the last step and ``pride/vote_agreement``, the share of rank 0's own
    signs that won.

    Args:
        trainer: a Trainer, before ``train()``.
        optimizer: called with groups of ``(name, parameter)`` pairs to make the optimizer.
        compress: ``"int8"``, ``"int4"``, ``"int2"`` or ``"bf16"``: the optimizer stays the trainer's own,
            and DDP exchanges gradients of so many bits (:func:`pride.ddp_hook`). No further arguments.
        local: for momenta saved on another number of ranks: ``"keep"``, ``"average"`` or
            ``"reset"``, as in ``load_state_dict()``.
        arguments: for the optimizer: ``lr`` and ``weight_decay`` of the method (default: derived
            from the trainer's ``learning_rate`` and ``weight_decay`` for AdamW, as
            :func:`pride.take_over` does), and others.

    Raises:
        InvalidArgument: the trainer has one of pride's optimizers and arguments or ``compress`` are
            given; (in ``train()``) it does not wrap the model in DistributedDataParallel; or a refusal of
            :func:`pride.take_over`.
    """

    def __init__(self, trainer: transformers.Trainer,
                 optimizer: Callable[..., Optimizer] = DistributedLion, *,
                 compress: Optional[str] = None, local: str = "keep", **arguments: Any) -> None:
        self._trainer, self._make, self._arguments = trainer, optimizer, arguments
        self._local, self._meter, self._compressed = local, None, None
        given = trainer.optimizer
        if compress is not None:
            self._compressed = _frameworks.Compressed(compress, optimizer, local, arguments)
            self._add()
            return
        if given is None:
            trainer.optimizer_cls_and_kwargs = (lambda: self._new_optimizer), {}
        else:
            trainer.optimizer = _frameworks.in_place_of(
                given, trainer.model, optimizer, arguments,
                _frameworks.those_of(given, [trainer.lr_scheduler]))
        self._add()
        self._save = trainer._save_optimizer_and_scheduler
        self._load = trainer._load_optimizer_and_scheduler
        trainer._save_optimizer_and_scheduler = self._save_all
        trainer._load_optimizer_and_scheduler = self._load_all

    def _add(self):
        self._trainer.add_callback(self)
        callbacks = self._trainer.callback_handler.callbacks  # log writers come after this one
        callbacks.insert(0, callbacks.pop())

    def _new_optimizer(self, model):
        args = self._trainer.args
        if "adam" not in args.optim and "lr" not in self._arguments:
            raise InvalidArgument(f"pride: TrainingArguments(optim='{args.optim}'): no rate follows from "
                                  "learning_rate: give the callback lr=")
        decayed = set(self._trainer.get_decay_parameter_names(model))
        groups = [{"params": [], "weight_decay": args.weight_decay},
                  {"params": [], "weight_decay": 0.0}]
        for name, p in model.named_parameters():
            if p.requires_grad:
                groups[name not in decayed]["params"].append(p)
        given = torch.optim.AdamW([group for group in groups if group["params"]],
                                  lr=args.learning_rate)
        return _frameworks.in_place_of(given, model, self._make, self._arguments)

    def _optimizer(self):
        return getattr(self._trainer.optimizer, "optimizer", self._trainer.optimizer)

    def _beside(self):
        return _frameworks.Beside(self._optimizer(), self._local)

    def _save_all(self, output_dir):
        self._save(output_dir)
        self._beside().write(output_dir)

    def _load_all(self, checkpoint):
        if checkpoint is None:
            return self._load(checkpoint)
        beside = self._beside()
        beside.read_at_next_load(checkpoint)
        try:
            self._load(checkpoint)
        finally:
            beside.forget()

    def on_train_begin(self, args, state, control, **kwargs):
        """Called when the model is wrapped and the optimizer made, before the first backward."""
        optimizer = self._optimizer()
        if self._compressed is not None:
            self._compressed.check(optimizer)
            self._compressed.begin([self._trainer.model_wrapped], args.world_size)
            self._meter = self._compressed
            return
        _frameworks.stop_averaging(self._trainer.model_wrapped, args.world_size)
        optimizer.scaler = self._trainer.accelerator.scaler
        self._meter = _frameworks.Meter(optimizer)

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Adds the optimizer's values to the log of a training step."""
        if self._meter is not None and "loss" in logs:
            values = self._meter.values()
            logs.update(values)
            state.log_history[-1].update(values)
