"""Spacing: by hand, against math.ulp and numpy.spacing, and as the distance to the next pattern."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precisionlab import formats as f

formats = st.sampled_from(f.FORMATS)
steady = settings(deadline=None, derandomize=True, max_examples=200)  # same examples, on a busy machine too


@pytest.mark.parametrize(
    ("fmt", "x", "spacing"),
    [
        (f.FP16, 1.0, 2**-10),
        (f.FP16, -1.0, 2**-10),
        (f.FP16, 0.999, 2**-11),
        (f.FP16, 2048.0, 2.0),
        (f.FP16, 65504.0, 32.0),
        (f.FP16, 0.0, 2**-24),
        (f.FP16, -0.0, 2**-24),
        (f.FP16, 2**-14, 2**-24),
        (f.FP16, 1e-300, 2**-24),
        (f.FP16, 65536.0, 64.0),
        (f.BF16, 256.0, 2.0),
        (f.BF16, 1.0, 2**-7),
        (f.TF32, 1.0, 2**-10),
        (f.FP8_E4M3FN, 448.0, 32.0),
        (f.FP8_E4M3FN, 0.01, 2**-9),
        (f.FP64, 0.0, 5e-324),
    ],
)
def test_spacing_by_hand(fmt: f.Format, x: float, spacing: float) -> None:
    assert float(fmt.ulp(x)) == spacing


def test_spacing_at_an_infinity_is_infinite_and_at_nan_is_nan() -> None:
    assert np.array_equal(f.FP16.ulp([np.inf, -np.inf, np.nan]), [np.inf, np.inf, np.nan], equal_nan=True)


def test_one_ulp_up_is_the_next_pattern(narrow: Any) -> None:
    values = narrow.magnitudes()
    assert np.array_equal(values[:-1] + narrow.fmt.ulp(values[:-1]), values[1:])


@steady
@given(st.floats())
def test_fp64_spacing_is_that_of_python(x: float) -> None:
    assert np.array_equal(f.FP64.ulp(x), math.ulp(x), equal_nan=True)


@steady
@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_fp32_spacing_is_that_of_numpy(x: float) -> None:
    if abs(x) < f.FP32.max:
        assert float(f.FP32.ulp(x)) == abs(float(np.spacing(np.float32(x))))


@steady
@given(st.floats(allow_nan=False, allow_infinity=False), formats)
def test_spacing_is_a_power_of_two_no_smaller_than_the_smallest_number(x: float, fmt: f.Format) -> None:
    spacing = float(fmt.ulp(x))
    assert math.frexp(spacing)[0] == 0.5
    assert spacing >= fmt.min_subnormal
    assert float(fmt.ulp(-x)) == spacing


@steady
@given(st.floats(allow_nan=False, allow_infinity=False), formats)
def test_spacing_of_a_normal_number_is_between_u_and_eps_of_it(x: float, fmt: f.Format) -> None:
    if abs(x) >= fmt.min_normal:
        assert fmt.u < float(fmt.ulp(x)) / abs(x) <= fmt.eps


@steady
@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(allow_nan=False, allow_infinity=False), formats)
def test_spacing_grows_with_magnitude(x: float, y: float, fmt: f.Format) -> None:
    x, y = sorted((abs(x), abs(y)))
    assert fmt.ulp(x) <= fmt.ulp(y)


@steady
@given(st.lists(st.floats(), min_size=1, max_size=8), formats)
def test_spacing_of_an_array_is_that_of_its_elements(xs: list[float], fmt: f.Format) -> None:
    assert np.array_equal(fmt.ulp(xs), [float(fmt.ulp(x)) for x in xs], equal_nan=True)
