"""Laws are found again in numbers that follow them, and their intervals cover what they say they cover."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import fitted, law_of, noisy

from precisionlab.growth.fits import Fit, Form, Law, Onset, Refusal, fit, fit_form
from precisionlab.growth.forecast import crossing
from precisionlab.growth.forms import jacobian, log_value

DOUBLED = [16.0, 32.0, 64.0, 128.0, 256.0, 512.0]


@given(st.floats(-5, 5), st.floats(0.2, 2.0), st.integers(4, 8))
@settings(deadline=None, max_examples=40)
def test_an_exact_power_law_is_found_with_its_exponent(log_a: float, b: float, count: int) -> None:
    found = fitted(Form.POWER, (log_a, b), [8.0 * 2**i for i in range(count)])
    assert (found.law, found.exponent) == (Law.POWER, pytest.approx(b, rel=1e-6))
    assert found.at(1e5) == pytest.approx(math.exp(log_a) * 1e5**b, rel=1e-4)


@given(st.floats(-5, 5), st.floats(0.05, 0.5))
@settings(deadline=None, max_examples=40)
def test_an_exact_exponential_is_found_with_its_rate(log_a: float, rate: float) -> None:
    found = fitted(Form.EXPONENTIAL, (log_a, rate), [4.0, 8.0, 12.0, 16.0, 24.0, 32.0])
    assert (found.law, found.exponent) == (Law.EXPONENTIAL, pytest.approx(rate, rel=1e-3))


@given(st.floats(-3, 3), st.floats(0.08, 0.4))
@settings(deadline=None, max_examples=25)
def test_errors_that_layers_amplify_are_an_exponential_with_the_rate_of_the_gain(log_a: float, rate: float) -> None:
    found = fitted(Form.AMPLIFIED, (log_a, rate), [2.0, 4.0, 8.0, 12.0, 16.0, 24.0])
    assert (found.law, found.exponent) == (Law.EXPONENTIAL, pytest.approx(rate, rel=0.02))


@given(st.floats(-3, 3), st.floats(20, 150))
@settings(deadline=None, max_examples=25)
def test_errors_that_layers_damp_saturate_at_their_end(log_a: float, tau: float) -> None:
    found = fitted(Form.CONTRACTED, (log_a, math.log(tau)), DOUBLED)
    assert found.law is Law.SATURATING
    assert found.at(1e6) == pytest.approx(math.exp(log_a), rel=0.02)


@given(st.floats(-3, 3))
def test_equal_numbers_are_flat(log_a: float) -> None:
    found = fitted(Form.FLAT, (log_a,), DOUBLED)
    assert (found.law, found.exponent, found.exponent_interval()) == (Law.FLAT, 0.0, (0.0, 0.0))


def test_noise_around_a_constant_is_flat_nineteen_times_in_twenty() -> None:
    rng = np.random.default_rng(1)
    laws = [law_of(fit(DOUBLED, noisy(Form.FLAT, (0.0,), DOUBLED, 0.05, 3, rng))) for _ in range(200)]
    assert laws.count(Law.FLAT) >= 190


@pytest.mark.parametrize("count", [1, 2, 3])
def test_fewer_than_four_sizes_are_refused(count: int) -> None:
    found = fit(DOUBLED[:count], [[1.0 * 2**i] for i in range(count)])
    assert found == Refusal(f"{count} sizes were measured; a law needs 4")


def test_numbers_without_order_are_refused_with_the_share_explained() -> None:
    found = fit(DOUBLED, [[v] for v in (1.0, 30.0, 2.0, 50.0, 1.0, 9.0)])
    assert isinstance(found, Refusal)
    assert "no law describes the 6 sizes" in found.reason and "% of the variance" in found.reason


def test_zeros_up_to_a_size_make_an_onset_between_two_sizes() -> None:
    assert fit(DOUBLED, [[0.0], [0.0], [0.0], [0.1], [0.3], [0.6]]) == Onset(math.sqrt(64 * 128), 64.0, 128.0)


@pytest.mark.parametrize(("values", "reason"), [([0.0] * 6, "0 at every size"), ([0.0, 1.0, 0.0, 1.0, 1.0, 0.0], "in no order")])
def test_zeros_that_are_no_onset_are_refused(values: list[float], reason: str) -> None:
    found = fit(DOUBLED, [[v] for v in values])
    assert isinstance(found, Refusal) and reason in found.reason


def test_numbers_that_are_not_finite_are_left_out() -> None:
    rows = [[float(n)] for n in DOUBLED]
    rows[2], rows[-1] = [64.0, math.nan], [math.inf]
    found = fit(DOUBLED, rows)
    assert isinstance(found, Fit) and found.sizes == tuple(DOUBLED[:-1]) and found.exponent == pytest.approx(1.0)


def test_negative_numbers_raise() -> None:
    with pytest.raises(ValueError, match="not negative"):
        fit(DOUBLED, [[-1.0]] * 6)


def test_two_laws_that_fit_alike_are_rivals_and_the_interval_covers_both() -> None:
    sizes = [20.0, 24.0, 28.0, 32.0, 36.0, 40.0]
    rng = np.random.default_rng(3)
    found = fit(sizes, noisy(Form.POWER, (0.0, 2.0), sizes, 0.05, 1, rng))
    assert isinstance(found, Fit) and found.rivals
    for one in (found, *found.rivals):
        assert found.interval(160)[0] <= one.at(160) <= found.interval(160)[1]


@pytest.mark.parametrize(
    ("form", "p"),
    [(Form.POWER, (0.0, 0.5)), (Form.EXPONENTIAL, (0.0, 0.01)), (Form.AMPLIFIED, (0.0, 0.01)), (Form.CONTRACTED, (1.0, math.log(60)))],
)
def test_the_interval_of_a_law_that_is_known_covers_95_percent(form: Form, p: tuple[float, ...]) -> None:
    """Of new measurements at four times the largest size: 400 simulations, 5 standard deviations of the count allowed."""
    rng = np.random.default_rng(11)
    target = 4 * DOUBLED[-1]
    inside = total = 0
    for _ in range(400):
        found = fit_form(form, DOUBLED, noisy(form, p, DOUBLED, 0.08, 1, rng))
        if found is None:
            continue
        low, high = found._own_interval(target, 0.95)
        inside += low <= noisy(form, p, [target], 0.08, 1, rng)[0][0] <= high
        total += 1
    assert total > 380
    assert abs(inside / total - 0.95) < 5 * math.sqrt(0.95 * 0.05 / total)


def test_the_interval_still_covers_when_the_law_is_chosen_from_the_data() -> None:
    """The choice costs coverage; the union over rivals gives some of it back."""
    rng = np.random.default_rng(12)
    inside = total = 0
    for _ in range(300):
        found = fit(DOUBLED, noisy(Form.POWER, (0.0, 0.5), DOUBLED, 0.05, 3, rng))
        if isinstance(found, Fit):
            low, high = found.interval(2048)
            measured = float(np.exp(np.mean(np.log(noisy(Form.POWER, (0.0, 0.5), [2048.0], 0.05, 3, rng)[0]))))
            inside, total = inside + (low <= measured <= high), total + 1
    assert total > 290
    assert inside / total > 0.88


def test_the_interval_of_a_crossing_covers_the_true_size() -> None:
    rng = np.random.default_rng(13)
    true = 4000.0
    inside = total = 0
    for _ in range(200):
        found = fit_form(Form.POWER, DOUBLED, noisy(Form.POWER, (0.0, 1.0), DOUBLED, 0.1, 1, rng))
        assert found is not None
        forecast = crossing(found, true)
        assert forecast is not None
        inside, total = inside + (forecast.low <= true <= forecast.high), total + 1
    assert inside / total > 0.93  # the interval is that of a single measurement, wider than that of the law


@given(st.sampled_from(list(Form)), st.floats(0.02, 0.9), st.floats(0.2, 1.5))
@settings(deadline=None, max_examples=60)
def test_the_derivatives_of_the_curves_are_those_of_finite_differences(form: Form, b: float, power: float) -> None:
    n = np.array([3.0, 10.0, 40.0])
    p = {Form.FLAT: (0.3,), Form.BOUNDED: (0.3, 2.5, power), Form.CONTRACTED: (0.3, 2.5)}.get(form, (0.3, b))
    exact = jacobian(form, p, n)
    for i in range(form.count):
        up, down = list(p), list(p)
        up[i], down[i] = p[i] + 1e-6, p[i] - 1e-6
        assert exact[:, i] == pytest.approx((log_value(form, up, n) - log_value(form, down, n)) / 2e-6, rel=1e-4, abs=1e-6)
