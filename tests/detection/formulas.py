"""Published unstable formulas beside their stable rewrites, on inputs where the first one fails (Higham 2002; DeepStability; GRIST)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

Tensor = torch.Tensor


@dataclass(frozen=True)
class Formula:
    """``unstable(x)`` and ``stable(x)`` are the same function in exact arithmetic."""

    name: str
    dtype: torch.dtype
    make: Callable[[], Tensor]
    unstable: Callable[[Tensor], Tensor]
    stable: Callable[[Tensor], Tensor]


def _normal(*shape: int, scale: float = 1.0, shift: float = 0.0) -> Callable[[], Tensor]:
    return lambda: torch.randn(*shape, generator=torch.Generator().manual_seed(7)) * scale + shift


def _grid(low: float, high: float, n: int = 257) -> Callable[[], Tensor]:
    return lambda: torch.linspace(low, high, n)


H, B = torch.float16, torch.bfloat16


def _wide_variance(x: Tensor) -> Tensor:
    w = x.float()
    return ((w - w.mean(-1, keepdim=True)) ** 2).mean(-1).to(x.dtype)


def _distances(x: Tensor) -> Tensor:
    a, b = x[:32], x[32:]
    return (a.square().sum(-1)[:, None] + b.square().sum(-1)[None] - 2 * (a @ b.t())).clamp(min=0).sqrt()


FORMULAS = [
    Formula("log of softmax", H, _normal(16, 64, scale=16), lambda x: torch.log(torch.softmax(x, -1)), lambda x: F.log_softmax(x, -1)),
    Formula("log of one minus sigmoid", H, _grid(0, 12), lambda x: torch.log(1 - torch.sigmoid(x)), lambda x: F.logsigmoid(-x)),
    Formula("log of one minus sigmoid", B, _grid(0, 8), lambda x: torch.log(1 - torch.sigmoid(x)), lambda x: F.logsigmoid(-x)),
    Formula("log of one plus exp", H, _grid(-8, 15), lambda x: torch.log(1 + torch.exp(x)), F.softplus),
    Formula("log of one plus exp, small", B, _grid(-12, -6), lambda x: torch.log(1 + torch.exp(x)), F.softplus),
    Formula(
        "softmax without the maximum",
        H,
        _normal(8, 32, scale=6, shift=8),
        lambda x: x.exp() / x.exp().sum(-1, keepdim=True),
        lambda x: torch.softmax(x, -1),
    ),
    Formula(
        "variance as a difference of squares", H, _normal(8, 256, shift=40), lambda x: (x * x).mean(-1) - x.mean(-1) ** 2, _wide_variance
    ),
    Formula(
        "variance as a difference of squares", B, _normal(8, 256, shift=20), lambda x: (x * x).mean(-1) - x.mean(-1) ** 2, _wide_variance
    ),
    Formula(
        "distance by expansion",
        B,
        _normal(64, 16, scale=0.1, shift=10),
        _distances,
        lambda x: torch.cdist(x[:32].float(), x[32:].float(), compute_mode="donot_use_mm_for_euclid_dist").to(x.dtype),
    ),
    Formula(
        "norm of large numbers",
        H,
        _normal(8, 64, scale=300),
        lambda x: x.square().sum(-1).sqrt(),
        lambda x: x.float().square().sum(-1).sqrt().to(x.dtype),
    ),
    Formula("exp minus one", B, _grid(0.0005, 0.004), lambda x: torch.exp(x) - 1, torch.expm1),
    Formula("log of one plus", H, _grid(0.0001, 0.0009), lambda x: torch.log(1 + x), torch.log1p),
    Formula("one minus cosine", H, _grid(0.001, 0.05), lambda x: 1 - torch.cos(x), lambda x: 2 * torch.sin(x / 2) ** 2),
    Formula(
        "difference of roots",
        H,
        _grid(500, 2000),
        lambda x: torch.sqrt(x + 1) - torch.sqrt(x),
        lambda x: 1 / (torch.sqrt(x + 1) + torch.sqrt(x)),
    ),
    Formula("difference of reciprocals", H, _grid(100, 900), lambda x: 1 / x - 1 / (x + 1), lambda x: 1 / (x * (1 + 1 / x)) / x),
    Formula("hypotenuse of large legs", H, _grid(200, 900), lambda x: torch.sqrt(x * x + x * x), lambda x: torch.hypot(x, x)),
    Formula("tanh by exponentials", H, _grid(-8, 8), lambda x: (torch.exp(2 * x) - 1) / (torch.exp(2 * x) + 1), torch.tanh),
    Formula(
        "logsumexp without the maximum",
        H,
        _normal(8, 32, scale=4, shift=10),
        lambda x: torch.log(torch.exp(x).sum(-1)),
        lambda x: torch.logsumexp(x, -1),
    ),
    Formula(
        "geometric mean by product",
        H,
        _normal(8, 32, scale=0.1, shift=3),
        lambda x: x.prod(-1) ** (1 / 32),
        lambda x: x.log().mean(-1).exp(),
    ),
    Formula(
        "binary cross entropy on probabilities",
        H,
        _grid(-16, 16),
        lambda x: -(0.5 * torch.log(torch.sigmoid(x)) + 0.5 * torch.log(1 - torch.sigmoid(x))),
        lambda x: F.binary_cross_entropy_with_logits(x, torch.full_like(x, 0.5), reduction="none"),
    ),
    Formula(
        "reciprocal root with a vanishing guard",
        H,
        lambda: torch.zeros(64),
        lambda x: x * torch.rsqrt(x * x + 1e-8),
        lambda x: x * torch.rsqrt(x * x + 1e-4),
    ),
    Formula(
        "fourth power by squares",
        H,
        _grid(10, 20),
        lambda x: (x.square().square() / 200000) ** 0.25,
        lambda x: (x.float().square().square() / 200000).pow(0.25).to(x.dtype),
    ),
]
