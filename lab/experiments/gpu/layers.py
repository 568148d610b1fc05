# Layers that keep the gradients of several workers apart in one backward over the batch of all.
# SPDX-License-Identifier: Apache-2.0
"""Within `apart(model, leaves_of(model, n))` a batch holds n workers' batches of equal size, in the order of
the workers. Forward and the gradients of activations are those of one large batch. The gradient of each leaf
has a row for each worker, from a batched matrix product in place of a single one."""
import contextlib

import torch
from torch import nn
from torch.autograd import Function
from torch.nn import functional as F


def rows(x, n):
    """x as [n, rows of one worker, last dimension]."""
    return x.reshape(n, -1, x.shape[-1])


class _Linear(Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight[0], None if bias is None else bias[0])

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        n, wants = len(weight), ctx.needs_input_grad
        return (g @ weight[0] if wants[0] else None,
                rows(g, n).transpose(1, 2) @ rows(x, n) if wants[1] else None,
                rows(g, n).sum(1) if wants[2] else None)


class _LayerNorm(Function):
    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        y, mean, rstd = torch.native_layer_norm(x, weight.shape[1:], weight[0], bias[0], eps)
        ctx.save_for_backward(x, weight, bias, mean, rstd)
        return y

    @staticmethod
    def backward(ctx, g):
        x, weight, bias, mean, rstd = ctx.saved_tensors
        n, wants = len(weight), ctx.needs_input_grad
        gx = gw = None
        if wants[0]:
            gx = torch.ops.aten.native_layer_norm_backward(
                g, x, weight.shape[1:], mean, rstd, weight[0], bias[0], [True, False, False])[0]
        if wants[1]:
            gw = rows(g.float() * ((x.float() - mean) * rstd), n).sum(1).to(weight.dtype)
        return gx, gw, rows(g, n).sum(1) if wants[2] else None, None


class _Embedding(Function):
    @staticmethod
    def forward(ctx, index, weight):
        ctx.save_for_backward(index)
        ctx.shape = weight.shape
        return F.embedding(index, weight[0])

    @staticmethod
    def backward(ctx, g):
        (index,), (n, length, width) = ctx.saved_tensors, ctx.shape
        if not ctx.needs_input_grad[1]:
            return None, None
        first = torch.arange(n, device=index.device).view(n, *[1] * index.dim()) * length
        index = index.reshape(n, -1, *index.shape[1:]) + first
        made = torch.ops.aten.embedding_dense_backward(g.reshape(*index.shape, width), index, n * length, -1, False)
        return None, made.view(n, length, width)


class Layer:
    """A layer with parameters. `apart`: {name: leaf} within `apart(...)`, otherwise None."""

    apart = None


class Linear(Layer, nn.Linear):
    def forward(self, x):
        if self.apart is None:
            return super().forward(x)
        return _Linear.apply(x, self.apart["weight"], self.apart.get("bias"))


class LayerNorm(Layer, nn.LayerNorm):
    def forward(self, x):
        if self.apart is None:
            return super().forward(x)
        return _LayerNorm.apply(x, self.apart["weight"], self.apart["bias"], self.eps)


class Embedding(Layer, nn.Embedding):
    def forward(self, index):
        if self.apart is None:
            return super().forward(index)
        return _Embedding.apply(index, self.apart["weight"])


class Positions(Layer, nn.Module):
    """Adds a learned vector to each place of a sequence."""

    def __init__(self, length, width):
        super().__init__()
        self.weight = nn.Parameter(0.02 * torch.randn(length, width))

    def forward(self, x):
        if self.apart is None:
            return x + self.weight[:x.shape[1]]
        weight = self.apart["weight"][:, None, :x.shape[1]]
        return (x.reshape(len(weight), -1, *x.shape[1:]) + weight).reshape(x.shape)


class Patches(Linear):
    """[images, channels, side, side] -> [images, patches, width]: a convolution without overlap."""

    def __init__(self, channels, width, patch):
        super().__init__(channels * patch ** 2, width)
        self.patch = patch

    def forward(self, pixels):
        images, channels, side, _ = pixels.shape
        n, p = side // self.patch, self.patch
        cut = pixels.view(images, channels, n, p, n, p).permute(0, 2, 4, 1, 3, 5)
        return super().forward(cut.reshape(images, n * n, channels * p * p))


def leaves_of(model, n):
    """{parameter: a leaf [n, ...] whose rows are views of its values}."""
    return {p: p.detach().expand(n, *p.shape).requires_grad_(p.requires_grad) for p in model.parameters()}


@contextlib.contextmanager
def apart(model, leaves):
    """In the block the model's layers use the leaves instead of its parameters."""
    layers = [module for module in model.modules() if list(module.parameters(recurse=False))]
    strange = {type(module).__name__ for module in layers if not isinstance(module, Layer)}
    if strange:
        raise TypeError(f"gradients of workers apart: no rule for {', '.join(sorted(strange))}")
    for module in layers:
        module.apart = {name: leaves[p] for name, p in module.named_parameters(recurse=False)}
    try:
        yield
    finally:
        for module in layers:
            module.apart = None
