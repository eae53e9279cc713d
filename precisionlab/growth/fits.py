"""Laws of growth fitted to positive numbers measured at several sizes: flat, power, exponential, saturating; and onsets. No torch in here.

All fits are least squares of ln y on the mean of ln y over the seeds of a size: errors grow by factors. Of the laws that can be told apart
with the sizes given the one with the smallest AIC is taken (Akaike 1974), AIC = m ln(RSS/m) + 2k for m sizes and k parameters; laws within
``RIVAL_AIC`` of it remain as rivals, and what is forecast is the union of their intervals. The intervals are those of Student's t with
m - k degrees of freedom.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

MIN_SIZES = 4
"""Fewer sizes tell no law from another: two parameters leave one degree of freedom, for which t is 12.7."""
MIN_SIZES_SATURATING = 5
MIN_R2 = 0.9
"""Share of the variance of ln y that a growing law must explain."""
FLAT_SCATTER = 0.25
"""Standard deviation of ln y between sizes up to which numbers that follow no growing law are called flat: a factor of 1.3."""
RIVAL_AIC = 2.0
"""Difference in AIC below which two laws are supported alike (Burnham & Anderson 2002, section 2.6)."""
RESOLUTION = 1e-3
"""Relative resolution of what is measured: a fit is never taken to be better than this."""
LEVEL = 0.95
_TAU_RANGE = (0.1, 1.0)
"""Saturation sizes that are looked at: times the smallest and the largest size. One beyond the largest size has not been seen."""


class Law(str, Enum):
    """How a number depends on a size n."""

    FLAT = "flat"
    """y = a"""
    POWER = "power"
    """y = a n^b"""
    EXPONENTIAL = "exponential"
    """y = a exp(b n)"""
    SATURATING = "saturating"
    """y = a sqrt(1 - exp(-n / tau)): independent errors carried on by a map that contracts, a geometric sum."""
    ONSET = "onset"
    """0 up to a size, then not."""

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True)
class Refusal:
    """No law, and why."""

    reason: str


@dataclass(frozen=True)
class Fit:
    """One law with its uncertainty. ``parameters`` are (ln a), (ln a, b) or (ln a, ln tau)."""

    law: Law
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

    def at(self, size: float) -> float:
        """The value of the law at ``size``; infinite above 1e308."""
        return _exp(float(_log_law(self.law, self.parameters, np.array([size]))[0]))

    def interval(self, size: float, level: float = LEVEL) -> tuple[float, float]:
        """Where a measurement at ``size`` (a mean over as many seeds) is expected; the union over the rivals."""
        ends = [fit._own_interval(size, level) for fit in (self, *self.rivals)]
        return min(low for low, _ in ends), max(high for _, high in ends)

    def _own_interval(self, size: float, level: float) -> tuple[float, float]:
        n = np.array([size])
        middle = float(_log_law(self.law, self.parameters, n)[0])
        slope = _jacobian(self.law, self.parameters, n)[0]
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
    fits = [found for law in _LAWS if (found := _fit_one(law, n, y, _within(kept))) is not None]
    return _choose(fits, n)


def fit_law(law: Law, sizes: Sequence[float], values: Sequence[Sequence[float]]) -> Fit | None:
    """One law without a choice, from positive numbers; None where it has too few sizes or no fit was found."""
    rows = [(float(n), list(row)) for n, row in zip(sizes, values, strict=True)]
    y = np.array([np.mean(np.log(row)) for _, row in rows])
    return _fit_one(law, np.array([size for size, _ in rows]), y, _within(rows))


_LAWS = (Law.FLAT, Law.POWER, Law.EXPONENTIAL, Law.SATURATING)


def _choose(fits: list[Fit], n: Array) -> Fit | Refusal:
    best = min(fits, key=lambda f: f.aic)
    if best.law is Law.FLAT or best.r2 < MIN_R2:
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


def _fit_one(law: Law, n: Array, y: Array, within: float) -> Fit | None:
    """Least squares. The scatter is at least what the seeds show: sizes that fit better than that do so by chance."""
    k = 1 if law is Law.FLAT else 2
    if law is Law.SATURATING:
        if len(n) < MIN_SIZES_SATURATING:
            return None
        parameters = _least_squares_saturating(n, y)
        if parameters is None:
            return None
    else:
        design = _jacobian(law, (0.0, 0.0), n)
        parameters = tuple(float(p) for p in np.linalg.lstsq(design, y, rcond=None)[0])
    jacobian = _jacobian(law, parameters, n)
    rss = float(np.sum((y - _log_law(law, parameters, n)) ** 2))
    total = float(np.sum((y - y.mean()) ** 2))
    variance = max(rss / (len(n) - k), within, RESOLUTION**2)
    covariance = variance * np.linalg.pinv(jacobian.T @ jacobian)
    aic = len(n) * math.log(max(rss / len(n), RESOLUTION**2)) + 2 * k
    r2 = 1.0 - rss / total if total > 0 else 0.0
    rows = tuple(tuple(float(c) for c in row) for row in covariance)
    return Fit(law, parameters, rows, math.sqrt(variance), len(n) - k, aic, r2, tuple(float(s) for s in n))


def _least_squares_saturating(n: Array, y: Array) -> tuple[float, ...] | None:
    """(ln a, ln tau): tau by a search in one dimension, a in closed form. None where tau ends at the edge of the search."""
    from scipy.optimize import minimize_scalar

    low, high = math.log(_TAU_RANGE[0] * float(n[0])), math.log(_TAU_RANGE[1] * float(n[-1]))

    def rss(log_tau: float) -> float:
        shape = _log_law(Law.SATURATING, (0.0, log_tau), n)
        rest = y - shape
        return float(np.sum((rest - rest.mean()) ** 2))

    start = min(np.linspace(low, high, 60), key=rss)
    step = (high - low) / 59
    found = minimize_scalar(rss, bounds=(max(low, start - step), min(high, start + step)), method="bounded")
    log_tau = float(found.x)
    if log_tau - low < 1e-3 or high - log_tau < 1e-3:
        return None
    return float((y - _log_law(Law.SATURATING, (0.0, log_tau), n)).mean()), log_tau


def _log_law(law: Law, p: Sequence[float], n: Array) -> Array:
    return _LOG_LAWS[law](p, n)


def _log_saturating(p: Sequence[float], n: Array) -> Array:
    result: Array = p[0] + 0.5 * np.log(-np.expm1(-n / math.exp(p[1])))
    return result


_LOG_LAWS: dict[Law, Callable[[Sequence[float], Array], Array]] = {
    Law.FLAT: lambda p, n: np.full_like(n, p[0]),
    Law.POWER: lambda p, n: p[0] + p[1] * np.log(n),
    Law.EXPONENTIAL: lambda p, n: p[0] + p[1] * n,
    Law.SATURATING: _log_saturating,
}


def _jacobian(law: Law, p: Sequence[float], n: Array) -> Array:
    """Derivatives of ln y by the parameters, one row a size."""
    ones = np.ones_like(n)
    if law is Law.FLAT:
        return ones[:, None]
    if law is Law.POWER:
        return np.stack([ones, np.log(n)], 1)
    if law is Law.EXPONENTIAL:
        return np.stack([ones, n], 1)
    x = n / math.exp(p[1])
    return np.stack([ones, -0.5 * x / np.maximum(np.expm1(np.minimum(x, 700.0)), 1e-300)], 1)


def _student(level: float, dof: int) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(dof, 0.5 + level / 2))


def _exp(x: float) -> float:
    return math.exp(x) if x < 709.0 else math.inf
