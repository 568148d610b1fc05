"""torch.distributed.checkpoint with the momenta of all ranks.

    pride.checkpoint.save("ck", model, optimizer)
    pride.checkpoint.load("ck", model, optimizer, local="average")
"""
# SPDX-License-Identifier: Apache-2.0
import os
import re
from typing import Union

import torch

try:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import state_dict as dcp_state
except ImportError as error:
    raise ImportError(
        "pride.checkpoint needs torch.distributed.checkpoint of torch 2.2 or newer, this is torch "
        f"{torch.__version__}; save one file per rank, or consolidate_state_dict()") from error

from .errors import DataError
from .optimizer import Optimizer

_RANK = re.compile(r"^optimizer\..*\.pride\.ranks\.(\d+)\.")  # keys of a rank's texts


def save(folder: Union[str, os.PathLike], model: torch.nn.Module, optimizer: Optimizer) -> None:
    """Writes ``{"model": ..., "optimizer": ...}`` as torch.distributed.checkpoint does. Collective.

    Each rank writes its own momentum. Shared state is written once. Sharded parameters and state
    (FSDP2) are written by shards. With local steps the model's are the common parameters.
    """
    with optimizer.common_parameters():
        dcp.save({"model": dcp_state.get_model_state_dict(model),
                  "optimizer": dcp_state.get_optimizer_state_dict(model, optimizer)},
                 checkpoint_id=folder)


def load(folder: Union[str, os.PathLike], model: torch.nn.Module, optimizer: Optimizer, *,
         local: str = "keep") -> None:
    """Loads what :func:`save` wrote, on any number of replicas and shards. Collective.

    Args:
        local: each rank's own momenta on another number of replicas: ``"keep"`` (replica r gets
            those of saved replica r modulo their number), ``"average"`` or ``"reset"``.

    Raises:
        DataError: the folder has no state of one of pride's optimizers.
    """
    reader = dcp.FileSystemReader(folder)
    found = filter(None, map(_RANK.match, reader.read_metadata().state_dict_metadata))
    ranks = sorted({int(match.group(1)) for match in found})
    if not ranks:
        raise DataError(f"pride: {folder} has no state of an optimizer of pride under 'optimizer'")
    world = optimizer._ranks.voters
    if len(ranks) == world.size and local == "keep":
        ranks = [world.rank]
    weights = dcp_state.get_model_state_dict(model)
    state = _template(dcp_state.get_optimizer_state_dict(model, optimizer), ranks)
    dcp.load({"model": weights, "optimizer": state}, storage_reader=reader)
    dcp_state.set_model_state_dict(model, weights)
    optimizer.load_state_dict(state, local=local)


def _template(state, ranks):
    """The state with an entry to load into for each of these ranks' own tensors."""
    for entry in state["state"].values():
        private = {key.rsplit(".rank", 1)[0]: entry.pop(key)
                   for key in list(entry) if ".rank" in key}
        entry.update({f"{name}.rank{r}": torch.empty_like(values)
                      for name, values in private.items() for r in ranks})
    about = state["param_groups"][0]["pride"]
    texts = next(iter(about["ranks"].values()))
    about["ranks"] = {str(r): dict(texts) for r in ranks}
    return state
