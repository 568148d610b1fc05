# The two models of the experiments: a vision transformer and a GPT.
# SPDX-License-Identifier: Apache-2.0
from torch import nn
from torch.nn import functional as F

from layers import Embedding, LayerNorm, Linear, Patches, Positions


class Block(nn.Module):
    """Attention and a feed-forward part, each after a norm."""

    def __init__(self, width, heads, causal):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = LayerNorm(width), LayerNorm(width)
        self.qkv, self.proj = Linear(width, 3 * width), Linear(width, width)
        self.up, self.down = Linear(width, 4 * width), Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        shape = batch, length, 3, self.heads, width // self.heads
        q, k, v = self.qkv(self.norm1(x)).view(shape).permute(2, 0, 3, 1, 4)
        made = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.proj(made.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class ViT(nn.Module):
    """Patches of 4 pixels, learned positions, the mean over patches before the head."""

    def __init__(self, layers, heads, width, patch=4):
        super().__init__()
        self.embed, self.position = Patches(3, width, patch), Positions((32 // patch) ** 2, width)
        self.blocks = nn.ModuleList(Block(width, heads, False) for _ in range(layers))
        self.norm, self.head = LayerNorm(width), Linear(width, 10)

    def logits(self, pixels):
        x = (pixels.float() - 120.0) / 64.0
        x = self.position(self.embed(x.to(self.position.weight.dtype)))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1)).float()

    def forward(self, pixels, labels):
        return F.cross_entropy(self.logits(pixels), labels)


class GPT(nn.Module):
    """GPT-2: learned positions, the head is the embedding."""

    def __init__(self, layers, heads, width, context, vocabulary):
        super().__init__()
        self.wte, self.wpe = Embedding(vocabulary, width), Positions(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, True) for _ in range(layers))
        self.norm, self.head = LayerNorm(width), Linear(width, vocabulary, bias=False)
        self.head.weight = self.wte.weight
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        for block in self.blocks:  # the branches add up: GPT-2's scale
            for part in (block.proj, block.down):
                nn.init.normal_(part.weight, std=0.02 * (2 * layers) ** -0.5)

    def forward(self, windows, weights=None):
        """Mean loss in nats per token, of all tokens of the windows except the first; with weights, the mean
        of `losses`."""
        if weights is not None:
            return self.losses(windows, weights).mean()
        logits, targets = self._predict(windows)
        return F.cross_entropy(logits, targets)

    def losses(self, windows, weights):
        """For each window, the sum of its tokens' losses times their weights."""
        logits, targets = self._predict(windows)
        return (F.cross_entropy(logits, targets, reduction="none").view_as(weights) * weights).sum(1)

    def _predict(self, windows):
        windows = windows.long()
        x = self.wpe(self.wte(windows[:, :-1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).flatten(0, 1).float(), windows[:, 1:].flatten()


class Lora(nn.Module):
    """A frozen layer plus the product of two thin matrices; the second one starts at zero.
    Hu et al. 2021, arXiv:2106.09685, with alpha = 2 rank."""

    def __init__(self, layer, rank):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.thin = Linear(layer.in_features, rank, bias=False)
        self.wide = Linear(rank, layer.out_features, bias=False)
        nn.init.normal_(self.thin.weight, std=layer.in_features ** -0.5)
        nn.init.zeros_(self.wide.weight)

    def forward(self, x):
        return self.layer(x) + 2 * self.wide(self.thin(x))


def add_lora(model, rank):
    """Adds a Lora to all matrices of a GPT's blocks; nothing else trains."""
    model.requires_grad_(False)
    for block in model.blocks:
        for name in ("qkv", "proj", "up", "down"):
            setattr(block, name, Lora(getattr(block, name), rank))
