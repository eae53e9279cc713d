"""Tiny subjects that grow."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

import precisionlab as pl


class Layers(nn.Module):
    """``depth`` square layers with a ReLU, 16 wide."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16, bias=False) for _ in range(depth))
        for layer in self.layers:
            nn.init.normal_(layer.weight, std=math.sqrt(2 / 16))  # type: ignore[union-attr, arg-type]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


class Total(nn.Module):
    """The sum of the first dimension; one weight, so that there is a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.gain * x).sum(0)


def mean(model: nn.Module, batch: Any) -> torch.Tensor:
    return model(batch).float().mean()


def layers(**changes: Any) -> pl.Subject:
    """Axis ``depth`` through the model builder; a batch without arguments."""

    def model(depth: int = 2) -> nn.Module:
        return Layers(depth)

    values: dict[str, Any] = dict(model=model, batch=lambda step: torch.randn(4, 16), loss=mean, name="layers")
    return pl.Subject(**{**values, **changes})


def total(**changes: Any) -> pl.Subject:
    """Axis ``length`` through the batch: 16 per term, so that fp16 ends at 4095 terms."""

    def batch(step: int, length: int) -> torch.Tensor:
        return torch.full((length, 8), 16.0)

    values: dict[str, Any] = dict(model=Total, batch=batch, loss=mean, sizes={"length": 8}, name="total")
    return pl.Subject(**{**values, **changes})
