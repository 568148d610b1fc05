# Parameters and gradients of an optimizer in flat buffers, which is how libpride takes them.
# SPDX-License-Identifier: Apache-2.0
import torch

from .errors import InvalidArgument

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def check_parameter(name, p):
    """Raises InvalidArgument, or TypeError as torch does, for what cannot be optimized."""
    if not isinstance(p, torch.Tensor):
        raise TypeError(f"optimizer can only optimize Tensors, but {name} is {type(p).__name__}")
    if torch.nn.parameter.is_lazy(p):
        raise InvalidArgument(f"pride: {name} is not initialized: run the lazy module once first")
    if not p.is_leaf and not getattr(p, "retains_grad", False):
        raise ValueError(f"can't optimize a non-leaf Tensor: {name}")
    if p.is_complex():
        raise InvalidArgument(f"pride: {name} is complex ({p.dtype}); a sign needs an order: give "
                              "the real view, torch.view_as_real(...), as a parameter")
    if p.layout != torch.strided:
        raise InvalidArgument(f"pride: {name} is not a dense tensor ({p.layout})")
    if p.dtype not in _FLOATS:
        raise InvalidArgument(f"pride: {name} is {p.dtype}; float32, bfloat16 and float16 are "
                              "supported")
    if p.device.type == "meta":
        raise InvalidArgument(f"pride: {name} is on the device 'meta': it has no values")
    if any(n > 1 and stride == 0 for n, stride in zip(p.shape, p.stride())):
        raise InvalidArgument(f"pride: {name} is expanded: several of its values are one in "
                              "memory; give the tensor that it expands, or its clone()")


def check_memory(slots):
    """Raises InvalidArgument where two parameters lie in the same memory: one step would undo the
    other's. Tensors with gaps may interleave; they are not compared."""
    places = sorted(((p.data_ptr(), p.data_ptr() + p.numel() * p.element_size(), slot.name)
                     for slot in slots for p in [slot.param] if p.numel() and _is_dense(p)),
                    key=lambda place: place[:2])
    for (_, end, first), (begin, _, second) in zip(places, places[1:]):
        if begin < end:
            raise InvalidArgument(
                f"pride: '{first}' and '{second}' share memory but are two parameters; tie them by "
                "giving both modules one Parameter (b.weight = a.weight, not b.weight.data)")


def _widened(tensor):
    """Where values cross between a GPU and the host as float32, the GPU widens and rounds them."""
    return tensor.float() if tensor.is_cuda else tensor


def _is_dense(p):
    """True if the values of p fill one range of memory."""
    expected = 1
    for stride, n in sorted((s, n) for s, n in zip(p.stride(), p.shape) if n > 1):
        if stride != expected:
            return False
        expected *= n
    return True


def _is_at(tensor, view):
    """True if the tensor's values are those of the view, in the same memory and order."""
    return (tensor.data_ptr() == view.data_ptr() and tensor.dtype == view.dtype and
            tensor.shape == view.shape and tensor.stride() == view.stride())


class Slot:
    """One parameter and its place in the flat buffers."""

    __slots__ = ("name", "param", "group", "offset", "n", "view", "grad_view", "direct")

    def __init__(self, name, param, group):
        self.name, self.param, self.group = name, param, group
        self.offset, self.n = 0, param.numel()
        self.view = self.grad_view = None
        self.direct = False  # the parameter's memory is its place in the flat buffer

    @property
    def spec(self):
        return self.name, tuple(self.param.shape), self.group

    def narrow(self):
        """True if the float32 values here are the master copy of a narrower parameter."""
        return self.param.dtype != torch.float32


class Flat:
    """The flat buffers, float32 in CPU memory, padding zero."""

    def __init__(self, slots, flat_size, places):
        self.slots = slots
        pinned = any(slot.param.is_cuda for slot in slots)
        self.params = torch.zeros(flat_size, dtype=torch.float32, pin_memory=pinned)
        self.grads = torch.zeros(flat_size, dtype=torch.float32, pin_memory=pinned)
        for slot, (offset, n) in zip(slots, places):
            before, direct = slot.view, slot.direct
            slot.offset, slot.n = offset, n
            shape = slot.param.shape
            slot.view = self.params[offset:offset + n].view(shape)
            # .data: each view has a version counter of its own
            slot.grad_view = self.grads[offset:offset + n].view(shape).data
            if before is None:
                self._take(slot)
            else:
                self._move(slot, before, direct)

    @torch.no_grad()
    def _take(self, slot):
        p = slot.param
        slot.view.copy_(_widened(p))
        slot.direct = p.requires_grad and _owns_its_storage(p)
        if slot.direct:
            p.data = slot.view

    @torch.no_grad()
    def _move(self, slot, before, direct):
        """From the buffer of before, when parameters were added."""
        p = slot.param
        held = p.grad
        slot.view.copy_(before)
        slot.direct = direct and _is_at(p, before)
        if slot.direct:
            p.data = slot.view
            if held is not None and p.grad is not None:
                p.grad = held.clone()  # it may have been a view of the buffer of before

    @torch.no_grad()
    def pull(self, frozen=()):
        """Takes over what the caller has changed in the parameters since the last step. Parameters
        with the indices `frozen` get memory of their own, which push() can leave as it is."""
        for i, slot in enumerate(self.slots):
            p = slot.param
            if slot.direct and i in frozen:
                p.data = p.data.clone()
            if slot.direct:
                if _is_at(p, slot.view):
                    continue
                slot.direct = False  # p.data was replaced
            if p.shape != slot.view.shape:
                raise InvalidArgument(f"pride: {slot.name} has shape {tuple(p.shape)} now and had "
                                      f"{tuple(slot.view.shape)} when the optimizer was made")
            if not slot.narrow():
                slot.view.copy_(p)
                continue
            # the model's values count; where they are as rounded, the master's lower bits are kept.
            # Versions do not tell: p.data changes without a new one
            same = slot.view.to(p.device).to(p.dtype) == p
            if not bool(same.all()):
                slot.view.copy_(torch.where(same.cpu(), slot.view, p.detach().cpu().float()))

    @torch.no_grad()
    def push(self, frozen=()):
        """The parameters as the step has left them, but for those with the indices `frozen`."""
        for i, slot in enumerate(self.slots):
            p = slot.param
            if i in frozen:
                continue
            if slot.direct:
                _bump_version(p)
            else:
                p.copy_(slot.view.to(p.device))

    def check_gradient(self, slot):
        grad = slot.param.grad
        if grad.layout != torch.strided:
            raise InvalidArgument(f"pride: the gradient of {slot.name} is sparse; make it dense, "
                                  "e.g. torch.nn.Embedding(..., sparse=False)")
        if grad.is_complex():
            raise InvalidArgument(f"pride: the gradient of {slot.name} is complex")

    @torch.no_grad()
    def collect(self, slot, scale=None, negate=False):
        """The parameter's gradient into the flat buffer, times `scale`."""
        self.check_gradient(slot)
        grad, view = slot.param.grad, slot.grad_view
        if not _is_at(grad, view):
            view.copy_(grad.clone() if grad.data_ptr() == view.data_ptr() else _widened(grad))
        elif scale is not None or negate:
            slot.param.grad = grad.clone()  # the caller's, which a step leaves as it is
        if scale is not None:
            view.mul_(scale)
        if negate:
            view.neg_()

    def holds(self, slot, negated):
        """True if the flat buffer has the bits of the parameter's gradient."""
        self.check_gradient(slot)
        grad = _widened(slot.param.grad).to(slot.view.device, torch.float32)
        view = slot.grad_view
        return torch.equal((-grad if negated else grad).view(torch.int32), view.view(torch.int32))

    @staticmethod
    def is_plain(slot):
        """True if the gradient is float32 in CPU memory in the order of the layout."""
        grad = slot.param.grad
        return (grad.dtype == torch.float32 and grad.device.type == "cpu" and
                grad.layout == torch.strided and grad.shape == slot.param.shape and
                grad.is_contiguous() and not grad.is_neg())

    def is_view(self, slot):
        grad = slot.param.grad
        return (grad is not None and slot.n > 0 and grad.layout == torch.strided and
                _is_at(grad, slot.grad_view))


def _owns_its_storage(p):
    """True if nothing but this parameter can lie in its memory."""
    if p.dtype != torch.float32 or p.device.type != "cpu" or p.numel() == 0 or type(p) not in (
            torch.Tensor, torch.nn.Parameter):
        return False
    if not p.is_contiguous() or p.storage_offset() != 0 or p.is_shared() or p._is_view():
        return False
    storage = p.untyped_storage() if hasattr(p, "untyped_storage") else p.storage()
    return storage.nbytes() == 4 * p.numel()


_increment = getattr(torch.autograd.graph, "increment_version", None)


def _bump_version(p):
    """As after an in-place operation: a backward through the old values raises."""
    if _increment is not None:
        _increment(p)
    else:
        p.detach().view(-1)[:0].zero_()
