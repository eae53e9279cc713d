"""The curves that laws of growth are fitted with: ln y as a function of the size and of two or three parameters. No torch in here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Law(str, Enum):
    """How a number depends on a size n."""

    FLAT = "flat"
    POWER = "power"
    EXPONENTIAL = "exponential"
    SATURATING = "saturating"
    ONSET = "onset"
    """0 up to a size, then not."""

    def __str__(self) -> str:
        return str(self.value)


class Form(Enum):
    """A curve. Rounding errors of size c that each of n layers injects and the next carry on with gain g add up to
    c sqrt(1 + g^2 + ... + g^(2(n-1))): ``CONTRACTED`` for g < 1, a power law with exponent 1/2 for g = 1, ``AMPLIFIED`` for g > 1 (the
    mean-field theory of signal propagation: Poole et al. 2016, Schoenholz et al. 2017, with rounding as the perturbation).
    """

    FLAT = "a"
    POWER = "a n^b"
    EXPONENTIAL = "a exp(b n)"
    AMPLIFIED = "a sqrt(exp(2 b n) - 1)"
    CONTRACTED = "a sqrt(1 - exp(-n / tau))"
    BOUNDED = "a (1 - exp(-n / tau))^b"

    @property
    def law(self) -> Law:
        """What it is called."""
        return _LAW_OF[self]

    @property
    def count(self) -> int:
        """Parameters: (ln a), (ln a, b), (ln a, ln tau) or (ln a, ln tau, b)."""
        return {Form.FLAT: 1, Form.BOUNDED: 3}.get(self, 2)


_LAW_OF = {
    Form.FLAT: Law.FLAT,
    Form.POWER: Law.POWER,
    Form.EXPONENTIAL: Law.EXPONENTIAL,
    Form.AMPLIFIED: Law.EXPONENTIAL,
    Form.CONTRACTED: Law.SATURATING,
    Form.BOUNDED: Law.SATURATING,
}


def log_value(form: Form, p: Sequence[float], n: Array) -> Array:
    """ln y at the sizes ``n``."""
    if form is Form.FLAT:
        return np.full(n.shape, p[0])
    if form is Form.POWER:
        return np.asarray(p[0] + p[1] * np.log(n))
    if form is Form.EXPONENTIAL:
        return np.asarray(p[0] + p[1] * n)
    if form is Form.AMPLIFIED:
        return np.asarray(p[0] + 0.5 * _log_expm1(2 * p[1] * n))
    return np.asarray(p[0] + _power(form, p) * _log_approach(n / math.exp(p[1])))


def jacobian(form: Form, p: Sequence[float], n: Array) -> Array:
    """Derivatives of ln y by the parameters, (sizes, parameters)."""
    ones = np.ones_like(n)
    if form is Form.FLAT:
        return ones[:, None]
    if form is Form.POWER:
        return np.stack([ones, np.log(n)], 1)
    if form is Form.EXPONENTIAL:
        return np.stack([ones, n], 1)
    if form is Form.AMPLIFIED:
        return np.stack([ones, n / -np.expm1(-2 * p[1] * n)], 1)
    x = n / math.exp(p[1])
    by_log_tau = -_power(form, p) * x / np.maximum(np.expm1(np.minimum(x, 700.0)), 1e-300)
    columns = [ones, by_log_tau]
    return np.stack(columns if form is Form.CONTRACTED else [*columns, _log_approach(x)], 1)


def least_squares(form: Form, n: Array, y: Array) -> tuple[float, ...] | None:
    """The parameters that fit ln y best.

    The parameter that enters nonlinearly is searched in one dimension, over the values that can be told from a power law: the sizes must
    have seen the bend (tau at most the largest size) or one amplification by e (b at least 1 / the largest size). None where the best
    lies at the edge of that range: then another form is meant. An exponential must have grown by e between its ends, too.
    """
    if form in (Form.FLAT, Form.POWER, Form.EXPONENTIAL):
        linear = tuple(float(p) for p in np.linalg.lstsq(jacobian(form, (0.0, 0.0), n), y, rcond=None)[0])
        return None if form is Form.EXPONENTIAL and abs(linear[1]) * float(n[-1] - n[0]) < 1 else linear
    from scipy.optimize import minimize_scalar

    largest = float(n[-1])
    if form is Form.AMPLIFIED:
        low, high = -math.log(largest), math.log(300.0 / largest)
    else:
        low, high = math.log(float(n[0]) / 10), math.log(largest)

    def solved(x: float) -> tuple[float, ...]:
        inner = math.exp(x) if form is Form.AMPLIFIED else x
        if form is not Form.BOUNDED:
            return float((y - log_value(form, (0.0, inner), n)).mean()), inner
        shape = _log_approach(n / math.exp(x))
        power = float(np.dot(shape - shape.mean(), y - y.mean()) / np.sum((shape - shape.mean()) ** 2))
        return float((y - power * shape).mean()), x, power

    def rss(x: float) -> float:
        return float(np.sum((y - log_value(form, solved(x), n)) ** 2))

    grid = np.linspace(low, high, 60)
    start, step = float(min(grid, key=rss)), float(grid[1] - grid[0])
    best = float(minimize_scalar(rss, bounds=(max(low, start - step), min(high, start + step)), method="bounded").x)
    parameters = solved(best)
    at_edge = best - low < 1e-3 or high - best < 1e-3
    return None if at_edge or (form is Form.BOUNDED and parameters[2] <= 0) else parameters


def _power(form: Form, p: Sequence[float]) -> float:
    return p[2] if form is Form.BOUNDED else 0.5


def _log_approach(x: Array) -> Array:
    """ln(1 - exp(-x))."""
    return np.asarray(np.log(-np.expm1(-x)))


def _log_expm1(x: Array) -> Array:
    """ln(exp(x) - 1), without overflow."""
    return np.asarray(x + _log_approach(x))
