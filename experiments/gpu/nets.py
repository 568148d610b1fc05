# The two models of the experiments: a vision transformer and a GPT.
# SPDX-License-Identifier: Apache-2.0
import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """Attention and a feed-forward part, each after a norm."""

    def __init__(self, width, heads, causal):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

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
        self.embed = nn.Conv2d(3, width, patch, patch)
        self.position = nn.Parameter(0.02 * torch.randn(1, (32 // patch) ** 2, width))
        self.blocks = nn.ModuleList(Block(width, heads, False) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def logits(self, pixels):
        x = (pixels.float() - 120.0) / 64.0
        x = self.embed(x.to(self.position.dtype)).flatten(2).transpose(1, 2) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1)).float()

    def forward(self, pixels, labels):
        return F.cross_entropy(self.logits(pixels), labels)


class GPT(nn.Module):
    """GPT-2: learned positions, the head is the embedding."""

    def __init__(self, layers, heads, width, context, vocabulary):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, True) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)
        for block in self.blocks:  # the branches add up: GPT-2's scale
            for part in (block.proj, block.down):
                nn.init.normal_(part.weight, std=0.02 * (2 * layers) ** -0.5)

    def forward(self, windows):
        """Mean loss, in nats, of each token of the windows but the first."""
        windows = windows.long()
        x = self.wte(windows[:, :-1]) + self.wpe.weight[:windows.shape[1] - 1]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), windows[:, 1:].flatten())
