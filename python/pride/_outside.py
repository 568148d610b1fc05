# Parameters of the model that belong to no optimizer of pride's: nobody keeps them equal.
# SPDX-License-Identifier: Apache-2.0
import gc
import itertools
import warnings
import weakref

import torch

from ._hashes import digest, hash_as_float32, sample_of
from ._state import uncollected
from ._tensors import local

_WRAPPERS = ("module.", "_orig_mod.")  # of DDP, of torch.compile


def _alive(base):
    """All objects of a class and of those below it."""
    kinds, left = set(), [base]
    while left:
        kind = left.pop()
        if kind not in kinds:
            kinds.add(kind)
            left += kind.__subclasses__()
    # A single call of C makes the list of all objects and frees it, and no other thread runs meanwhile.
    # While it exists, torch warns if a thread, such as Gloo's, frees a tensor that C++ owns.
    with uncollected():
        used = set(map(id, map(type, itertools.chain.from_iterable(
            itertools.starmap(gc.get_objects, [()])))))
    kinds = {kind for kind in kinds if id(kind) in used}
    # an object refers to its type; isinstance() would run the code of proxies
    return [thing for thing in gc.get_referrers(*kinds) if type(thing) in kinds]


def _models_of(ids):
    """The outermost modules that have a parameter of these ids: an optimizer gets parameters alone,
    which do not refer to their module."""
    modules = [m for m in _alive(torch.nn.Module) if "_modules" in m.__dict__]
    inner = {id(child) for m in modules for child in m._modules.values()}
    return [m for m in modules if id(m) not in inner and any(id(p) in ids for p in _parameters(m))]


def _parameters(module):
    """None of a module that cannot say, which may have nothing to do with pride."""
    try:
        return list(module.parameters())
    except Exception:  # pylint: disable=broad-except
        return []


def named(model):
    """(name, parameter) pairs with values, without the prefixes of wrappers."""
    for name, p in model.named_parameters():
        while name.startswith(_WRAPPERS):
            name = name.split(".", 1)[1]
        if not torch.nn.parameter.is_lazy(p) and p.device.type != "meta":
            yield name, p


def digests(pairs, turn=None):
    """Digests of names and shapes, and of all values, or in a turn of some."""
    return [digest(repr([(name, tuple(p.shape)) for name, p in pairs]).encode()),
            digest(repr(hashes(pairs)).encode()) if turn is None else sample_of(
                [local(p) for _, p in pairs], turn)] if pairs else [0, 0]


def hashes(pairs):
    return [hash_as_float32(local(p)) for _, p in pairs]


def listed_names(names):
    return f"'{names[0]}'" + (f" and {len(names) - 1} more" if len(names) > 1 else "")


class Outside:
    """The outside parameters that require a gradient, of an optimizer's models."""

    def __init__(self, ids, owned, model=None):
        """ids: of the optimizer's parameters. owned(): ids of those of all optimizers of pride's,
        which may share a model. model None: it is searched for among all objects, without those that
        were frozen (gc.freeze())."""
        self._owned = owned
        self._models = [weakref.ref(m) for m in (_models_of(ids) if model is None else [model])]
        self._local, self._warned = set(), set()  # ids

    def add(self, model):
        """A model whose outside parameters are equal on all ranks now."""
        known = {id(p) for each in self._alive() for p in _parameters(each)}
        if not known.issuperset(map(id, _parameters(model))):
            self._models.append(weakref.ref(model))

    def _alive(self):
        # not by bool(): a module may have a __len__, and a compiled one may have none
        return [model for model in (each() for each in self._models) if model is not None]

    def pairs(self):
        """Those that must be equal on all ranks."""
        owned = self._local | self._owned()
        return [(name, p) for model in self._alive() if _parameters(model) for name, p in named(model)
                if p.requires_grad and id(p) not in owned]

    def leave(self, pairs):
        """They differ: each rank has its own."""
        self._local |= {id(p) for _, p in pairs}

    def warn_apart(self, differing):
        """Once for each parameter that has come to differ. Collective: differing(hashes) has the
        indices of those that differ."""
        pairs = self.pairs()
        apart = [pairs[i] for i in differing(hashes(pairs))]
        self.leave(apart)
        if apart:
            warnings.warn(
                f"pride: the model's parameters differ between ranks now: "
                f"{listed_names([name for name, _ in apart])}. No optimizer of pride's has them, so "
                "that each rank changes them by itself: give them to pride's optimizer, or average "
                "their gradients. If each rank is meant to have its own, ignore this")

    def warn(self):
        """Once for each parameter that has a gradient and that no optimizer steps."""
        new = [(name, p) for name, p in self.pairs()
               if p.grad is not None and id(p) not in self._warned]
        if not new:
            return
        self._warned |= {id(p) for _, p in new}
        stepped = {id(p) for optimizer in _alive(torch.optim.Optimizer)
                   for group in optimizer.__dict__.get("param_groups", ()) for p in group["params"]}
        names = [name for name, p in new if id(p) not in stepped]
        if names:
            warnings.warn(
                f"pride: parameter {listed_names(names)} gets gradients and belongs to no optimizer: "
                "no step changes it. Give it to one, or set requires_grad_(False)")
