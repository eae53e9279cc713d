"""Laws of growth fitted to positive numbers measured at several sizes: flat, power, exponential, saturating; and onsets. No torch in here.

All fits are least squares of ln y on the mean of ln y over the seeds of a size: errors grow by factors. Of the laws that can be told apart
with the sizes given the one with the smallest AIC is taken (Akaike 1974), AIC = m ln(RSS/m) + 2k for m sizes and k parameters; laws within
``RIVAL_AIC`` of it remain as rivals, and what is forecast is the union of their intervals. The intervals are those of Student's t with
m - k degrees of freedom.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from precisionlab.growth.forms import Array, Form, Law, jacobian, least_squares, log_value

__all__ = ["Fit", "Form", "Law", "Onset", "Refusal", "fit", "fit_form"]

MIN_SIZES = 4
"""Fewer sizes tell no law from another: two parameters leave one degree of freedom, for which t is 12.7."""
MIN_SIZES_CURVED = 5
"""Fewer sizes cannot tell a geometric sum from a power law."""
MIN_SIZES_BOUNDED = 6
"""The form with three parameters."""
MIN_R2 = 0.9
"""Share of the variance of ln y that a growing law must explain."""
FLAT_SCATTER = 0.25
"""Standard deviation of ln y between sizes up to which numbers that follow no growing law are called flat: a factor of 1.3."""
RIVAL_AIC = 2.0
"""Difference in AIC below which two laws are supported alike (Burnham & Anderson 2002, section 2.6)."""
RESOLUTION = 1e-3
"""Relative resolution of what is measured: a fit is never taken to be better than this."""
LEVEL = 0.95


@dataclass(frozen=True)
class Refusal:
    """No law, and why."""

    reason: str


@dataclass(frozen=True)
class Fit:
    """One law with its uncertainty; the meaning of ``parameters`` is that of the form."""

    form: Form
    parameters: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]
    scatter: float
    """Standard deviation of ln y about the law, of the mean over the seeds of one size."""
    dof: int
    aic: float
    r2: float
    """Share of the variance of ln y that the law explains; 0 for flat."""
    sizes: tuple[float, ...]
    rivals: tuple[Fit, ...] = field(default=())

    @property
    def law(self) -> Law:
        """What the form is called."""
        return self.form.law

    def at(self, size: float) -> float:
        """The value of the law at ``size``; infinite above 1e308."""
        return _exp(float(log_value(self.form, self.parameters, np.array([float(size)]))[0]))

    def interval(self, size: float, level: float = LEVEL) -> tuple[float, float]:
        """Where a measurement at ``size`` (a mean over as many seeds) is expected; the union over the rivals."""
        ends = [fit._own_interval(size, level) for fit in (self, *self.rivals)]
        return min(low for low, _ in ends), max(high for _, high in ends)

    def _own_interval(self, size: float, level: float) -> tuple[float, float]:
        n = np.array([float(size)])
        middle = float(log_value(self.form, self.parameters, n)[0])
        slope = jacobian(self.form, self.parameters, n)[0]
        half = _student(level, self.dof) * math.sqrt(self.scatter**2 + float(slope @ np.array(self.covariance) @ slope))
        return _exp(middle - half), _exp(middle + half)

    @property
    def exponent(self) -> float:
        """b of a power law; the rate per unit of size of an exponential; 0 where nothing grows without end."""
        return self.parameters[1] if self.law in (Law.POWER, Law.EXPONENTIAL) else 0.0

    def exponent_interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Student's interval of ``exponent``; (0, 0) for flat and saturating laws."""
        if self.law not in (Law.POWER, Law.EXPONENTIAL):
            return 0.0, 0.0
        half = _student(level, self.dof) * math.sqrt(self.covariance[1][1])
        return self.exponent - half, self.exponent + half

    @property
    def saturates_at(self) -> float | None:
        """tau of a saturating law; None of the others."""
        return _exp(self.parameters[1]) if self.law is Law.SATURATING else None


@dataclass(frozen=True)
class Onset:
    """A number that is 0 up to ``low`` and not from ``high`` on; the onset lies between the two."""

    size: float
    low: float
    high: float
    law: Law = Law.ONSET


def fit(sizes: Sequence[float], values: Sequence[Sequence[float]]) -> Fit | Onset | Refusal:
    """The law that ``values[i]`` (one number per seed) follow at ``sizes[i]``; numbers that are not finite are left out.

    Zeros up to some size and none after make an onset. Refused: fewer than ``MIN_SIZES`` sizes, zeros here and there, and numbers that no
    law describes. Negative numbers raise ``ValueError``.
    """
    kept = [(float(n), [v for v in row if math.isfinite(v)]) for n, row in zip(sizes, values, strict=True)]
    kept = sorted((n, row) for n, row in kept if row)
    if any(v < 0 for _, row in kept for v in row):
        raise ValueError("laws of growth are fitted to numbers that are not negative")
    if len(kept) < MIN_SIZES:
        return Refusal(f"{len(kept)} sizes were measured; a law needs {MIN_SIZES}")
    if any(v == 0 for _, row in kept for v in row):
        return _onset(kept)
    n = np.array([size for size, _ in kept])
    y = np.array([np.mean(np.log(row)) for _, row in kept])
    within = _within(kept)
    fits = [found for form in Form if (found := _fit_one(form, n, y, within)) is not None]
    return _choose(fits, n)


def fit_form(form: Form, sizes: Sequence[float], values: Sequence[Sequence[float]]) -> Fit | None:
    """One form without a choice, from positive numbers; None where it has too few sizes or its best fit is another form's."""
    rows = [(float(n), list(row)) for n, row in zip(sizes, values, strict=True)]
    y = np.array([np.mean(np.log(row)) for _, row in rows])
    return _fit_one(form, np.array([size for size, _ in rows]), y, _within(rows))


_FEWEST = {Form.AMPLIFIED: MIN_SIZES_CURVED, Form.CONTRACTED: MIN_SIZES_CURVED, Form.BOUNDED: MIN_SIZES_BOUNDED}


def _choose(fits: list[Fit], n: Array) -> Fit | Refusal:
    best = min(fits, key=lambda f: f.aic)
    low, high = best.exponent_interval()
    if best.law is Law.FLAT or best.r2 < MIN_R2 or low < 0 < high:
        flat = next(f for f in fits if f.law is Law.FLAT)
        if flat.scatter <= FLAT_SCATTER:
            return flat
        return Refusal(f"no law describes the {len(n)} sizes: the best, {best.law}, explains {max(best.r2, 0.0):.0%} of the variance")
    rivals = tuple(f for f in fits if f is not best and f.aic - best.aic < RIVAL_AIC and f.r2 >= MIN_R2)
    return replace(best, rivals=rivals)


def _onset(kept: list[tuple[float, list[float]]]) -> Onset | Refusal:
    zero = [all(v == 0 for v in row) for _, row in kept]
    count = zero.index(False) if False in zero else len(zero)
    if count == len(zero):
        return Refusal("0 at every size")
    if count == 0 or any(v == 0 for _, row in kept[count:] for v in row):
        return Refusal("0 at some sizes and not at others, in no order")
    low, high = kept[count - 1][0], kept[count][0]
    return Onset(math.sqrt(low * high), low, high)


def _within(kept: list[tuple[float, list[float]]]) -> float:
    """Variance of the mean of ln y over the seeds of one size, pooled over the sizes; 0 with one seed."""
    squares = sum(float(np.sum((np.log(row) - np.mean(np.log(row))) ** 2)) for _, row in kept)
    freedom = sum(len(row) - 1 for _, row in kept)
    return squares / freedom / (sum(len(row) for _, row in kept) / len(kept)) if freedom else 0.0


def _fit_one(form: Form, n: Array, y: Array, within: float) -> Fit | None:
    """Least squares. The scatter is at least what the seeds show: sizes that fit better than that do so by chance."""
    if len(n) < _FEWEST.get(form, MIN_SIZES):
        return None
    parameters = least_squares(form, n, y)
    if parameters is None:
        return None
    k = form.count
    derivatives = jacobian(form, parameters, n)
    rss = float(np.sum((y - log_value(form, parameters, n)) ** 2))
    total = float(np.sum((y - y.mean()) ** 2))
    variance = max(rss / (len(n) - k), within, RESOLUTION**2)
    covariance = variance * np.linalg.pinv(derivatives.T @ derivatives)
    aic = len(n) * math.log(max(rss / len(n), RESOLUTION**2)) + 2 * k
    r2 = 1.0 - rss / total if total > 0 else 0.0
    rows = tuple(tuple(float(c) for c in row) for row in covariance)
    return Fit(form, parameters, rows, math.sqrt(variance), len(n) - k, aic, r2, tuple(float(s) for s in n))


def _student(level: float, dof: int) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(dof, 0.5 + level / 2))


def _exp(x: float) -> float:
    return math.exp(x) if x < 709.0 else math.inf
