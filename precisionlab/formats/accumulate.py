"""What a sum or a dot product would have been under another accumulation: emulated, bit for bit, for many outputs side by side.

``accumulate_plan`` says what can be asked for, ``accumulate_steps`` and ``accumulate_blocks`` carry it out in fp64. numpy only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from precisionlab.errors import SettingsError
from precisionlab.formats.accumulate_blocks import block_fma_sum, in_blocks, over_blocks, product_exponents, side_by_side, two_level_sum
from precisionlab.formats.accumulate_plan import AccumulationOrder, AccumulationPlan, SumRounding
from precisionlab.formats.accumulate_steps import (
    Adder,
    BoolArray,
    CountArray,
    Partials,
    kahan_sum,
    neumaier_sum,
    pairwise_sum,
    running_sum,
)
from precisionlab.formats.format import FloatArray, Format, as_float64
from precisionlab.formats.rounding import round_to


@dataclass(frozen=True)
class Accumulation:
    """Sums with what happened while they were formed. Arrays have shape (m,), one entry per output; sums in the unit of the terms."""

    sums: FloatArray
    nonzero: CountArray
    """Terms that are not zero."""
    stagnated: CountArray
    """Of these, how many left the running sum as it was, alone or in a partial sum that did. A tree loses the smaller of two operands;
    a block FMA what alignment cuts off; stochastic rounding often leaves a sum as it was without losing anything on average."""
    overflowed: BoolArray
    """Whether finite numbers added up to more than the format of a partial sum holds."""
    largest_partial: FloatArray
    """Largest magnitude that a partial sum reached; Inf or NaN where one became so."""

    @property
    def stagnated_share(self) -> FloatArray:
        """``stagnated / nonzero``, 0 where every term is zero."""
        return np.asarray(self.stagnated / np.maximum(self.nonzero, 1), np.float64)


def accumulate(terms: ArrayLike, plan: AccumulationPlan, rng: np.random.Generator | None = None) -> FloatArray:
    """Sums of ``terms`` over the last axis under ``plan``, in float64: (m, n) to (m,), (n,) to a 0-d array. See ``emulate``."""
    return emulate(terms, plan, rng).sums


def emulate(
    terms: ArrayLike, plan: AccumulationPlan, rng: np.random.Generator | None = None, *, alignment: ArrayLike | None = None
) -> Accumulation:
    """Sums of ``terms`` over the last axis under ``plan``, bit for bit, with diagnostics.

    Terms are taken as they are and need not be numbers of the format: the first addition of each rounds. A sum begins with its first term
    (so a sum of -0 is -0), an empty sum is 0. Subnormals are kept; Inf and NaN among the terms go through as in IEEE 754; sums too large
    for the format become what ``Format.overflow`` says.
    Shapes: (m, n) to (m,), or (n,) to 0-d. ``rng`` draws for stochastic rounding; None is a generator seeded with 0. ``alignment`` is for
    block FMA alone: 2^exponent by which each term is aligned, of the shape of the terms; None is the terms' own (see ``dot``).
    Raises: SettingsError for other shapes, and for terms that do not fit in float64.
    """
    values = as_float64(terms)
    weights = None if alignment is None else as_float64(alignment)
    if weights is not None and weights.shape != values.shape:
        raise SettingsError(f"an alignment of shape {weights.shape} for terms of shape {values.shape}", hint="one exponent a term")
    if values.ndim not in (1, 2):
        raise SettingsError(f"terms of shape {values.shape} are no sums side by side", hint="shape (outputs, terms), or (terms,)")
    table = values if values.ndim == 2 else values[None]
    if table.shape[1] == 0:
        zero = np.zeros(values.shape[:-1])
        nothing = zero.astype(np.int64)
        return Accumulation(zero, nothing, nothing, zero.astype(np.bool_), zero)
    generator = np.random.default_rng(0) if rng is None else rng
    start = Partials.of_terms(np.ascontiguousarray(table.T))
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        done = _sum(start, plan, generator, None if weights is None else np.ascontiguousarray(weights.reshape(table.shape).T))
    nonzero = start.live.sum(0)
    shape = values.shape[:-1]
    return Accumulation(
        done.values.reshape(shape),
        nonzero.reshape(shape),
        (nonzero - done.live).reshape(shape),
        done.overflowed.reshape(shape),
        done.largest.reshape(shape),
    )


def dot(
    a: ArrayLike,
    b: ArrayLike,
    plan: AccumulationPlan,
    *,
    products: Format | None = None,
    operands: Format | None = None,
    rng: np.random.Generator | None = None,
) -> Accumulation:
    """Dot products of the rows of ``a`` and ``b`` (both (m, n), or (n,)), their products added up under ``plan``.

    ``products``: the format each product is rounded to (to nearest) before it is added; None leaves them exact, as fused and matrix units
    do, and lets block FMA align by the operands' exponents. Exact means up to 53 bits: operands of up to 26 digits, so any pair of formats
    up to fp32. ``operands``: their format, which matters only for the exponents of its subnormals.
    Raises: SettingsError for shapes that differ, and as ``emulate``.
    """
    left, right = as_float64(a), as_float64(b)
    if left.shape != right.shape:
        raise SettingsError(f"operands of shapes {left.shape} and {right.shape} have no products row by row", hint="equal shapes (m, n)")
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        terms = left * right
        alignment = product_exponents(left, right, operands)
    if products is not None:
        return emulate(round_to(terms, products), plan, rng)
    return emulate(terms, plan, rng, alignment=alignment)


def _sum(terms: Partials, plan: AccumulationPlan, rng: np.random.Generator, alignment: FloatArray | None) -> Partials:
    inner = Adder(plan.format, plan.rounding, rng)
    outer = Adder(plan.outer_format, plan.rounding, rng)
    n, rows = terms.values.shape
    order = plan.order
    if order is AccumulationOrder.SEQUENTIAL:
        return running_sum(terms, inner)
    if order is AccumulationOrder.PAIRWISE:
        return pairwise_sum(terms, inner)
    if order is AccumulationOrder.KAHAN:
        return kahan_sum(terms, inner)
    if order is AccumulationOrder.NEUMAIER:
        return neumaier_sum(terms, inner)
    if order is AccumulationOrder.SPLIT_K and plan.splits is not None:
        return two_level_sum(terms, -(-n // plan.splits), inner, outer, plan.stored_format)
    if order is AccumulationOrder.BLOCK_FMA and plan.block is not None and plan.bits is not None:
        if plan.promote_every is None:
            return block_fma_sum(terms, plan.block, plan.bits, inner, alignment)
        run = min(plan.promote_every, n)
        weights = None if alignment is None else side_by_side(alignment, run, 0.0)
        runs = block_fma_sum(in_blocks(terms, run), plan.block, plan.bits, inner, weights)
        return running_sum(over_blocks(runs, rows), Adder(plan.outer_format, SumRounding.NEAREST_EVEN, rng))
    if plan.block is None:
        raise SettingsError(f"{plan} lacks a block length", hint="block=128")
    return two_level_sum(terms, min(plan.block, n), inner, outer)
