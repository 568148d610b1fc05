"""pride.muon_groups(): a model's matrices for one method and the rest for another, in one optimizer."""
# SPDX-License-Identifier: Apache-2.0
import collections.abc
import fnmatch
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import torch

from ._matrices import are_matrices
from ._take_over import names_of, unwrapped
from .errors import InvalidArgument, flag, of_type


def muon_groups(model: torch.nn.Module, *, matrices: Optional[Mapping[str, Any]] = None,
                rest: Optional[Mapping[str, Any]] = None,
                overrides: Sequence[Tuple[str, Mapping[str, Any]]] = (),
                conv: bool = False) -> List[Dict[str, Any]]:
    """Groups of a model for two rules in one optimizer: ``dlion-muon`` for its matrices, ``adamw`` for
    embeddings, the output layer, vectors and scalars.

        optimizer = pride.Optimizer(pride.muon_groups(
            model, matrices=dict(lr=1e-3), rest=dict(lr=3e-4, options={"dense": "bf16"}),
            overrides=[("*.bias", dict(weight_decay=0))]))

    What a group is not given is the default of its method. A line at the start has all sections.

    Args:
        model: plain, or wrapped by DistributedDataParallel or ``torch.compile``. Names are those in the
            plain model. Which tensors are matrices is decided as in an optimizer over the whole model,
            by the types of modules and then by name (docs/methods/muon.md). All parameters are in the
            groups, also those with ``requires_grad=False``, which steps do not change.
        matrices: values of the groups of matrices: ``method``, ``options``, ``lr``, ``betas``, ``eps``,
            ``weight_decay``, ``momentum``, and labels such as ``name``.
        rest: the same of the groups of all other tensors.
        overrides: pairs of a pattern and values. Parameters whose whole name matches the pattern, as in
            :func:`fnmatch.fnmatchcase`, have groups of their own with these values over those of
            ``matrices`` or ``rest``; with a ``method``, these values alone. The first pattern that
            matches wins. ``matrix=False`` moves them to the rest, ``matrix=True`` to the matrices. A
            tied weight has its first name.
        conv: tensors of three or more dimensions may be matrices: the first dimension gives the rows.
            False: they belong to the rest, because ``torch.optim.Muon`` takes two dimensions only.

    Returns:
        The groups that have parameters, those of matrices first, each with its ``"method"``, its
        ``"matrix"`` and the names in ``"param_names"``: for any of pride's optimizers, or for one of
        torch's that :func:`take_over` gets.

    Raises:
        InvalidArgument: an argument has another type; a pattern matches no parameter, or only those of
            earlier patterns; a parameter is not initialized; there is no such method, or the one of
            ``matrices`` orthogonalises none.
    """
    of_type("muon_groups: model", model, torch.nn.Module)
    conv = flag("muon_groups: conv", conv)
    kinds = [{"method": "dlion-muon", **_checked("matrices", matrices or {})},
             {"method": "adamw", **_checked("rest", rest or {})}]
    patterns, own = _pairs(overrides)
    named = names_of(model)
    for name, p in named:
        if torch.nn.parameter.is_lazy(p):
            raise InvalidArgument(f"pride: {name} is not initialized: run the lazy module once first")
    names = [name for name, _ in named]
    matching = _matching(patterns, names)
    options = dict(kinds[0].get("options") or {})
    chosen = are_matrices(unwrapped(model), names, kinds[0]["method"], options)
    if options.pop("not_matrices", None) is not None:  # words of all names, not of the matrices' alone
        kinds[0]["options"] = options
    members = {}  # of a kind and the index of a pattern, or -1
    for (name, p), matrix in zip(named, chosen):
        index = matching.get(name, -1)
        matrix = matrix and (conv or p.dim() == 2)
        if index >= 0:
            matrix = flag(f"muon_groups: matrix of {patterns[index]!r}",
                          own[index].get("matrix", matrix))
            if matrix and p.dim() < 2:
                raise InvalidArgument(f"pride: muon_groups: {patterns[index]!r} makes '{name}' of shape "
                                      f"{tuple(p.shape)} a matrix")
        members.setdefault((int(not matrix), index), []).append((name, p))
    made = []
    for (kind, index), pairs in sorted(members.items(), key=lambda item: item[0]):
        values = own[index] if index >= 0 else {}
        made.append({**({} if "method" in values else kinds[kind]), **values, "matrix": kind == 0,
                     "params": [p for _, p in pairs], "param_names": [name for name, _ in pairs]})
    return made


def _checked(name, values):
    of_type(f"muon_groups: {name}", values, collections.abc.Mapping)
    for key in ("params", "param_names", *(["matrix"] if name in ("matrices", "rest") else [])):
        if key in values:
            raise InvalidArgument(f"pride: muon_groups: {name} has '{key}', which muon_groups decides")
    if "method" in values:
        of_type(f"muon_groups: method of {name}", values["method"], str)
    return dict(values)


def _pairs(overrides):
    """The patterns and their values."""
    of_type("muon_groups: overrides", overrides, collections.abc.Sequence)
    for each in overrides:
        if not isinstance(each, (tuple, list)) or len(each) != 2 or not isinstance(each[0], str):
            raise InvalidArgument(f"pride: muon_groups: overrides has {each!r}, must be pairs of a "
                                  "pattern and a dict of values")
    return ([pattern for pattern, _ in overrides],
            [_checked(f"the values of {pattern!r}", values) for pattern, values in overrides])


def _matching(patterns, names):
    """{name of a parameter: index of the first pattern that matches it}."""
    made = {}
    for index, pattern in enumerate(patterns):
        found = [name for name in names if fnmatch.fnmatchcase(name, pattern)]
        left = [name for name in found if name not in made]
        if not left:
            raise InvalidArgument(f"pride: muon_groups: the pattern {pattern!r} matches no parameter" + (
                " that an earlier one leaves" if found else f" of {', '.join(names[:3])} ..."))
        made.update(dict.fromkeys(left, index))
    return made
