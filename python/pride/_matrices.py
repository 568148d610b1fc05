# Which parameters of a model are matrices for methods such as dlion-muon, by the types of modules.
# SPDX-License-Identifier: Apache-2.0
import re
from typing import Dict, Optional

import torch


def matrix_kinds(model: torch.nn.Module) -> Dict[str, Optional[bool]]:
    """For each of model.named_parameters(): False for an embedding and for the layer that makes the
    logits, True for other linear layers, None where the type does not tell and the name decides."""
    kinds, linear = {}, []
    tables = [module.weight for module in model.modules()
              if isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag))]
    for path, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and _has_weight(module):
            linear.append((path, module.weight))
            # patches and times are embedded by linear layers, too
            kinds.setdefault(id(module.weight), None if "embed" in path else True)
    kinds.update((id(weight), False) for weight in [*tables, *_outputs(model, linear, tables)])
    return {name: kinds.get(id(p)) for name, p in model.named_parameters()}


def _has_weight(module):
    weight = module._parameters.get("weight")  # with weight_norm it is no parameter
    return weight is not None and not torch.nn.parameter.is_lazy(weight)


def _outputs(model, linear, tables):
    """The weights of the layers that make the logits: tied to an embedding, of the shape of the
    largest embedding, or the last linear layer, unless it is one of several alike in blocks."""
    if any(weight is table for _, weight in linear for table in tables):
        return []
    in_lists = {path for path, module in model.named_modules()
                if isinstance(module, torch.nn.ModuleList)}
    linear = [(path, weight) for path, weight in linear if not any(
        path.startswith(blocks + ".") or not blocks for blocks in in_lists)]
    vocabulary = max(tables, key=len, default=None)
    alike = [weight for _, weight in linear if vocabulary is not None and len(vocabulary) != (
        vocabulary.shape[1]) and weight.shape == vocabulary.shape]
    if alike or not linear:
        return alike

    def kind(path, weight):
        return re.sub(r"\d+", "*", path), weight.shape

    of_kind = [kind(*each) for each in linear]
    return [linear[-1][1]] if of_kind.count(of_kind[-1]) == 1 else []
