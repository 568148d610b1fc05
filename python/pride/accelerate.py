"""pride in Accelerate: ``prepare`` replaces the accelerator's own.

    model, optimizer, loader, scheduler = pride.accelerate.prepare(
        accelerator, model, optimizer, loader, scheduler)
"""
# SPDX-License-Identifier: Apache-2.0
from typing import Any, Callable, Optional

import accelerate
import torch

from . import _frameworks
from .errors import InvalidArgument
from .lion import DistributedLion
from .optimizer import Optimizer

_frameworks.require("accelerate", (1, 15), 1)


def prepare(accelerator: accelerate.Accelerator, model: torch.nn.Module, *others: Any,
            optimizer: Callable[..., Optimizer] = DistributedLion, compress: Optional[str] = None,
            local: str = "keep", **arguments: Any) -> Any:
    """Makes the optimizer of a model and prepares both with the accelerator, without averaging.

    An optimizer among ``others``, e.g. an AdamW, is taken over (:func:`pride.take_over`), and so
    are schedulers made over it. Without ``lr`` rates stay in its units, with a factor inside. With
    ``lr`` groups and schedulers get rates in the method's units, and their ratios stay; but a
    scheduler that is not given here, or not torch's, goes on in the old units. A group without decay
    keeps none if others have decay. An optimizer of pride's is used unchanged. Without one, pride
    makes one over all parameters that require a gradient. With several models call it once per
    model.

    ``accelerator.save_state(folder)`` then also writes each rank's momentum, as
    ``pride0.rank0of2.pt``; ``load_state()`` reads it. ``accelerator.log()`` adds
    ``pride/bytes_sent`` of the last step and ``pride/vote_agreement``, the share of this rank's own
    signs that won.

    Args:
        accelerator: the Accelerator; the model is moved to its device.
        model: the plain module.
        others: an optimizer, data loaders and the like, for ``accelerator.prepare()``.
        optimizer: called with ``(name, parameter)`` pairs, or groups of them, to make the optimizer.
        compress: ``"int8"``, ``"int4"``, ``"int2"`` or ``"bf16"``: the optimizers stay, and DDP exchanges
            gradients of so many bits (:func:`pride.ddp_hook`). No further arguments.
        local: for momenta saved on another number of ranks: ``"keep"``, ``"average"`` or
            ``"reset"``, as in ``load_state_dict()``.
        arguments: of the optimizer, e.g. ``lr``.

    Returns:
        The prepared model and ``others``, in their order. An optimizer that was not among them
        follows the model. With ``compress`` what ``accelerator.prepare()`` returns: a model alone is no
        tuple; all models among ``others`` are compressed, too.

    Raises:
        InvalidArgument: the accelerator does not wrap the model in DistributedDataParallel; there are
            two optimizers, or one of pride's with ``compress``; or a refusal of
            :func:`pride.take_over`.
    """
    if compress is not None:
        compressed = _frameworks.Compressed(compress, optimizer, local, arguments)
        for each in others:
            compressed.check(each)
        number = len(accelerator._models)
        made = accelerator.prepare(model, *others)
        every = made if others else (made,)
        compressed.begin([each for each in every if isinstance(each, torch.nn.Module)],
                         accelerator.num_processes)
        _log_more(accelerator, compressed, number)
        return made
    model.to(accelerator.device)
    number = len(accelerator._optimizers)
    every = [each for each in others if isinstance(each, torch.optim.Optimizer)]
    if len(every) > 1:
        raise InvalidArgument(f"pride: {len(every)} optimizers for one model: give one, with groups")
    given = every[0] if every else None
    if given is None:
        own = optimizer([(name, p) for name, p in model.named_parameters() if p.requires_grad],
                        **arguments)
        others = [own, *others]
        _frameworks.keep_common(own, model)
    else:
        own = _frameworks.in_place_of(given, model, optimizer, arguments,
                                      _frameworks.those_of(given, others))
        others = [own if each is given else each for each in others]
    model, *others = accelerator.prepare(model, *others)
    _frameworks.stop_averaging(model, accelerator.num_processes)
    own.scaler = accelerator.scaler
    beside = _frameworks.Beside(own, local, f"pride{number}")
    accelerator.register_save_state_pre_hook(lambda models, weights, folder: beside.write(folder))
    accelerator.register_save_state_pre_hook(lambda *_: _frameworks.show_common([own]))
    accelerator.register_load_state_pre_hook(
        lambda models, folder: beside.read_at_next_load(folder))
    _log_more(accelerator, _frameworks.Meter(own), number)
    return (model, *others)


def _log_more(accelerator, meter, number):
    log, number = accelerator.log, number or ""

    def more(values, step=None, **kwargs):
        own = {key.replace("pride/", f"pride{number}/"): v for key, v in meter.values().items()}
        log({**values, **own}, step=step, **kwargs)

    accelerator.log = more
