"""Variance as E[x^2] - E[x]^2.

Data with mean {mean:.0f} and variance 1: the formula gives variances from {low:.2f} to {high:.2f} in bf16, {negative:.0%} of them
negative.

What happens
    E[x^2] and E[x]^2 are both about {mean:.0f}^2 = {square:.0f}; each is rounded to 8 bits, an error of up to {rounding:.1f}. Their
    difference is 1. The subtraction itself is exact: it makes the errors of its operands visible. The relative error is about (mean
    / standard deviation)^2 times the rounding unit, so it depends on the offset of the data, not on their spread.

How to recognise it
    Negative variances, NaN from their roots, norms that explode on channels with a large mean. One-pass statistics in hand-written
    norms, and running sums of squares.

The repair
    Two passes: subtract the mean, then average the squares. Or Welford's update, or fp32 statistics: `F.layer_norm` and `torch.var`
    keep them in fp32. The variances are then right to {error_fixed:.1%}.

When it is no problem
    Centred data, with a mean smaller than the standard deviation.

Sources
    Chan, Golub & LeVeque 1983, Algorithms for computing the sample variance; Higham 2002, section 1.9.
"""

import math

import torch
from torch import Tensor

DTYPE = "bf16"
LEVEL = "first steps"
COVERS = ("variance", "softmax statistics")
EXPECT = (("PL501", "aten.sub"),)
CLAIMS = {
    "mean": (30, 30),
    "low": (-8, 0),
    "high": (1, 10),
    "negative": (0.05, 0.6),
    "square": (900, 900),
    "rounding": (1.5, 2.5),
    "error_fixed": (0, 0.02),
}
QUIZ = (
    (
        "Mean 30, variance 1, bf16. What does E[x^2] - E[x]^2 give?",
        {"1 to two digits": "high < 1.05", "anything from about -2 to 4": "high > 1.5 and low < 0.5"},
    ),
)
PICTURE = ("line", "variances", "row")


def _variances(dtype: torch.dtype, two_passes: bool) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(7)
    x = (torch.randn(64, 256, generator=generator) + 30.0).to(torch.bfloat16).to(dtype)
    if two_passes:
        wide = x.to(torch.promote_types(dtype, torch.float32))
        variances = (wide - wide.mean(-1, keepdim=True)).square().mean(-1).to(dtype)
    else:
        variances = (x * x).mean(-1) - x.mean(-1) ** 2
    return {"variances": variances}


def broken(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _variances(dtype, two_passes=False)


def fixed(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _variances(dtype, two_passes=True)


def reference() -> dict[str, Tensor]:
    return _variances(torch.float64, two_passes=False)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    return {
        "mean": 30,
        "low": float(broken["variances"].min()),
        "high": float(broken["variances"].max()),
        "negative": float((broken["variances"] < 0).double().mean()),
        "square": 900,
        "rounding": 2.0 ** (math.floor(math.log2(900)) - 8),
        "error_fixed": float((fixed["variances"] / reference["variances"] - 1).abs().max()),
    }
