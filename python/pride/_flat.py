# Parameters and gradients of an optimizer in flat buffers, which is how libpride takes them.
# SPDX-License-Identifier: Apache-2.0
import torch

from .errors import InvalidArgument

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def check_parameter(name, p):
    """Raises InvalidArgument, or TypeError as torch does, for what cannot be optimized."""
    if not isinstance(p, torch.Tensor):
        raise TypeError(f"optimizer can only optimize Tensors, but {name} is {type(p).__name__}")
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


class Slot:
    """One parameter and its place in the flat buffers."""

    __slots__ = ("name", "param", "group", "offset", "n", "view", "grad_view", "direct", "version")

    def __init__(self, name, param, group):
        self.name, self.param, self.group = name, param, group
        self.offset, self.n = 0, param.numel()
        self.view = self.grad_view = None
        self.direct = False  # the parameter's memory is its place in the flat buffer
        self.version = -1    # of the parameter when it was last written here

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
        slot.view.copy_(p)
        slot.direct = _owns_its_storage(p)
        if slot.direct:
            p.data = slot.view
        slot.version = p._version

    @torch.no_grad()
    def _move(self, slot, before, direct):
        """From the buffer of before, when parameters were added."""
        p = slot.param
        held = p.grad
        slot.view.copy_(before)
        slot.direct = direct and p.data_ptr() == before.data_ptr()
        if slot.direct:
            p.data = slot.view
            if held is not None and p.grad is not None:
                p.grad = held.clone()  # it may have been a view of the buffer of before

    @torch.no_grad()
    def pull(self):
        """Takes over what the caller has changed in the parameters since the last step."""
        for slot in self.slots:
            p = slot.param
            if slot.direct:
                if p.data_ptr() == slot.view.data_ptr() or slot.n == 0:
                    continue
                slot.direct = False  # p.data was replaced
            if not slot.narrow() or p._version != slot.version:
                slot.view.copy_(p)

    @torch.no_grad()
    def push(self):
        """The parameters as the step has left them."""
        for slot in self.slots:
            p = slot.param
            if slot.direct:
                _bump_version(p)
            else:
                p.copy_(slot.view)
            slot.version = p._version

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
        if grad.data_ptr() != view.data_ptr() or grad.dtype != torch.float32:
            view.copy_(grad)
        if scale is not None:
            view.mul_(scale)
        if negate:
            view.neg_()

    def is_view(self, slot):
        grad = slot.param.grad
        return (grad is not None and slot.n > 0 and grad.dtype == torch.float32 and
                grad.data_ptr() == slot.grad_view.data_ptr())


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
