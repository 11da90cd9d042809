"""GPT-2 as nanoGPT writes it: blocks of attention and a perceptron, each behind a norm and added to what comes in."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

# blocks, heads, width
SIZES = {
    "gpt-tiny": (2, 4, 128),
    "gpt-mini": (6, 6, 384),
    "gpt2": (12, 12, 768),
    "gpt2-medium": (24, 16, 1024),
    "gpt2-large": (36, 20, 1280),
    "gpt2-xl": (48, 25, 1600),
}


class GPT(nn.Module):
    """(n, tokens) numbers to (n, tokens, vocabulary) logits of the token after each."""

    def __init__(self, blocks: int, heads: int, width: int, vocabulary: int, context: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.norm = nn.LayerNorm(width, bias=False)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.token.weight  # the same numbers read a token and say one
        for name, each in self.named_parameters():
            if each.dim() > 1:  # what adds to the sum of all blocks is made smaller the more of them there are
                adds = name.endswith(("attention.out.weight", "down.weight"))
                nn.init.normal_(each, std=0.02 / (math.sqrt(2 * blocks) if adds else 1))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, bias=False)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.gelu = nn.GELU()
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        x = x + self.down(self.gelu(self.up(self.norm2(x))))
        return x


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.all = nn.Linear(width, 3 * width, bias=False)  # query, key and value of all heads
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        count, length, width = x.shape
        query, key, value = (
            part.view(count, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.all(x).split(width, dim=2)
        )
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(count, length, width))
        return out
