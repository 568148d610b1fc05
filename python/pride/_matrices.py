# Which parameters are matrices for methods such as dlion-muon: by group, by the types of a model's
# modules, or by name. libpride knows names and shapes, and decides.
# SPDX-License-Identifier: Apache-2.0
import functools
import re
import sys
import weakref
from typing import Dict, Optional

import torch

from . import _library as library
from .errors import InvalidArgument

_kinds = {}  # of parameters of known models, by id: a weak reference, and whether it is a matrix


class Matrices:
    """The matrices of one optimizer."""

    def __init__(self):
        self._chosen = {}  # by id of a parameter, whether it is a matrix
        self.text = ""     # a line for the log
        self.is_said = False

    def choose(self, slots, new, methods, groups, is_named):
        """Decides for the new slots, beside the slots that the optimizer has."""
        flags = [group.get("matrix") for group in groups]
        for g, flag in enumerate(flags):
            if flag is not None and not isinstance(flag, bool):
                raise InvalidArgument(f"pride: group {g}: matrix = {flag!r}, must be True or False")
        chosen, texts = {}, []
        for method, options, numbers in methods:
            every = [slot for slot in slots + new if slot.group in numbers]
            if not every:
                continue
            self._mark(set(new).intersection(every), flags, options, is_named)
            layout = library.make_layout([
                (slot.name, tuple(slot.param.shape), slot.group, slot.as_matrix) for slot in every])
            forms, text = library.matrices_of(method, options, layout)
            for slot, form in zip(every, forms):  # on this rank alone a word may name no tensor
                slot.as_matrix = _as_matrix(form > 0) if text else library.BY_NAME
                if text:
                    chosen[id(slot.param)] = form > 0
            texts.append((method, text, every))
        self._chosen, self.text = chosen, _line_of(texts)

    def _mark(self, slots, flags, options, is_named):
        """What is known of slots before their method decides."""
        # words that the caller gives are about all names
        by_type = "not_matrices" not in options
        for slot in slots:
            kind = flags[slot.group]
            if kind is None:
                kind = self._chosen.get(id(slot.param))
            if kind is None and by_type:
                kind = _kind_of(slot.param)
            slot.as_matrix = (_as_matrix(kind) if kind is not None else library.BY_NAME
                              if is_named(slot.param) else library.UNNAMED)

    def say(self, world):
        if self.text and world.rank == 0 and not self.is_said:
            print(f"pride: {self.text}", file=sys.stderr, flush=True)

    def pickled(self, groups):
        return [self._chosen.get(id(p)) for group in groups for p in group["params"]]

    def unpickle(self, params, chosen):
        self._chosen = {id(p): kind for p, kind in zip(params, chosen) if kind is not None}


def _line_of(sections):
    """What is said at the start, of all sections if one has matrices. sections: (method, libpride's
    text, slots)."""
    known = next((method for method, text, _ in sections if text), None)
    if known is None:
        return ""
    return "; ".join(text or f"{method}: " + _names_in(slots, known) for method, text, slots in sections)


def _names_in(slots, method):
    """The names of slots, as the text of a method with matrices has those that are none."""
    layout = library.make_layout([
        (slot.name, tuple(slot.param.shape), slot.group, library.NO_MATRIX) for slot in slots])
    return library.matrices_of(method, {}, layout)[1].partition("; no matrices: ")[2]


def _as_matrix(kind):
    return library.MATRIX if kind else library.NO_MATRIX


def remember(model):
    """Optimizers made later over the model's parameters use the types of its modules."""
    def forget(reference, key):
        if _kinds.get(key, (None,))[0] is reference:
            del _kinds[key]

    kinds = matrix_kinds(model)
    for name, p in model.named_parameters():
        if kinds[name] is not None:
            gone = functools.partial(forget, key=id(p))
            _kinds[id(p)] = weakref.ref(p, gone), kinds[name]


def _kind_of(p):
    reference, kind = _kinds.get(id(p), (lambda: None, None))
    return kind if reference() is p else None


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


def are_matrices(model, names, method, options):
    """For each of model.parameters(), under these names, whether the method over all of them treats it
    as a matrix."""
    kinds = matrix_kinds(model).values() if "not_matrices" not in options else [None] * len(names)
    forms, text = library.matrices_of(method, options, library.make_layout([
        (name, tuple(p.shape), 0, library.BY_NAME if kind is None else _as_matrix(kind))
        for name, p, kind in zip(names, model.parameters(), kinds)]))
    if names and not text:
        raise InvalidArgument(f"pride: {method} with these options orthogonalises no matrices")
    return [form > 0 for form in forms]


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
