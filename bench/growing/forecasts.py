"""How good forecasts are: fitted on small sizes, compared with what is measured at larger ones."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bench.growing.cases import BEYOND, Case
from precisionlab.growth.analysis import Trend, analysed
from precisionlab.growth.axes import Axis
from precisionlab.growth.confirm import confirmations
from precisionlab.growth.fits import Fit
from precisionlab.growth.measurement import Quantity
from precisionlab.growth.sweep import Sweeper
from precisionlab.growth.words import law_words


@dataclass(frozen=True)
class Outcome:
    """One forecast beside one measurement. ``holds`` is the criterion of its table."""

    name: str
    law: str
    forecast: float
    low: float
    high: float
    measured: float
    holds: bool


def swept(case: Case, seeds: int) -> tuple[Sweeper, Trend | None]:
    """The sizes that may be seen, and the trend of the quantity."""
    sweeper = Sweeper(case.subject, case.dtype, "pure", kernels="fast", seeds=seeds)
    return sweeper, analysed(sweeper.along(Axis(case.axis, case.seen))).trend(case.quantity)


def forecast_value(case: Case, seeds: int) -> Outcome:
    """The value at four times the largest size seen."""
    sweeper, trend = swept(case, seeds)
    if trend is None or not isinstance(trend.law, Fit):
        return Outcome(case.name, law_words(trend) if trend else "not measured", math.nan, math.nan, math.nan, math.nan, False)
    (found,) = confirmations((trend,), sweeper.measure(case.axis, BEYOND * case.seen[-1]))
    return Outcome(case.name, law_words(trend), found.forecast, found.low, found.high, found.measured, found.inside)


def forecast_onset(case: Case, seeds: int) -> Outcome:
    """The size at which the limit is reached, against the first at which a run does."""
    sweeper, trend = swept(case, seeds)
    forecast = trend.forecast if trend is not None else None
    if trend is None or forecast is None:
        return Outcome(case.name, law_words(trend) if trend else "not measured", math.nan, math.nan, math.nan, math.nan, False)
    actual = first_size(sweeper, case, forecast.limit, case.seen[-1], forecast.size)
    factor = max(actual / forecast.size, forecast.size / actual)
    return Outcome(case.name, law_words(trend), forecast.size, forecast.low, forecast.high, actual, factor <= 1.5)


def first_size(sweeper: Sweeper, case: Case, limit: float, fine: float, guess: float) -> float:
    """The smallest size, to 3 %, at which seed 0 reaches the limit at any place, by doubling and bisection from a size that does not."""

    def reached(size: float) -> bool:
        (found,) = sweeper.measure(case.axis, size, [0])
        if case.quantity is Quantity.PEAK and found.nonfinite:
            return True
        return max(found.places[case.quantity].values(), default=0.0) >= limit

    high = float(round(guess))
    while not reached(high):
        fine, high = high, float(round(high * 1.5))
    while high / fine > 1.03 and high - fine > 1:
        middle = float(round(math.sqrt(fine * high)))
        fine, high = (fine, middle) if reached(middle) else (middle, high)
    return high
