"""Sums one addition at a time, in rational arithmetic, written from the definitions. Slow, and shares no code with the emulators."""

from __future__ import annotations

import math
from fractions import Fraction

from precisionlab import formats as f
from precisionlab.formats.accumulate_plan import AccumulationOrder, AccumulationPlan, SumRounding

Order = AccumulationOrder


def rounded(x: Fraction, fmt: f.Format, rounding: SumRounding = SumRounding.NEAREST_EVEN) -> float:
    """``x`` as a number of ``fmt``: the quotient by the spacing, rounded to an integer."""
    magnitude = abs(x)
    exponent = fmt.emin
    while magnitude >= Fraction(2) ** (exponent + 1):
        exponent += 1
    spacing = Fraction(2) ** (exponent - fmt.precision + 1)
    quotient = magnitude / spacing
    whole = quotient.numerator // quotient.denominator
    if rounding is SumRounding.NEAREST_EVEN:
        rest = quotient - whole
        whole += rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2 == 1)
    result = whole * spacing
    if result <= Fraction(fmt.max):
        return math.copysign(float(result), x)
    if rounding is SumRounding.TOWARD_ZERO or fmt.overflow is f.Overflow.SATURATE:
        return math.copysign(fmt.max, x)
    return math.nan if fmt.overflow is f.Overflow.NAN else math.copysign(math.inf, x)


def added(a: float, b: float, fmt: f.Format, rounding: SumRounding = SumRounding.NEAREST_EVEN) -> float:
    """``a + b`` rounded once. Inf and NaN as in IEEE 754, and then as the format stores them."""
    if math.isfinite(a) and math.isfinite(b):
        return rounded(Fraction(a) + Fraction(b), fmt, rounding)
    total = a + b
    if math.isnan(total) or fmt.overflow is f.Overflow.INFINITY:
        return total
    return math.nan if fmt.overflow is f.Overflow.NAN else math.copysign(fmt.max, total)


def running(terms: list[float], fmt: f.Format, rounding: SumRounding = SumRounding.NEAREST_EVEN) -> list[float]:
    """Every partial sum."""
    sums, total = [], 0.0
    for x in terms:
        total = added(total, x, fmt, rounding)
        sums.append(total)
    return sums


def tree(terms: list[float], fmt: f.Format, rounding: SumRounding) -> float:
    level = [added(0.0, x, fmt, rounding) for x in terms]
    while len(level) > 1:
        pairs = [added(level[i], level[i + 1], fmt, rounding) for i in range(0, len(level) - 1, 2)]
        level = pairs + level[len(pairs) * 2 :]
    return level[0]


def kahan(terms: list[float], fmt: f.Format) -> float:
    s = c = 0.0
    for x in terms:
        y = added(x, -c, fmt)
        t = added(s, y, fmt)
        c = added(added(t, -s, fmt), -y, fmt)
        s = t
    return s


def neumaier(terms: list[float], fmt: f.Format) -> float:
    s = c = 0.0
    for raw in terms:
        x = added(0.0, raw, fmt)
        t = added(s, x, fmt)
        big, small = (s, x) if abs(s) >= abs(x) else (x, s)
        c = added(c, added(added(big, -t, fmt), small, fmt), fmt)
        s = t
    return added(s, c, fmt)


def block_fma(terms: list[float], block: int, bits: int, fmt: f.Format, rounding: SumRounding) -> float:
    total = 0.0
    for first in range(0, len(terms), block):
        addends = [Fraction(x) for x in [total, *terms[first : first + block]]]
        largest = max(abs(x) for x in addends)
        if largest == 0:
            continue
        exponent = 0
        while largest >= Fraction(2) ** (exponent + 1):
            exponent += 1
        while largest < Fraction(2) ** exponent:
            exponent -= 1
        unit = Fraction(2) ** (exponent - bits + 1)
        total = rounded(sum(math.trunc(x / unit) for x in addends) * unit, fmt, rounding)
        if not math.isfinite(total):
            return total
    return total


def reference_sum(terms: list[float], plan: AccumulationPlan) -> float:
    """The sum of finite ``terms`` under a deterministic plan."""
    fmt, rounding = plan.format, plan.rounding
    if not terms:
        return 0.0
    if plan.order is Order.SEQUENTIAL:
        return running(terms, fmt, rounding)[-1]
    if plan.order is Order.PAIRWISE:
        return tree(terms, fmt, rounding)
    if plan.order is Order.KAHAN:
        return kahan(terms, fmt)
    if plan.order is Order.NEUMAIER:
        return neumaier(terms, fmt)
    if plan.order is Order.BLOCK_FMA:
        assert plan.block and plan.bits
        if plan.promote_every is None:
            return block_fma(terms, plan.block, plan.bits, fmt, rounding)
        runs = [
            block_fma(terms[i : i + plan.promote_every], plan.block, plan.bits, fmt, rounding)
            for i in range(0, len(terms), plan.promote_every)
        ]
        return running(runs, plan.outer or f.FP32)[-1]
    length = plan.block if plan.order is Order.BLOCKED else -(-len(terms) // (plan.splits or 1))
    assert length
    partial = [running(terms[i : i + length], fmt, rounding)[-1] for i in range(0, len(terms), length)]
    if plan.order is Order.SPLIT_K:
        partial = [added(0.0, x, plan.stored or fmt) for x in partial]
    return running(partial, plan.outer or fmt, rounding)[-1]
