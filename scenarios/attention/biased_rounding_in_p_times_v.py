"""Biased rounding in P times V.

Two keys share the maximum, so two probabilities are exactly 1: the products are rounded by {bias:.2f} units of the last place,
always to the same side.

What happens
    Flash attention keeps P = exp(s - max) unnormalised. Where two scores are equal and maximal, P has two exact ones, and the row
    of P V is v1 + v2 plus a tiny rest. v1 and v2 are bf16 numbers of the same sign, so their sum has one more bit: half of the sums
    lie exactly between two bf16 numbers. Such ties would go up or down evenly, but the rest, all of one sign, breaks every tie in
    the same direction. The mean error is not 0 but a quarter of a unit.

How to recognise it
    Not by the size of the error: each result is correctly rounded, within half a unit. A mean signed error, over many tokens, that
    is far from zero: {bias:.3f} with a standard error of {noise:.4f}. Over a training run it adds up in one direction, as in the
    loss explosions that led to its discovery.

The repair
    Make the ones inexact: shift the maximum of rows in which it repeats, so that P = exp(-shift) is rounded itself. Or store the
    product in fp32 ({bias_fixed:.3f}).

When it is no problem
    One maximum, or values of mixed sign.

Sources
    Qiu & Yao 2025, Why Low-Precision Transformer Training Fails: An Analysis on Flash Attention, arXiv:2510.04212.
"""

import torch
from torch import Tensor

DTYPE = "bf16"
LEVEL = "expert"
COVERS = ("biased pv",)
UNNAMED = (
    "Every single result is correctly rounded, so no op is at fault by its error. The audit judges sizes of errors, not their mean sign: "
    "a bias of a quarter of a unit stays below what it reports."
)
CLAIMS = {"bias": (-0.27, -0.22), "noise": (0, 0.01), "bias_fixed": (-0.01, 0.01)}
QUIZ = (
    (
        "Each product is correctly rounded. Which mean signed error, in units of the last place, has the sum of two exact ones times V?",
        {"0, rounding to nearest is unbiased": "abs(bias) < 0.02", "-1/4": "-0.27 < bias < -0.22", "-1/2": "bias < -0.4"},
    ),
)
PICTURE = ("line", "errors", "output (error in units of the last place, sorted)")


def _attend(dtype: torch.dtype, stored: torch.dtype) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    v = (-2 - 2 * torch.rand(64, 4096, generator=generator)).to(torch.bfloat16).to(dtype)
    scores = -12 - 4 * torch.rand(1, 64, generator=generator, dtype=torch.float64)
    scores[0, :2] = 0.0  # two keys share the maximum
    p = scores.exp().to(torch.bfloat16).to(dtype)
    wide = torch.promote_types(dtype, torch.float32)
    out = (p.to(wide) @ v.to(wide)).to(stored)
    exact = p.double() @ v.double()
    spacing = torch.exp2(exact.abs().log2().floor() - 7)
    return {"out": out, "errors": ((out.double() - exact) / spacing).flatten().sort().values}


def broken(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _attend(dtype, dtype)


def fixed(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _attend(dtype, torch.float32)


def reference() -> dict[str, Tensor]:
    return _attend(torch.float64, torch.float64)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    errors = broken["errors"]
    return {
        "bias": float(errors.mean()),
        "noise": float(errors.std() / errors.numel() ** 0.5),
        "bias_fixed": float(fixed["errors"].mean()),
    }
