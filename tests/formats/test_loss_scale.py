"""The loss-scale window against closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest

from precisionlab.formats import FP8_E5M2, FP16
from precisionlab.formats.loss_scale import ADVISED_HEADROOM, BINADES, LOWEST, GradientExponents, scale_window


def exponents_of(values: np.ndarray) -> GradientExponents:
    """Counted by ``frexp``; one tensor, so its energy is normalised once."""
    binade = np.clip(np.frexp(values)[1] - 1 - LOWEST, 0, BINADES - 1)
    elements = np.bincount(binade, minlength=BINADES)
    energy = np.bincount(binade, values**2, BINADES)
    return GradientExponents(elements.tolist(), (energy / energy.sum()).tolist(), float(np.abs(values).max()))


def lognormal(mu: float, s: float, n: int = 400_000) -> np.ndarray:
    return np.exp2(np.random.default_rng(0).normal(mu, s, n))


def phi(z: float) -> float:
    return 0.5 * (1.0 + math.erf(z / math.sqrt(2.0)))


@pytest.mark.parametrize(("mu", "s", "scale_log2"), [(-20, 3, 0), (-24, 4, 0), (-24, 4, 8)])
def test_share_of_zeros_of_lognormal_gradients_is_phi(mu: float, s: float, scale_log2: int) -> None:
    """log2 |g| ~ N(mu, s): the share that fp16 stores as 0 at scale S is Phi((-25 - log2 S - mu) / s)."""
    window = scale_window(exponents_of(lognormal(mu, s)), FP16)
    assert window is not None
    expected = phi((-25 - scale_log2 - mu) / s)
    assert window.lost(scale_log2)[0] == pytest.approx(expected, abs=4 * math.sqrt(expected / 400_000))


@pytest.mark.parametrize("tolerated", [2.0**-11, 0.01, 0.1])
def test_lower_end_is_where_the_energy_of_lognormal_gradients_falls_below_the_tolerance(tolerated: float) -> None:
    """The energy of a lognormal is a lognormal of the same s around mu + 2 s^2 ln 2 (in log2)."""
    mu, s = -20.0, 1.0
    window = scale_window(exponents_of(lognormal(mu, s)), FP16, tolerated)
    assert window is not None
    middle = mu + 2.0 * s * s * math.log(2.0)
    smallest = next(j for j in range(-60, 60) if phi((-25 - j - middle) / s) <= tolerated)
    assert window.lower == smallest


@pytest.mark.parametrize("fmt", [FP16, FP8_E5M2])
def test_window_ends_agree_with_rounding_to_the_format(fmt: object) -> None:
    from precisionlab.formats import round_to

    values = lognormal(-20, 3, 20_000)
    window = scale_window(exponents_of(values), fmt)  # type: ignore[arg-type]
    assert window is not None
    stored = {j: round_to(values * 2.0**j, fmt) for j in range(window.lower - 1, window.upper + 2)}  # type: ignore[arg-type]

    def lost(j: int) -> float:
        return float((values[stored[j] == 0] ** 2).sum() / (values**2).sum())

    if window.lower <= window.upper:
        assert lost(window.lower) <= window.tolerated < lost(window.lower - 1)
    assert np.isfinite(stored[window.upper]).all()
    assert not np.isfinite(stored[window.upper + 1]).all()


def test_gradients_wider_than_the_format_have_an_empty_window() -> None:
    """Two halves of the energy 50 binades apart: fp16 spans 40."""
    elements, energy = [0.0] * BINADES, [0.0] * BINADES
    for exponent in (-50, 0):
        elements[exponent - LOWEST], energy[exponent - LOWEST] = 1.0, 0.5
    window = scale_window(GradientExponents(elements, energy, 1.0), FP16)
    assert window is not None
    assert (window.lower, window.upper, window.binades) == (25, 15, -9)
    assert window.advised == window.upper
    assert window.lost(window.upper)[1] == 0.5


def test_advice_stays_inside_the_window_and_leaves_headroom_where_there_is_room() -> None:
    for mu in range(-60, 5, 5):
        window = scale_window(exponents_of(lognormal(mu, 2, 20_000)), FP16)
        assert window is not None
        assert window.lower <= window.advised <= window.upper
        if window.binades > ADVISED_HEADROOM:
            assert window.advised <= window.upper - ADVISED_HEADROOM or window.advised == window.lower


def test_no_gradients_no_window() -> None:
    assert scale_window(GradientExponents([0.0] * BINADES, [0.0] * BINADES, 0.0), FP16) is None


def test_numbers_of_a_window_are_strict_json_numbers() -> None:
    window = scale_window(exponents_of(lognormal(-20, 3, 1000)), FP16)
    assert window is not None
    for scale in (None, 0.0, math.inf, 65536.0, 1000.0):
        numbers = window.numbers(scale)
        assert all(math.isfinite(value) for value in numbers.values() if isinstance(value, (int, float)))
        assert math.fsum(row[1] for row in numbers["exponents"]) == pytest.approx(1.0)
