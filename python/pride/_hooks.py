# Hooks on parameters: which ones backward reached, and when a gradient is complete.
# SPDX-License-Identifier: Apache-2.0
import contextlib
import weakref

import torch

# Watches of parameters under DistributedDataParallel with local gradients, by id. A zero gradient
# there may mean that backward did not reach the parameter. The model owns the watches, because the
# node of a hook keeps its parameter alive.
_watched = weakref.WeakValueDictionary()


class _Watch:
    def __init__(self, name, p):
        self.name, self.param = name, weakref.ref(p)
        self.count = 0  # backwards that reached the parameter
        fired = weakref.WeakMethod(self._fired)
        self.hook = on_gradient(p, lambda: (fired() or _nothing)())

    def _fired(self):
        self.count += 1


def _nothing():
    pass


class Watches:
    """Counts the backwards that reach each parameter, for as long as this lives. A copy is empty:
    hooks cannot be copied or pickled."""

    def __init__(self, named=()):
        self._held = []
        for name, p in named:
            found = _watch_of(p) or _Watch(name, p)
            _watched[id(p)] = found
            self._held.append(found)

    def __reduce__(self):
        return Watches, ()


def _watch_of(p):
    found = _watched.get(id(p))
    return found if found is not None and found.param() is p else None


def name_of(p):
    """The parameter's name in a model given to local_gradients(), or None."""
    found = _watch_of(p)
    return found and found.name


def on_gradient(p, callback):
    """Calls `callback` when backward has accumulated the gradient of leaf p. Keep the result."""
    if hasattr(p, "register_post_accumulate_grad_hook"):  # torch 2.1 and later
        return p.register_post_accumulate_grad_hook(lambda _: callback())
    with torch.enable_grad():
        node = p.expand_as(p).grad_fn.next_functions[0][0]
    return node, node.register_hook(lambda *_: callback())  # the hook lives as long as its node


class Hooks:
    """The hooks of one optimizer. Parameters own the callbacks, so these refer to it weakly."""

    def __init__(self):
        self._slots = ()
        self._kept = []
        self._seen = {}  # count of a watched parameter at the last reset, by id
        self._paused = 0

    def follow(self, slots):
        """The slots of which unused() tells, with nodes those of all ranks of the node."""
        self._slots = slots

    def watch(self, slots, first, complete):
        """Calls complete(index), a method, when a gradient is complete. first: the first index."""
        for index, slot in enumerate(slots, first):
            if slot.param.requires_grad:
                self._kept.append(on_gradient(slot.param, self._callback(
                    index, weakref.WeakMethod(complete))))

    def _callback(self, index, complete):
        me = weakref.ref(self)

        def call():
            hooks, method = me(), complete()
            if hooks is not None and method is not None and not hooks._paused:
                method(index)

        return call

    @contextlib.contextmanager
    def paused(self):
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1

    def is_shared(self, slot):
        """True if DistributedDataParallel may own the memory of the gradient."""
        return _watch_of(slot.param) is not None

    def unused(self):
        """For each parameter, whether it has no gradient in this step."""
        flags = [slot.param.grad is None for slot in self._slots]
        for i, found in self._watches():
            flags[i] = flags[i] or found.count == self._seen.get(id(self._slots[i].param), 0)
        return flags

    def reset(self):
        """After a step: later backwards belong to the next one."""
        for i, found in self._watches():
            self._seen[id(self._slots[i].param)] = found.count

    def _watches(self):
        found = ((i, _watch_of(slot.param)) for i, slot in enumerate(self._slots if _watched else ()))
        return [(i, watch) for i, watch in found if watch is not None]

    def remove(self):
        for kept in self._kept:
            handle = kept[1] if isinstance(kept, tuple) else kept
            handle.remove()
        self._kept = []
