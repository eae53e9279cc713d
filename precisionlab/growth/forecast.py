"""Where a law of growth crosses a limit, with the interval of that size by inverse prediction. No torch in here.

Every size at which the limit lies inside the prediction interval of a measurement could be the crossing: the interval of the size is that
set (calibration; Draper & Smith 1998, Applied Regression Analysis, section 3.2). It is infinite above where the law may also be flat.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from precisionlab.growth.fits import LEVEL, Fit, Law

HORIZON = 100.0
"""Power and saturating laws are followed up to this many times the largest size measured: two decades beyond usually three or more."""
EXPONENTIAL_RANGES = 10.0
"""Exponential laws are followed for this many times the range of sizes measured."""


@dataclass(frozen=True)
class Forecast:
    """The limit is reached at ``size``, with 95 % between ``low`` and ``high``. ``beyond`` is the factor over the largest size measured.

    ``high`` is infinite where the limit may not be reached within the horizon.
    """

    limit: float
    size: float
    low: float
    high: float
    beyond: float


def crossing(fit: Fit, limit: float, level: float = LEVEL) -> Forecast | None:
    """Where a growing law reaches ``limit``; None where it does not within the horizon, or may as well not grow (0 is in the interval of
    its exponent).

    A crossing that lies inside the measured sizes is given as well: there the law says where between two sizes it happened.
    """
    if limit <= 0 or fit.law is Law.FLAT or (fit.law is not Law.SATURATING and fit.exponent_interval(level)[0] <= 0):
        return None
    smallest, largest = fit.sizes[0], fit.sizes[-1]
    start, end = smallest / HORIZON, largest * HORIZON
    if fit.law is Law.EXPONENTIAL:
        end = min(end, largest + EXPONENTIAL_RANGES * (largest - smallest))
    size = _first(fit.at, limit, start, end)
    if size is None:
        return None
    low = _first(lambda n: fit.interval(n, level)[1], limit, start, size)
    high = _first(lambda n: fit.interval(n, level)[0], limit, size, end)
    return Forecast(limit, size, start if low is None else low, math.inf if high is None else high, size / largest)


def _first(curve: Callable[[float], float], limit: float, start: float, end: float) -> float | None:
    """The size at which ``curve`` first reaches ``limit``: a scan in steps of 5 %, then bisection. None where it stays below."""
    step = 1.05
    if not end > start:
        return start if curve(start) >= limit else None
    if end / start > 1e30:
        step = (end / start) ** (1 / 1500)
    before = start
    if curve(before) >= limit:
        return before
    while before < end:
        after = min(before * step, end)
        if curve(after) >= limit:
            for _ in range(60):
                middle = math.sqrt(before * after)
                before, after = (before, middle) if curve(middle) >= limit else (middle, after)
            return after
        before = after
    return None
