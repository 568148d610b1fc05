# The model of board.py: a GPT with rotary positions, RMS norms, squared ReLU and bounded logits.
# SPDX-License-Identifier: Apache-2.0
import torch
from torch import nn
from torch.nn import functional as F

ROTARY_BASE, ATTENTION_SCALE, MOST_LOGIT = 1024.0, 0.12, 15.0


class Linear(nn.Linear):
    """float32 weights, computed in the type of the input."""

    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype), self.bias.to(x.dtype))


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gains = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return F.rms_norm(x, x.shape[-1:], self.gains.to(x.dtype))


class Attention(nn.Module):
    """Queries and keys are normed and rotated; a half of each head has no position."""

    def __init__(self, width, head, context):
        super().__init__()
        self.head = head
        self.q, self.k, self.v, self.proj = (Linear(width, width) for _ in range(4))
        speeds = ROTARY_BASE ** -torch.linspace(0, 1, head // 4)
        angles = torch.arange(context)[:, None] * torch.cat([speeds, torch.zeros(head // 4)])
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def _rotated(self, x):
        a, b = F.rms_norm(x, x.shape[-1:]).float().chunk(2, -1)
        cos, sin = self.cos[:x.shape[-2]], self.sin[:x.shape[-2]]
        return torch.cat([a * cos + b * sin, b * cos - a * sin], -1).to(x.dtype)

    def forward(self, x):
        q, k, v = (part(x).unflatten(-1, (-1, self.head)).transpose(1, 2)
                   for part in (self.q, self.k, self.v))
        made = F.scaled_dot_product_attention(self._rotated(q), self._rotated(k), v, is_causal=True,
                                              scale=ATTENTION_SCALE)
        return self.proj(made.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc, self.proj = Linear(width, 4 * width), Linear(4 * width, width)

    def forward(self, x):
        return self.proj(self.fc(x).relu().square())


class Block(nn.Module):
    def __init__(self, width, head, context):
        super().__init__()
        self.norm1, self.attn = Norm(width), Attention(width, head, context)
        self.norm2, self.mlp = Norm(width), Mlp(width)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class BoardGPT(nn.Module):
    """The embedding is bfloat16, and so are all activations; other parameters are float32."""

    def __init__(self, vocabulary, layers, width, head, context):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width, dtype=torch.bfloat16)
        self.norm1, self.norm2 = Norm(width), Norm(width)
        self.blocks = nn.ModuleList(Block(width, head, context) for _ in range(layers))
        self.proj = Linear(width, vocabulary)
        for name, p in self.named_parameters():
            if name.endswith("bias") or "proj" in name:  # each branch, and the logits, begin at 0
                nn.init.zeros_(p)
            elif p.dim() == 2 and "embed" not in name:
                nn.init.normal_(p, std=(3 * p.shape[1]) ** -0.5)

    def forward(self, inputs, targets):
        """The sum of the losses, in nats, of the targets [sequences, context]."""
        x = self.norm1(self.embed(inputs))
        for block in self.blocks:
            x = block(x)
        logits = self.proj(self.norm2(x)).float()
        logits = MOST_LOGIT * logits * (logits.square() + MOST_LOGIT ** 2).rsqrt()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
