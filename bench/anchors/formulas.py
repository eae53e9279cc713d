"""From which input on three common formulas fail, against their fp64 twins."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

import precisionlab as pl
from bench.anchors.anchor import Check, anchor
from bench.anchors.audited import AUDIT

Tensor = torch.Tensor
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
STEP = 0.01


def log_softmax(gap: Tensor) -> Tensor:
    """log(softmax) of the smaller of two logits, ``gap`` below the other."""
    return torch.log(torch.softmax(torch.stack([torch.zeros_like(gap), -gap], -1), -1))[..., 1]


def log_one_minus_sigmoid(z: Tensor) -> Tensor:
    """The loss of a negative example, written out."""
    return torch.log(1 - 1 / (1 + torch.exp(-z)))


def softplus(z: Tensor) -> Tensor:
    """log(1 + e^z), written out."""
    return torch.log(1 + torch.exp(z))


def failures(formula: Callable[[Tensor], Tensor], dtype: torch.dtype, grid: Tensor, wrong_by: float | None) -> tuple[float, float]:
    """Where results are non-finite (``wrong_by`` None) or off by more than a share of their fp64 twin, along ``grid``.

    The first such input, and the first from which on all of them are. Inputs are rounded to the dtype. NaN where there is none.
    """
    x = grid.to(dtype)
    with pl.audit() as audit:
        y = formula(x)
        true = audit.shadow(y)
    bad = true.isfinite() & ~y.isfinite()
    if wrong_by is not None:
        bad |= (y.double() - true).abs() > wrong_by * true.abs()
    tail = bad.flip(0).long().cumprod(0).flip(0).bool()
    return tuple(float(x[mask.long().argmax()]) if mask.any() else float("nan") for mask in (bad, tail))  # type: ignore[return-value]


@anchor("onsets", "where log(softmax), log(1 - sigmoid) and log(1 + exp) fail")
def onsets() -> Iterator[Check]:
    """A non-finite onset is known to within a step of the grid and a spacing of the dtype. Errors come and go with the input before they
    stay: the expected onset of a 5 % error must lie between the first and the first lasting one.

    Source of the patterns: Yan et al. 2021, Exposing Numerical Bugs in Deep Learning with Gradient Back-Propagation (GRIST);
    Kloberdanz, Kloberdanz & Le 2022, DeepStability.
    """
    up, near_zero = torch.arange(1.0, 110.0, STEP), torch.arange(1.0, 30.0, STEP)
    for name, expected in (("fp32", 104.0), ("bf16", 92.8), ("fp16", 17.4)):
        yield _nonfinite(f"{name} log(softmax): -Inf from a gap of", log_softmax, DTYPES[name], up, expected)
    for name, nonfinite, wrong in (("fp32", 16.7, 16.7), ("bf16", 5.6, 4.4), ("fp16", 7.7, 7.3)):
        yield _nonfinite(f"{name} log(1 - sigmoid): -Inf from", log_one_minus_sigmoid, DTYPES[name], near_zero, nonfinite)
        yield _wrong(f"{name} log(1 - sigmoid): 5 % wrong from", log_one_minus_sigmoid, DTYPES[name], near_zero, wrong)
    for name, nonfinite, wrong in (("fp32", 88.8, -13.8), ("bf16", 88.8, -3.0), ("fp16", 11.1, -4.8)):
        yield _nonfinite(f"{name} log(1 + exp): Inf from", softplus, DTYPES[name], up, nonfinite)
        yield _wrong(f"{name} log(1 + exp): 5 % wrong below", softplus, DTYPES[name], -near_zero, wrong)


def _spread(expected: float, dtype: torch.dtype) -> float:
    """A step of the grid and a spacing of the dtype."""
    return STEP + abs(expected) * torch.finfo(dtype).eps


def _nonfinite(claim: str, formula: Callable[[Tensor], Tensor], dtype: torch.dtype, grid: Tensor, expected: float) -> Check:
    spread = _spread(expected, dtype)
    # expected values stand on a grid of tenths: the onset itself lies up to a tenth before
    found = failures(formula, dtype, grid, None)[0]
    return Check(claim, found, f"{expected - 0.1:.4g}..{expected:.4g}", expected - 0.1 - spread, expected + spread, AUDIT)


def _wrong(claim: str, formula: Callable[[Tensor], Tensor], dtype: torch.dtype, grid: Tensor, expected: float) -> Check:
    low, high = sorted(failures(formula, dtype, grid, 0.05))
    spread = 0.1 + _spread(expected, dtype)
    return Check(claim, expected, f"in {low:.4g}..{high:.4g}", low - spread, high + spread, AUDIT)
