"""Sums made of blocks: two-level sums, and the multi-operand additions of matrix units."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from precisionlab.formats.accumulate_plan import SumRounding
from precisionlab.formats.accumulate_steps import Adder, Partials, carried, entered, running_sum
from precisionlab.formats.format import FloatArray, Format

Scalar = TypeVar("Scalar", bound=np.generic)

_EXPONENT = np.uint64(0x7FF0_0000_0000_0000)


def in_blocks(terms: Partials, block: int) -> Partials:
    """``terms`` (n, rows) as (block, rows * blocks) with blocks side by side; the last is filled up with -0, which no sum notices."""
    return Partials(
        side_by_side(terms.values, block, -0.0),
        side_by_side(terms.live, block, 0),
        side_by_side(terms.overflowed, block, 0),
        side_by_side(terms.largest, block, 0),
    )


def side_by_side(table: NDArray[Scalar], block: int, fill: float) -> NDArray[Scalar]:
    """A table (n, rows) as (block, rows * blocks), the last block filled up with ``fill``."""
    n, rows = table.shape
    blocks = -(-n // block)
    full = np.pad(table.T, ((0, 0), (0, blocks * block - n)), constant_values=fill)
    return np.ascontiguousarray(full.reshape(rows * blocks, block).T)


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


def block_fma_sum(terms: Partials, block: int, bits: int, adder: Adder, alignment: FloatArray | None = None) -> Partials:
    """Sums over the first axis of ``terms`` (n, rows) as a matrix unit adds products: (rows,).

    The running sum and ``block`` terms are aligned to the largest exponent e among them, truncated toward zero to multiples of
    ``2^(e - bits + 1)``, added without error, and the total is rounded once to the format of ``adder``. A term is lost if alignment cuts
    all of it off. ``alignment`` (n, rows) holds 2^exponent of each term; None takes the terms' own. For a product matrix units take the sum
    of the operands' exponents, which for a product of significands of 2 and more is one less than its own. Inf and NaN among the addends
    give what IEEE addition gives; zeros of either sign sum to 0.
    Source: Fasi, Higham, Mikaitis & Pranesh 2021, Numerical behavior of NVIDIA tensor cores, §3; Khattak & Mikaitis 2025, arXiv:2512.07004.
    """
    weights = np.abs(terms.values) if alignment is None else alignment
    total = np.full(terms.values.shape[1], -0.0)
    live, overflowed, largest = carried(terms)
    for first in range(0, len(terms.values), block):
        addends = np.concatenate([total[None], terms.values[first : first + block]])
        magnitude = np.maximum(np.abs(total), weights[first : first + block].max(0))
        exact, kept = _aligned_sum(addends, magnitude, bits)
        total = adder.round(exact)
        live += np.where(kept[1:] == 0, 0, terms.live[first : first + block]).sum(0)
        overflowed |= adder.overflows(exact, np.zeros_like(exact), total)
        largest = np.maximum(largest, np.abs(total))
    return Partials(total, live, overflowed, largest)


def product_exponents(a: FloatArray, b: FloatArray, operands: Format | None = None) -> FloatArray:
    """2^(e_a + e_b) for each pair of operands, by which matrix units align their products; 0 where one is 0, Inf or NaN where one is.

    Subnormals of ``operands`` have the exponent of its smallest normal number, without it those of their leading digits.
    """
    sizes = []
    for x in (a, b):
        binade = _binade(x)
        sizes.append(binade if operands is None else np.where(x == 0, 0.0, np.maximum(binade, operands.min_normal)))
    return np.asarray(sizes[0] * sizes[1])


def _binade(x: FloatArray) -> FloatArray:
    """2^floor(log2 |x|), 0 for zeros, Inf for Inf and NaN."""
    binade: FloatArray = (np.abs(x).view(np.uint64) & _EXPONENT).view(np.float64)
    return binade


def _aligned_sum(addends: FloatArray, magnitude: FloatArray, bits: int) -> tuple[FloatArray, FloatArray]:
    """The sum of the truncated ``addends`` (k, rows), exact in fp64, and the addends in units of the last bit kept.

    ``magnitude`` (rows,): a number with the exponent that the addends are aligned to.
    """
    binade = _binade(magnitude)
    unit = np.where((binade > 0) & np.isfinite(binade), binade * 2.0 ** (1 - bits), 1.0)
    kept = np.trunc(addends / unit)
    total: FloatArray = kept.sum(0) * unit
    special = ~np.isfinite(magnitude)
    if special.any():
        total = np.where(special, addends.sum(0), total)
    return total, kept
