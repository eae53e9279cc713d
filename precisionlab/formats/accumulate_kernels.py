"""The numba kernel of running sums: ``accumulate_steps.running_sum`` in one pass over the terms, some thirty times as fast.

Imported lazily, for sums that are worth it; compiled code is cached on disk. Every operation is the scalar form of what ``Adder`` does to
arrays, in the same order, so that the results are the same bits (tests/formats hold one against the other).
"""
# mypy: ignore-errors
# (numba types this module, and checks it when it compiles)

from __future__ import annotations

import numpy as np
from numba import njit

_EXPONENT = np.uint64(0x7FF0_0000_0000_0000)
_ONE = np.uint64(1)


@njit(inline="always", error_model="numpy")
def _add(s, x, odd):
    """``s + x`` in fp64, rounded to odd where ``odd``. Source: as ``accumulate_steps._to_odd``."""
    total = s + x
    if odd:
        virtual = total - s
        error = (s - (total - virtual)) + (x - virtual)
        bits = np.float64(total).view(np.uint64)
        if error != 0.0 and np.isfinite(error) and (bits & _ONE) == 0:
            outward = (error > 0.0) == (total > 0.0)
            total = np.uint64(bits + _ONE if outward else bits - _ONE).view(np.float64)
    return total


@njit(inline="always", error_model="numpy")
def _round(x, eps, min_normal, largest, truncate, limit, finite_limit, unsigned_zero):
    """``Adder.round`` of one number."""
    binade = np.uint64(np.float64(x).view(np.uint64) & _EXPONENT).view(np.float64)
    spacing = max(binade, min_normal) * eps
    scaled = x / spacing
    rounded = (np.trunc(scaled) if truncate else np.rint(scaled)) * spacing
    if not abs(rounded) <= largest:
        rounded = x if np.isnan(x) else np.copysign(limit if np.isinf(x) else finite_limit, x)
    if unsigned_zero:
        rounded += 0.0
    return rounded


@njit(cache=True, nogil=True, error_model="numpy")
def running(terms, weights, odd, plain, eps, min_normal, largest, truncate, limit, finite_limit, unsigned_zero, beyond, closed):
    """Running sums over the first axis of ``terms`` (n, rows), all float64, with what happened: sums, live, overflowed, largest partial.

    ``weights`` (n, rows) int64: non-zero terms that each term stands for. ``plain``: the format is fp64 and nothing is rounded. A finite
    sum overflows where it is above ``beyond``, or at it if ``closed``; where ``beyond`` is NaN, if its result is not finite.
    """
    n, rows = terms.shape
    sums = np.full(rows, -0.0)
    live = np.zeros(rows, np.int64)
    overflowed = np.zeros(rows, np.bool_)
    most = np.zeros(rows)
    by_result = np.isnan(beyond)
    for k in range(n):
        for r in range(rows):
            s, x = sums[r], terms[k, r]
            after = _add(s, x, odd)
            if not plain:
                after = _round(after, eps, min_normal, largest, truncate, limit, finite_limit, unsigned_zero)
            over = False
            if np.isfinite(s) and np.isfinite(x):
                size = abs(s + x)
                over = (not np.isfinite(after)) if by_result else (size > beyond or (closed and size == beyond))
            if over:
                overflowed[r] = True
            if over or not (after == s and x != 0.0 and np.isfinite(s)):
                live[r] += weights[k, r]
            size = abs(after)
            if not size <= most[r] and not np.isnan(most[r]):
                most[r] = size
            sums[r] = after
    return sums, live, overflowed, most
