"""Networks of a given depth, width 256, with frozen random weights: their forward drift is what is measured."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import precisionlab as pl

WIDTH, ROWS = 256, 16


def weights(gain: float, width: int = WIDTH) -> nn.Parameter:
    """(width, width), N(0, gain^2 / width)."""
    return nn.Parameter(torch.randn(width, width) * (gain / math.sqrt(width)), requires_grad=False)


class Deep(nn.Module):
    """``depth`` times ``x = layer(x, W)``, or with two matrices ``x = layer(x, W, V)``."""

    def __init__(self, layer: Callable[..., Tensor], gains: tuple[float, ...], depth: int) -> None:
        super().__init__()
        self.layer = layer
        self.matrices = nn.ModuleList(nn.ParameterList(weights(gain) for gain in gains) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for matrices in self.matrices:
            x = self.layer(x, *matrices)
        return x


def norm(x: Tensor) -> Tensor:
    """Layer normalisation without weights."""
    return F.layer_norm(x, (x.shape[-1],))


def relu(x: Tensor, w: Tensor) -> Tensor:
    """At He's variance 2 / width (gain sqrt 2) signal and errors keep their size."""
    return F.relu(x @ w)


def tanh(x: Tensor, w: Tensor) -> Tensor:
    """Critical at gain 1, chaotic above."""
    return torch.tanh(x @ w)


def pre_norm(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    """A feed-forward branch on a normalised copy of the stream."""
    return x + F.relu(norm(x) @ w) @ v


def post_norm(x: Tensor, w: Tensor) -> Tensor:
    """The sum of stream and branch, normalised."""
    return norm(x + torch.tanh(x @ w))


def residual(x: Tensor, w: Tensor) -> Tensor:
    """A residual stream without any normalisation: the signal grows by a factor a layer."""
    return x + x @ w


def deep(layer: Callable[..., Tensor], *gains: float) -> pl.Subject:
    """A subject with the axis ``depth``."""

    def model(depth: int = 4) -> nn.Module:
        return Deep(layer, gains, depth)

    def batch(step: int) -> Tensor:
        return torch.randn(ROWS, WIDTH)

    return pl.Subject(model, batch, mean_square, name=layer.__name__)


def mean_square(model: nn.Module, batch: Tensor) -> Tensor:
    """A loss in fp32, which no measurement here looks at."""
    return model(batch).float().square().mean()
