"""Forecasts beside measurements at a size that the fit has not seen. No torch in here."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from precisionlab.growth.analysis import AxisGrowth, Trend
from precisionlab.growth.fits import Fit
from precisionlab.growth.measurement import Measurement, Quantity

BEYOND = 2.0
"""How far beyond the largest size a confirmation goes where nothing is forecast to be reached."""


@dataclass(frozen=True)
class Confirmation:
    """One quantity at one size: what its law forecasts there, and what was measured (a geometric mean over the seeds)."""

    axis: str
    size: float
    quantity: Quantity
    place: str
    forecast: float
    low: float
    high: float
    measured: float

    @property
    def inside(self) -> bool:
        """Whether the measurement lies in the interval of the forecast."""
        return self.low <= self.measured <= self.high


def confirmation_size(growth: AxisGrowth, too_large: Callable[[float], str]) -> tuple[float, str]:
    """The first size at which a limit is to be reached, or the largest below it that fits; with a word on why it is another one.

    Returns (0, reason) where no size beyond those measured can be run.
    """
    largest = growth.sweep.sizes[-1]
    wanted = [t.forecast.size for t in growth.trends if t.forecast is not None and t.forecast.size > largest]
    size = float(math.ceil(min(wanted))) if wanted else largest * BEYOND
    reason = "" if wanted else f"no limit is forecast to be reached: {BEYOND:g} times the largest size instead"
    while size > largest:
        obstacle = too_large(size)
        if not obstacle:
            return size, reason
        reason = f"{growth.sweep.axis} {size:g} was not run: {obstacle}"
        size = float(math.floor(size / 2)) if size / 2 > largest else 0.0
    return 0.0, reason


def confirmations(trends: tuple[Trend, ...], measurements: list[Measurement]) -> list[Confirmation]:
    """Every trend with a law beside what was measured; quantities that were not measured there are left out."""
    found = []
    for trend in trends:
        if not isinstance(trend.law, Fit):
            continue
        values = [m.places.get(trend.quantity, {}).get(trend.place) if trend.place else m.totals.get(trend.quantity) for m in measurements]
        kept = [v for v in values if v is not None]
        if not kept:
            continue
        finite = all(v > 0 and math.isfinite(v) for v in kept)
        measured = math.exp(sum(math.log(v) for v in kept) / len(kept)) if finite else max(kept)
        size = measurements[0].size
        low, high = trend.law.interval(size)
        found.append(Confirmation(trend.axis, size, trend.quantity, trend.place, trend.law.at(size), low, high, measured))
    return found
