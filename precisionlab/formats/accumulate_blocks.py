"""Sums made of blocks: two-level sums, and the multi-operand additions of matrix units."""

from __future__ import annotations

import numpy as np

from precisionlab.formats.accumulate_plan import SumRounding
from precisionlab.formats.accumulate_steps import Adder, Partials, carried, entered, running_sum
from precisionlab.formats.format import FloatArray, Format

_EXPONENT = np.uint64(0x7FF0_0000_0000_0000)


def in_blocks(terms: Partials, block: int) -> Partials:
    """``terms`` (n, rows) as (block, rows * blocks) with blocks side by side; the last is filled up with -0, which no sum notices."""
    n, rows = terms.values.shape
    blocks = -(-n // block)
    missing = blocks * block - n
    across = terms.moved()  # (rows, n)
    if missing:
        across = Partials(
            np.pad(across.values, ((0, 0), (0, missing)), constant_values=-0.0),
            np.pad(across.live, ((0, 0), (0, missing))),
            np.pad(across.overflowed, ((0, 0), (0, missing))),
            np.pad(across.largest, ((0, 0), (0, missing))),
        )
    return across.reshaped(rows * blocks, block).moved()


def over_blocks(sums: Partials, rows: int) -> Partials:
    """Block sums (rows * blocks,) as (blocks, rows)."""
    return sums.reshaped(rows, -1).moved()


def two_level_sum(terms: Partials, block: int, inner: Adder, outer: Adder, stored: Format | None = None) -> Partials:
    """Running sums of ``block`` terms, rounded to ``stored`` (to nearest) if given, then a running sum over them: (n, rows) to (rows,)."""
    rows = terms.values.shape[1]
    partial = running_sum(in_blocks(terms, block), inner)
    if stored is not None:
        partial = entered(partial, Adder(stored, SumRounding.NEAREST_EVEN, inner.rng))
    return running_sum(over_blocks(partial, rows), outer)


def block_fma_sum(terms: Partials, block: int, bits: int, adder: Adder) -> Partials:
    """Sums over the first axis of ``terms`` (n, rows) as a matrix unit adds products: (rows,).

    The running sum and ``block`` terms are aligned to the largest of them, truncated toward zero to multiples of ``2^(e - bits + 1)``
    with e its exponent, added without error, and the total is rounded once to the format of ``adder``. A term is lost if alignment cuts
    all of it off. Exponents are those of the normalised terms; hardware aligns by the sum of the operands' exponents, which for products
    of 2 and more keeps one bit less. Inf and NaN among the addends give what IEEE addition gives; zeros of either sign sum to 0.
    Source: Fasi, Higham, Mikaitis & Pranesh 2021, Numerical behavior of NVIDIA tensor cores, §3; Khattak & Mikaitis 2025, arXiv:2512.07004.
    """
    rows = terms.values.shape[1]
    total = np.full(rows, -0.0)
    live, overflowed, largest = carried(terms)
    for first in range(0, len(terms.values), block):
        chunk = terms.values[first : first + block]
        addends = np.concatenate([total[None], chunk])
        exact, kept = _aligned_sum(addends, bits)
        total = adder.round(exact)
        live += np.where(kept[1:] == 0, 0, terms.live[first : first + block]).sum(0)
        overflowed |= adder.overflows(exact, np.zeros_like(exact), total)
        largest = np.maximum(largest, np.abs(total))
    return Partials(total, live, overflowed, largest)


def _aligned_sum(addends: FloatArray, bits: int) -> tuple[FloatArray, FloatArray]:
    """The sum of the truncated ``addends`` (k, rows), exact in fp64, and the addends in units of the last bit kept."""
    magnitude = np.abs(addends).max(0)
    binade = (magnitude.view(np.uint64) & _EXPONENT).view(np.float64)
    unit = np.where((binade > 0) & np.isfinite(binade), binade * 2.0 ** (1 - bits), 1.0)
    kept = np.trunc(addends / unit)
    total: FloatArray = kept.sum(0) * unit
    special = ~np.isfinite(magnitude)
    if special.any():
        total = np.where(special, addends.sum(0), total)
    return total, kept
