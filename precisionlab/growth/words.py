"""Laws and forecasts in words, beside what theory expects of them. No torch in here."""

from __future__ import annotations

import math

from precisionlab.checks.wording import number, percent
from precisionlab.growth.analysis import AxisGrowth, Trend, headroom_log2
from precisionlab.growth.confirm import Confirmation
from precisionlab.growth.fits import Fit, Law, Onset, Refusal
from precisionlab.growth.forecast import Forecast
from precisionlab.growth.measurement import Quantity
from precisionlab.report.model import Report

_DEPTHS = ("depth", "layers", "n_layers", "num_layers", "n_layer", "blocks")
_LENGTHS = ("seq_len", "length", "context", "tokens", "seq_length", "n_tokens", "steps")
PARTIAL_SUMS = ("micro_batches", "accumulation", "accumulation_steps", "world_size", "ranks")
"""Axes along which gradients are sums of more and more parts."""

_NAMES = {
    Quantity.DRIFT: "output drift",
    Quantity.GRADIENT: "gradient error",
    Quantity.PEAK: "largest value",
    Quantity.FLUSHED: "energy flushed to zero",
    Quantity.LOST: "lost part of an addend",
    Quantity.SWAMPED: "additions that change nothing",
}


def name_of(quantity: Quantity) -> str:
    """``output drift``."""
    return _NAMES[quantity]


def shown(quantity: Quantity, value: float) -> str:
    """A value with its unit."""
    if quantity in (Quantity.FLUSHED, Quantity.SWAMPED):
        return percent(value)
    return number(value) if quantity is Quantity.PEAK else f"{number(value)} u"


def law_words(trend: Trend) -> str:
    """``grows like seq_len^0.51 [0.47, 0.55]``."""
    law, axis = trend.law, trend.axis
    if isinstance(law, Refusal):
        return f"no law: {law.reason}"
    if isinstance(law, Onset):
        return f"0 up to {axis} {number(law.low)}, not from {number(law.high)} on"
    low, high = law.exponent_interval()
    between = f"[{_short(low)}, {_short(high)}]"
    if law.law is Law.POWER:
        if law.exponent < 0:
            return f"shrinks like {axis}^{_short(law.exponent)} {between}"
        return f"grows like {axis}^{_short(law.exponent)} {between}"
    if law.law is Law.EXPONENTIAL:
        if law.exponent < 0:
            return f"shrinks exponentially, {percent(1 - math.exp(law.exponent))} per unit of {axis}"
        doubling = math.log(2) / law.exponent
        return f"grows exponentially, rate {_short(law.exponent)} {between}: doubles every {number(doubling)} of {axis}"
    if law.law is Law.SATURATING:
        return f"saturates at {shown(trend.quantity, math.exp(law.parameters[0]))}, from {axis} {number(law.saturates_at or 0.0)} on"
    return f"does not grow: {shown(trend.quantity, math.exp(law.parameters[0]))} at every {axis}"


def expectation(trend: Trend) -> str:
    """What theory expects of this quantity along this axis; empty where it says nothing that applies."""
    kind = _kind(trend.axis)
    if trend.quantity in (Quantity.DRIFT, Quantity.GRADIENT):
        if kind == "depth":
            return (
                "independent roundings carried on unchanged grow like depth^0.5 (He-initialised ReLU), in a pre-norm residual stream like"
                " depth^0.33 since the signal grows too; exponentially where each layer amplifies (chaotic nets)"
            )
        if kind == "length":
            return (
                "a running sum in the format grows like n^0.5 for data with a mean and not at all without one (Higham & Mary 2019, 2020);"
                " blocked sums, fp32 accumulators and attention do not grow"
            )
        if kind == "partial sums":
            return "partial gradients stored in the format add up like n^0.5 until they stagnate; in fp32 they do not grow"
        if kind == "batch":
            return "rounding errors of examples are independent: a mean over more of them does not grow"
    if trend.quantity is Quantity.LOST:
        return "the sum grows and the addend does not: like n^1 with a mean, n^0.5 without, until the sum stands still (stagnation)"
    if trend.quantity is Quantity.PEAK and kind == "length":
        return "sums of terms with a mean grow like n, without one like n^0.5; the largest of n values like sqrt(2 ln n)"
    return ""


def forecast_words(trend: Trend, dtype: str, forecast: Forecast) -> str:
    """``headroom reaches 0 at seq_len 5100 [4700, 5600] (fp16)``."""
    place = f" at {trend.place}" if trend.place else ""
    what = {
        Quantity.PEAK: f"headroom{place} reaches 0",
        Quantity.LOST: f"the sum{place} loses half of what is added",
        Quantity.DRIFT: f"output drift reaches {number(forecast.limit)} u",
        Quantity.GRADIENT: f"gradient error reaches {number(forecast.limit)} u",
    }.get(trend.quantity, f"{name_of(trend.quantity)} reaches {shown(trend.quantity, forecast.limit)}")
    return f"{what} at {trend.axis} {size_words(forecast.size)} {interval_words(forecast)} ({dtype})"


def interval_words(forecast: Forecast) -> str:
    """``[4700, 5600]``."""
    return f"[{size_words(forecast.low)}, {size_words(forecast.high)}]"


def size_words(size: float) -> str:
    """Three significant digits, whole where a size is."""
    if not math.isfinite(size):
        return "never"
    if size >= 100:
        digits = 10 ** (math.floor(math.log10(size)) - 2)
        return f"{round(size / digits) * digits:.0f}" if size < 1e7 else number(size)
    return number(size)


def trend_lines(growth: AxisGrowth) -> list[str]:
    """One or more lines a trend: the law, the forecasts, and what theory expects."""
    lines: list[str] = []
    told: set[str] = set()
    for trend in growth.trends:
        if isinstance(trend.law, Refusal) and not any(trend.values):
            continue
        place = f" at {trend.place}" if trend.place else ""
        lines.append(f"{name_of(trend.quantity)}{place}: {law_words(trend)}")
        if isinstance(trend.law, Fit) and trend.law.rivals:
            rivals = " or ".join(str(rival.law) for rival in trend.law.rivals)
            lines.append(f"  {rivals} fits as well: intervals cover both")
        lines += [f"  {forecast_words(trend, name, found)}" for name, found in _told(trend)]
        if trend.quantity is Quantity.PEAK:
            left = headroom_log2(trend)
            lines.append(f"  headroom in {trend.dtype}: {number(left[0])} binades at {number(trend.sizes[0])}, {number(left[-1])} at "
                         f"{number(trend.sizes[-1])}")  # fmt: skip
        theory = expectation(trend)
        if theory and theory not in told:
            lines.append(f"  theory: {theory}")
            told.add(theory)
    return lines


def _told(trend: Trend) -> list[tuple[str, Forecast]]:
    """The format under audit first; the other only where its limit is another one."""
    return sorted(trend.forecasts.items(), key=lambda pair: (pair[0] != trend.dtype, pair[0]))


def _kind(axis: str) -> str:
    if axis in _DEPTHS:
        return "depth"
    if axis in PARTIAL_SUMS:
        return "partial sums"
    return "length" if axis in _LENGTHS else "batch" if axis == "batch_size" else ""


def _short(value: float) -> str:
    return f"{value:.2g}" if abs(value) < 0.1 else f"{value:.2f}"


def text(growth: AxisGrowth, confirmed: list[Confirmation]) -> str:
    """Everything along one axis, for a terminal: a plot of what leads, the laws, confirmations, and what was left out."""
    from precisionlab.growth.plot import plot

    sweep = growth.sweep
    seeds = max((len(sweep.at(size)) for size in sweep.sizes), default=0)
    sizes = ", ".join(number(size) for size in sweep.sizes)
    lines = [f"along {sweep.axis} in {sweep.dtype}: {sizes} ({seeds} seed{'s' if seeds != 1 else ''} each)", ""]
    leading = growth.first or growth.trend(Quantity.DRIFT)
    picture = plot(leading) if leading is not None else ""
    lines += [picture, ""] if picture else []
    lines += trend_lines(growth)
    lines += [confirmation_words(c) for c in confirmed]
    lines += [f"left out: {sweep.axis} {number(size)}: {why}" for size, why in sweep.skipped.items()]
    lines += [f"interrupted: the sizes up to {sizes.rpartition(', ')[2]} count"] if sweep.interrupted else []
    lines += [f"note: {note}" for note in sweep.notes]
    return "\n".join(lines)


def inside_text(trends: tuple[Trend, ...]) -> str:
    """The axes inside the largest run; empty where there are none."""
    if not trends:
        return ""
    said = {"block": "from block to block", "token": "along the sequence", "step": "from step to step"}
    lines = ["inside the largest run"]
    for trend in trends:
        backward = ", backward from the loss" if trend.quantity is Quantity.GRADIENT else ""
        ends = f"{shown(trend.quantity, trend.values[0])} to {shown(trend.quantity, trend.values[-1])}"
        lines.append(f"{name_of(trend.quantity)} {said[trend.axis]}{backward}: {ends}; {law_words(trend)}")
    return "\n".join(lines)


def findings_text(report: Report) -> str:
    """The verdict, and the findings at the largest size and about growth, one a line."""
    count = len(report.findings)
    where = "at the largest size of the sweep, or before a --target"
    lines = [f"{str(report.verdict).upper()}: {count} finding{'' if count == 1 else 's'} {where}"]
    lines += [f"{f.code} {f.verdict}: {f.message}\n  fix: {f.advice}" for f in report.findings]
    lines += ["precisionlab explain CODE says more."] if report.findings else []
    return "\n".join(lines)


def confirmation_words(c: Confirmation) -> str:
    """``at seq_len 8192: output drift forecast 3.1 u [2.7, 3.6], measured 3.3 u: inside``."""
    place = f" at {c.place}" if c.place else ""
    between = f"[{shown(c.quantity, c.low)}, {shown(c.quantity, c.high)}]"
    return (
        f"at {c.axis} {number(c.size)}: {name_of(c.quantity)}{place} forecast {shown(c.quantity, c.forecast)} {between},"
        f" measured {shown(c.quantity, c.measured)}: {'inside' if c.inside else 'OUTSIDE'}"
    )
