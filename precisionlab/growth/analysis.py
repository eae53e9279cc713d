"""From a sweep to trends: each quantity with its law, its limits, and the sizes at which it is to reach them. No torch in here."""

from __future__ import annotations

import math
from dataclasses import dataclass

from precisionlab.formats import get_format
from precisionlab.growth.fits import LEVEL, Fit, Law, Onset, Refusal, fit
from precisionlab.growth.forecast import Forecast, crossing
from precisionlab.growth.measurement import PLACED, UNIT_ROUNDOFFS, Quantity, Sweep
from precisionlab.thresholds import Thresholds

HALF_FORMATS = ("fp16", "bf16")
MATERIAL = {Quantity.FLUSHED: 2.0**-11, Quantity.SWAMPED: 0.01}
"""Shares that count as none: energy below one rounding of fp16, and what chance alone swamps."""
STALLED = 0.5
"""Share of the additions that change nothing above which a sum or a weight stands still."""


@dataclass(frozen=True)
class Trend:
    """One quantity along one axis. ``values`` are geometric means over the seeds (means where one is 0)."""

    axis: str
    dtype: str
    quantity: Quantity
    place: str
    sizes: tuple[float, ...]
    values: tuple[float, ...]
    law: Fit | Onset | Refusal
    limits: dict[str, float]
    """Format -> the value that is too much in it."""
    forecasts: dict[str, Forecast]
    """Format -> where the law reaches its limit."""

    @property
    def forecast(self) -> Forecast | None:
        """Of the format under audit."""
        return self.forecasts.get(self.dtype)


@dataclass(frozen=True)
class AxisGrowth:
    """Everything that was learned along one axis."""

    sweep: Sweep
    trends: tuple[Trend, ...]

    def trend(self, quantity: Quantity) -> Trend | None:
        """The trend of a quantity, at the place that leads; None where it was not measured."""
        return next((t for t in self.trends if t.quantity is quantity), None)

    @property
    def first(self) -> Trend | None:
        """The trend whose limit is reached at the smallest size, in the format under audit; None where none is."""
        crossing_ones = [t for t in self.trends if t.forecast is not None]
        return min(crossing_ones, key=lambda t: t.forecast.size if t.forecast is not None else math.inf, default=None)


def limits_of(quantity: Quantity, thresholds: Thresholds) -> dict[str, float]:
    """Format -> limit, in the units of the quantity.

    Drift: both thresholds of a material output. Gradients: an error that could take the share that ``gradient_efficiency`` forbids to lose.
    Peak: the largest finite number. Lost addends: ``lost_share``. Energy: ``flush_share``.
    """
    found = {}
    for name in HALF_FORMATS:
        u = UNIT_ROUNDOFFS[name]
        found[name] = {
            Quantity.DRIFT: max(thresholds.output_drift / u, thresholds.output_drift_u),
            Quantity.GRADIENT: (1 - thresholds.gradient_efficiency) / u,
            Quantity.PEAK: float(get_format(name).max),
            Quantity.FLUSHED: thresholds.flush_share,
            Quantity.LOST: thresholds.lost_share / u,
            Quantity.SWAMPED: STALLED,
        }[quantity]
    return found


def analysed(sweep: Sweep, thresholds: Thresholds | None = None) -> AxisGrowth:
    """The trends of a sweep. Quantities that have places give one trend: at the place that leads, by forecast or at the largest size."""
    limits = thresholds or Thresholds()
    trends: list[Trend] = []
    for quantity in Quantity:
        places: list[str | None] = list(sweep.places(quantity)) if quantity in PLACED else [None]
        found = [t for t in (_trend(sweep, quantity, place, limits, len(places)) for place in places) if t is not None]
        if found:
            trends.append(min(found, key=_lead))
    return AxisGrowth(sweep, tuple(trends))


def _lead(trend: Trend) -> tuple[float, float]:
    """Earliest forecast first; without one, nearest to the limit at the largest size."""
    size = trend.forecast.size if trend.forecast is not None else math.inf
    return size, -trend.values[-1] / trend.limits[trend.dtype]


def _trend(sweep: Sweep, quantity: Quantity, place: str | None, thresholds: Thresholds, compared: int) -> Trend | None:
    """``compared``: places among which the worst is looked for; growth must be as sure as if it were the only one (Bonferroni)."""
    sizes, rows = sweep.series(quantity, place)
    if not sizes:
        return None
    material = MATERIAL.get(quantity, 0.0)
    rows = [[value if value > material else 0.0 for value in row] for row in rows]
    law = fit(sizes, _joined(rows))
    limits = limits_of(quantity, thresholds)
    forecasts = {}
    if isinstance(law, Fit) and law.exponent_interval(1 - (1 - LEVEL) / compared)[0] >= 0:
        forecasts = {name: found for name, limit in limits.items() if (found := crossing(law, limit)) is not None}
    means = tuple(_mean(row) for row in rows)
    return Trend(sweep.axis, sweep.dtype, quantity, place or "", tuple(sizes), means, law, limits, forecasts)


def _joined(rows: list[list[float]]) -> list[list[float]]:
    """Seeds of which some show nothing are one number, their mean: an onset lies where the first of them shows something."""
    return [[sum(row) / len(row)] if any(v == 0 for v in row) else row for row in rows]


def _mean(row: list[float]) -> float:
    if any(not math.isfinite(v) for v in row):
        return math.inf
    if any(v <= 0 for v in row):
        return sum(row) / len(row)
    return math.exp(sum(math.log(v) for v in row) / len(row))


def headroom_log2(trend: Trend, dtype: str | None = None) -> list[float]:
    """Binades between a peak and the end of a format; negative beyond it."""
    limit = trend.limits[dtype or trend.dtype]
    return [math.log2(limit / value) if value > 0 else math.inf for value in trend.values]


def is_growing(law: Fit | Onset | Refusal) -> bool:
    """Whether a law grows without end: the interval of its exponent is above 0."""
    return isinstance(law, Fit) and law.law in (Law.POWER, Law.EXPONENTIAL) and law.exponent_interval()[0] > 0
