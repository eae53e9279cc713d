"""Accumulators judged by error alone, for sums whose terms cannot be chosen: squares, exponentials, running means.

The kernel's results on spread-out data are compared with the same op in fp64. An accumulator wider than the result's format leaves
nothing but the last rounding: half an ulp. One of the result's own format adds errors that grow with n. What cannot be told apart (fp32
from fp64 behind a half result) is called by the narrower, and the evidence says so. The order shows where the terms are squares or
exponentials: how many small ones vanish beside a large one tells how many partial sums there are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from precisionlab.backends.trees import FloatArray, Sums
from precisionlab.formats.catalogue import FP32, FP64
from precisionlab.formats.format import Format

ROUNDED_ONCE = 0.51
"""Ulps: half for the last rounding, and room for a sum in the next wider format, whose own error is 2^-12 ulp and below."""
ROUNDED_TWICE = 1.02
"""Ulps: a half result that was also rounded once on its way (a logarithm of the sum, stored). A sum kept in half shows more."""


@dataclass(frozen=True)
class ErrorLevel:
    """Largest error over all rows, in ulps of the result's format."""

    ulps: float
    rows: int


def spread(rows: int, length: int, storage: Format) -> FloatArray:
    """Terms (rows, length) of ``storage``, uniform on [m/2, 3m/2), with a mean m of 1 to 2 that differs from row to row."""
    means = 1.0 + np.arange(rows)[:, None] / rows
    draws = np.random.default_rng(length).random((rows, length))
    grid = 2.0 ** (storage.precision - 3)  # exact in every binade below 4
    return np.floor((0.5 + draws) * means * grid) / grid


def error_level(sums: Sums, reference: Sums, length: int, storage: Format, result: Format, rows: int = 16) -> ErrorLevel:
    """The kernel ``sums`` against ``reference``, the same in fp64; the kernel returns numbers of ``result``."""
    terms = spread(rows, length, storage)
    exact = reference(terms)
    ulps = np.abs(sums(terms) - exact) / result.ulp(exact)
    return ErrorLevel(float(np.max(np.where(np.isnan(ulps), np.inf, ulps))), rows)


@dataclass(frozen=True)
class Unfolded:
    """How a kernel's terms and result are made from, and read as, a sum of positive contributions."""

    terms: Callable[[FloatArray], FloatArray]
    """Contribution (to the sum) -> term: the square root for a norm."""
    added: Callable[[FloatArray, int], FloatArray]
    """Result, n -> the sum less 1, without cancellation where that is possible."""


SQUARES = Unfolded(np.sqrt, lambda y, n: (y - 1.0) * (y + 1.0))
MEAN_SQUARES = Unfolded(np.sqrt, lambda y, n: y * n - 1.0)
EXPONENTIALS = Unfolded(np.log, lambda y, n: np.expm1(y))
NEGATED_LOG = Unfolded(np.log, lambda y, n: np.expm1(-y))
RECIPROCAL = Unfolded(np.log, lambda y, n: 1.0 / y - 1.0)


def lost_share(sums: Sums, unfolded: Unfolded, length: int, accumulation: Format) -> float:
    """The share of n - 1 small terms that vanish beside a first term of 1, each being 3/8 of the last place of 1.

    1 where one partial sum takes them all; 1/v where v partial sums share them, of which one began with the 1. Only results of the
    accumulator's own format can show it.
    """
    small = 0.75 * accumulation.u
    terms = unfolded.terms(np.full((1, length), small))
    terms[0, 0] = unfolded.terms(np.ones(1))[0]
    added = float(unfolded.added(sums(terms), length)[0])
    return 1.0 - added / (small * (length - 1))


def accumulation_by_error(level: ErrorLevel, storage: Format, result: Format) -> str:
    """The narrowest format that explains the error level."""
    if result.precision >= FP32.precision:
        return FP64.name if level.ulps <= ROUNDED_ONCE else FP32.name
    return FP32.name if level.ulps <= ROUNDED_TWICE else storage.name
