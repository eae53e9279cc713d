"""Where limits are crossed."""

from __future__ import annotations

import math

import pytest
from synthetic import fitted

from precisionlab.growth.fits import Form
from precisionlab.growth.forecast import EXPONENTIAL_RANGES, HORIZON, crossing

DOUBLED = [16.0, 32.0, 64.0, 128.0, 256.0]
DEEP = [2.0, 4.0, 6.0, 8.0, 10.0, 12.0]


def test_a_linear_law_reaches_65504_at_65504() -> None:
    found = crossing(fitted(Form.POWER, (0.0, 1.0), [1024.0, 2048.0, 4096.0, 8192.0]), 65504.0)
    assert found is not None
    assert found.size == pytest.approx(65504, rel=1e-3)
    assert found.low < found.size < found.high
    assert found.beyond == pytest.approx(65504 / 8192, rel=1e-3)


def test_an_exponential_reaches_its_limit_at_the_logarithm() -> None:
    found = crossing(fitted(Form.EXPONENTIAL, (0.0, 0.3), DEEP), math.exp(0.3 * 40))
    assert found is not None and found.size == pytest.approx(40, rel=1e-2)


def test_more_noise_makes_the_interval_wider() -> None:
    calm, noisy = (crossing(fitted(Form.POWER, (0.0, 1.0), DOUBLED, noise, 3), 2000.0) for noise in (0.01, 0.1))
    assert calm is not None and noisy is not None
    assert noisy.high / noisy.low > calm.high / calm.low


@pytest.mark.parametrize("form_and_parameters", [(Form.FLAT, (0.0,)), (Form.POWER, (3.0, -0.5)), (Form.CONTRACTED, (0.0, 3.5))])
def test_what_does_not_grow_that_far_reaches_no_limit(form_and_parameters: tuple[Form, tuple[float, ...]]) -> None:
    assert crossing(fitted(*form_and_parameters, DOUBLED), 100.0) is None


def test_growth_that_may_be_none_reaches_no_limit() -> None:
    unsure = fitted(Form.POWER, (0.0, 1.0), DOUBLED)
    wide = type(unsure)(unsure.form, unsure.parameters, ((1.0, 0.0), (0.0, 1.0)), 1.0, 3, 0.0, 0.95, unsure.sizes)
    assert crossing(wide, 2000.0) is None


def test_forecasts_end_at_the_horizon() -> None:
    power = fitted(Form.POWER, (0.0, 1.0), DOUBLED)
    assert crossing(power, 0.9 * HORIZON * DOUBLED[-1]) is not None
    assert crossing(power, 1.1 * HORIZON * DOUBLED[-1]) is None
    exponential = fitted(Form.EXPONENTIAL, (0.0, 0.3), DEEP)
    end = DEEP[-1] + EXPONENTIAL_RANGES * (DEEP[-1] - DEEP[0])
    assert crossing(exponential, math.exp(0.3 * (end - 5))) is not None
    assert crossing(exponential, math.exp(0.3 * (end + 5))) is None


def test_a_limit_that_was_passed_already_lies_inside_the_sizes() -> None:
    found = crossing(fitted(Form.POWER, (0.0, 1.0), DOUBLED), 100.0)
    assert found is not None and found.size == pytest.approx(100, rel=1e-2) and found.beyond < 1
