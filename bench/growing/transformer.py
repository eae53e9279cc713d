"""Pre-norm transformer blocks with frozen random weights of variance 1 / fan-in, width 256, 8 heads."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import precisionlab as pl
from bench.growing.deep import ROWS, WIDTH, mean_square, norm

HEADS = 8


def weights(rows: int, columns: int) -> nn.Parameter:
    """(rows, columns), N(0, 1 / rows)."""
    return nn.Parameter(torch.randn(rows, columns) / math.sqrt(rows), requires_grad=False)


class Block(nn.Module):
    """Attention and a feed-forward part four times as wide, each on a normalised copy of the stream (tokens, width)."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = weights(WIDTH, 3 * WIDTH), weights(WIDTH, WIDTH)
        self.up, self.down = weights(WIDTH, 4 * WIDTH), weights(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (norm(x) @ self.qkv).view(x.shape[0], 3, HEADS, WIDTH // HEADS).permute(1, 2, 0, 3)
        x = x + F.scaled_dot_product_attention(q, k, v).transpose(0, 1).reshape(x.shape) @ self.out
        return x + F.gelu(norm(x) @ self.up) @ self.down


def transformer() -> pl.Subject:
    """A subject with the axis ``depth``."""

    def model(depth: int = 4) -> nn.Module:
        return nn.Sequential(*(Block() for _ in range(depth)))

    return pl.Subject(model, lambda step: torch.randn(ROWS, WIDTH), mean_square, name="transformer")
