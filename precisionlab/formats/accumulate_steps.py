"""Additions that round to a format, and running sums, trees and compensated sums made of them, for many sums side by side.

Every sum is emulated in fp64. An addition of two numbers of a format with p <= 25 digits rounds correctly when it is rounded to fp64 first
(53 >= 2p + 2, Figueroa 1995). Where an addend has other digits, or the rounding is directed, the fp64 sum is first rounded to *odd*, after
which any rounding to p <= 51 digits is that of the exact sum (Boldo & Melquiond 2008).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precisionlab.formats.accumulate_plan import SumRounding
from precisionlab.formats.catalogue import FP16, FP32, FP64
from precisionlab.formats.format import FloatArray, Format, Overflow
from precisionlab.formats.rounding import represents

BoolArray = NDArray[np.bool_]
CountArray = NDArray[np.int64]

_INNOCUOUS_PRECISION = 25
"""Largest p with 53 >= 2p + 2."""
_COMPILED_FROM = 1 << 12
"""Terms from which a sum is worth importing numba for."""
_CHUNK = 1 << 17
"""Numbers held at once: about a megabyte, so that a chunk stays in cache."""
_NATIVE: dict[Format, type[np.floating[Any]]] = {FP16: np.float16, FP32: np.float32, FP64: np.float64}
"""Formats that numpy adds in, rounding to nearest even. Its float16 goes through float32, which is innocuous: 24 >= 2 * 11 + 2."""
_EXPONENT = np.uint64(0x7FF0_0000_0000_0000)


@dataclass(frozen=True)
class Partials:
    """Partial sums with what happened on the way to them. All arrays have one shape."""

    values: FloatArray
    live: CountArray
    """Non-zero terms in a partial sum that have acted on it."""
    overflowed: BoolArray
    """Whether finite numbers added up to more than the format holds."""
    largest: FloatArray
    """Largest magnitude among the partial sums on the way."""

    @staticmethod
    def of_terms(terms: FloatArray) -> Partials:
        """The terms themselves: nothing has been added yet."""
        return Partials(terms, (terms != 0).astype(np.int64), np.zeros(terms.shape, np.bool_), np.zeros(terms.shape))

    def reshaped(self, *shape: int) -> Partials:
        """The same in another shape."""
        return Partials(self.values.reshape(shape), self.live.reshape(shape), self.overflowed.reshape(shape), self.largest.reshape(shape))

    def moved(self) -> Partials:
        """First axis last, or last axis first: 2-d transposition."""
        return Partials(*(np.ascontiguousarray(part.T) for part in (self.values, self.live, self.overflowed, self.largest)))


@dataclass(frozen=True)
class Adder:
    """Addition of fp64 arrays that hold numbers of a format, rounded to it."""

    fmt: Format
    rounding: SumRounding
    rng: np.random.Generator

    def round(self, x: FloatArray) -> FloatArray:
        """``x`` rounded once to the format, by the rule of this adder; overflow as ``Format.overflow`` says."""
        fmt = self.fmt
        if fmt == FP64:
            return x
        spacing = np.maximum((x.view(np.uint64) & _EXPONENT).view(np.float64), fmt.min_normal) * fmt.eps
        scaled = x / spacing
        if self.rounding is SumRounding.NEAREST_EVEN:
            scaled = np.rint(scaled)
        elif self.rounding is SumRounding.TOWARD_ZERO:
            scaled = np.trunc(scaled)
        else:
            below = np.floor(scaled)
            # Exact numbers stay, and the sign of zero with them: nothing is drawn below 0
            scaled = np.where(scaled == below, scaled, below + (self.rng.random(x.shape) < scaled - below))
        rounded: FloatArray = scaled * spacing
        too_large = ~(np.abs(rounded) <= fmt.max)
        if too_large.any():
            rounded[too_large] = self._beyond(x[too_large])
        if not fmt.has_negative_zero:
            rounded += 0.0
        return rounded

    def _beyond(self, x: FloatArray) -> FloatArray:
        limit = {Overflow.INFINITY: np.inf, Overflow.NAN: np.nan, Overflow.SATURATE: self.fmt.max}[self.fmt.overflow]
        finite = self.fmt.max if self.rounding is SumRounding.TOWARD_ZERO else limit
        return np.where(np.isnan(x), np.nan, np.copysign(np.where(np.isinf(x), limit, finite), x))

    def add(self, s: FloatArray, x: FloatArray, *, members: bool) -> FloatArray:
        """``s + x`` rounded once. ``members``: both are numbers of the format."""
        total: FloatArray = s + x
        if self.fmt != FP64 and not (members and self.rounding is SumRounding.NEAREST_EVEN and self.fmt.precision <= _INNOCUOUS_PRECISION):
            total = _to_odd(total, s, x)
        return self.round(total)

    def overflows(self, s: FloatArray, x: FloatArray, result: FloatArray) -> BoolArray:
        """Where finite ``s + x`` exceeded the format."""
        total = np.abs(s + x)
        if self.rounding is SumRounding.TOWARD_ZERO:
            beyond = total >= self.fmt.max + self.fmt.eps * 2.0**self.fmt.emax  # less than one spacing above is cut back to max
        elif self.fmt.overflow is Overflow.SATURATE:
            beyond = total > (self.fmt.overflow_threshold if self.rounding is SumRounding.NEAREST_EVEN else self.fmt.max)
        else:
            beyond = ~np.isfinite(result)
        return beyond & np.isfinite(s) & np.isfinite(x)

    def running(self, start: FloatArray, terms: FloatArray, *, members: bool) -> FloatArray:
        """All partial sums of ``terms`` (c, rows) added one after the other to ``start`` (rows,): (c, rows)."""
        native = _NATIVE.get(self.fmt) if self.rounding is SumRounding.NEAREST_EVEN and members else None
        sums = np.empty((len(terms) + 1, *start.shape), native or np.float64)
        sums[0] = start
        if native is not None:
            sums[1:] = terms
            np.add.accumulate(sums, axis=0, out=sums)
            return sums[1:].astype(np.float64)
        for k, term in enumerate(terms):
            sums[k + 1] = self.add(sums[k], term, members=members)
        return np.asarray(sums[1:], np.float64)


def running_sum(terms: Partials, adder: Adder) -> Partials:
    """Sums over the first axis of ``terms`` (n, rows), one addition after the other: (rows,). The first term is rounded like a sum."""
    n, rows = terms.values.shape
    members = bool(represents(terms.values, adder.fmt).all())
    if n * rows >= _COMPILED_FROM and adder.rounding is not SumRounding.STOCHASTIC and _kernels() is not None:
        return _compiled(terms, adder, members)
    total = np.full(rows, -0.0)  # the one number that leaves every first term as it is
    live, overflowed, largest = carried(terms)
    for first, last in _chunks(n, rows):
        chunk = terms.values[first:last]
        sums = adder.running(total, chunk, members=members)
        before = np.concatenate([total[None], sums[:-1]])
        over = adder.overflows(before, chunk, sums)
        lost = _unchanged(before, chunk, sums) & ~over
        live += np.where(lost, 0, terms.live[first:last]).sum(0)
        overflowed |= over.any(0)
        largest = np.maximum(largest, np.abs(sums).max(0))
        total = sums[-1]
    return Partials(total, live, overflowed, largest)


@functools.cache
def _kernels() -> Any:
    """The module of compiled sums, or None where numba cannot be imported."""
    try:
        from precisionlab.formats import accumulate_kernels
    except (ImportError, AttributeError):
        return None
    return accumulate_kernels


def _compiled(terms: Partials, adder: Adder, members: bool) -> Partials:
    """``running_sum`` by the compiled kernel: the same bits."""
    fmt = adder.fmt
    truncates = adder.rounding is SumRounding.TOWARD_ZERO
    limit = {Overflow.INFINITY: math.inf, Overflow.NAN: math.nan, Overflow.SATURATE: fmt.max}[fmt.overflow]
    beyond, closed = math.nan, False
    if truncates:
        beyond, closed = fmt.max + fmt.eps * 2.0**fmt.emax, True
    elif fmt.overflow is Overflow.SATURATE:
        beyond = fmt.overflow_threshold
    sums, live, overflowed, largest = _kernels().running(
        np.ascontiguousarray(terms.values),
        np.ascontiguousarray(terms.live),
        fmt != FP64 and (truncates or not members or fmt.precision > _INNOCUOUS_PRECISION),
        fmt == FP64,
        fmt.eps,
        fmt.min_normal,
        fmt.max,
        truncates,
        limit,
        fmt.max if truncates else limit,
        not fmt.has_negative_zero,
        beyond,
        closed,
    )
    before_live, before_overflowed, before_largest = carried(terms)
    return Partials(sums, before_live + live, before_overflowed | overflowed, np.maximum(before_largest, largest))


def pairwise_sum(terms: Partials, adder: Adder) -> Partials:
    """Sums over the first axis of ``terms`` (n, rows) by a balanced tree: (rows,). Of two operands the smaller can be lost."""
    members = bool(represents(terms.values, adder.fmt).all())
    level = terms if members else entered(terms, adder)
    while len(level.values) > 1:
        level = _halved(level, adder)
    return Partials(level.values[0], level.live[0], level.overflowed[0], level.largest[0])


def entered(terms: Partials, adder: Adder) -> Partials:
    """Terms, or partial sums, each rounded to the format of the adder; what becomes zero is lost."""
    values = adder.round(terms.values)
    over = adder.overflows(np.zeros_like(values), terms.values, values)
    live = np.where((values == 0) & (terms.values != 0), 0, terms.live)
    return Partials(values, live, terms.overflowed | over, np.maximum(terms.largest, np.abs(values)))


def _halved(level: Partials, adder: Adder) -> Partials:
    n = len(level.values) // 2 * 2
    left, right = level.values[:n:2], level.values[1:n:2]
    sums = adder.add(left, right, members=True)
    over = adder.overflows(left, right, sums)
    right_smaller = np.abs(right) <= np.abs(left)
    lost = np.where(right_smaller, _unchanged(left, right, sums), _unchanged(right, left, sums)) & ~over
    live_left, live_right = level.live[:n:2], level.live[1:n:2]
    live = np.where(lost & right_smaller, 0, live_right) + np.where(lost & ~right_smaller, 0, live_left)
    merged = Partials(
        sums,
        live,
        level.overflowed[:n:2] | level.overflowed[1:n:2] | over,
        np.maximum(np.abs(sums), np.maximum(level.largest[:n:2], level.largest[1:n:2])),
    )
    if n == len(level.values):
        return merged
    rest = (level.values[n:], level.live[n:], level.overflowed[n:], level.largest[n:])
    return Partials(
        *(np.concatenate(pair) for pair in zip((merged.values, merged.live, merged.overflowed, merged.largest), rest, strict=True))
    )


def kahan_sum(terms: Partials, adder: Adder) -> Partials:
    """Compensated sums over the first axis of ``terms`` (n, rows): (rows,). A term is lost if neither sum nor compensation changes.

    Source: Higham 2002, algorithm 4.2.
    """
    members = bool(represents(terms.values, adder.fmt).all())
    live, overflowed, largest = carried(terms)
    s = np.full(terms.values.shape[1:], -0.0)
    c = np.zeros_like(s)
    for x, weight in zip(terms.values, terms.live, strict=True):
        y = adder.add(-c, x, members=members)
        t = adder.add(s, y, members=True)
        error = adder.add(adder.add(t, -s, members=True), -y, members=True)
        over = adder.overflows(s, y, t)
        lost = _unchanged(s, x, t) & (error == c) & ~over
        live += np.where(lost, 0, weight)
        overflowed |= over
        largest = np.maximum(largest, np.abs(t))
        s, c = t, error
    return Partials(s, live, overflowed, largest)


def neumaier_sum(terms: Partials, adder: Adder) -> Partials:
    """Sums over the first axis of ``terms`` (n, rows) with their rounding errors summed apart: (rows,). Terms are rounded on entry.

    Source: Neumaier 1974, Rundungsfehleranalyse einiger Verfahren zur Summation endlicher Summen, algorithm IV.
    """
    if not represents(terms.values, adder.fmt).all():
        terms = entered(terms, adder)
    live, overflowed, largest = carried(terms)
    s = np.full(terms.values.shape[1:], -0.0)
    c = np.full_like(s, -0.0)
    for x, weight in zip(terms.values, terms.live, strict=True):
        t = adder.add(s, x, members=True)
        big, small = np.where(np.abs(s) >= np.abs(x), s, x), np.where(np.abs(s) >= np.abs(x), x, s)
        correction = adder.add(c, adder.add(adder.add(big, -t, members=True), small, members=True), members=True)
        over = adder.overflows(s, x, t)
        lost = _unchanged(s, x, t) & (correction == c) & ~over
        live += np.where(lost, 0, weight)
        overflowed |= over
        largest = np.maximum(largest, np.abs(t))
        s, c = t, correction
    return Partials(adder.add(s, c, members=True), live, overflowed, largest)


def _unchanged(before: FloatArray, term: FloatArray, after: FloatArray) -> BoolArray:
    return np.asarray((after == before) & (term != 0) & np.isfinite(before))


def carried(terms: Partials) -> tuple[CountArray, BoolArray, FloatArray]:
    """What the sums start with: nothing live, and the overflow and maxima of what goes into them."""
    rows = terms.values.shape[1:]
    return np.zeros(rows, np.int64), np.asarray(terms.overflowed.any(0)), np.asarray(terms.largest.max(0, initial=0.0))


def _chunks(n: int, rows: int) -> list[tuple[int, int]]:
    length = max(1, _CHUNK // max(rows, 1))
    return [(first, min(first + length, n)) for first in range(0, n, length)]


def _to_odd(total: FloatArray, s: FloatArray, x: FloatArray) -> FloatArray:
    """``s + x`` rounded to odd: where the fp64 sum ``total`` is inexact and even, its odd neighbour on the side of the exact sum.

    The rounding error of a sum is a float64 number itself. Source: Knuth 1997, The Art of Computer Programming 2, §4.2.2, theorem B.
    """
    virtual = total - s
    error = (s - (total - virtual)) + (x - virtual)
    bits = total.view(np.int64)
    inexact = (error != 0) & np.isfinite(error) & ((bits & 1) == 0)
    if not inexact.any():
        return total
    outward = (error > 0) == (total > 0)
    odd: FloatArray = (bits + np.where(inexact, np.where(outward, 1, -1), 0)).view(np.float64)
    return odd
