"""Rounding by hand-written values, and against an exact definition in rational arithmetic."""

from __future__ import annotations

import bisect
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precisionlab import formats as f
from precisionlab.errors import SettingsError

NEAREST, ZERO = f.RoundingMode.NEAREST_EVEN, f.RoundingMode.TOWARD_ZERO
formats = st.sampled_from(f.FORMATS)
steady = settings(deadline=None, derandomize=True, max_examples=200)  # same examples, on a busy machine too
finite = st.floats(allow_nan=False, allow_infinity=False)


def test_fp16_integers_above_2048_lose_odd_values() -> None:
    assert f.round_to([2047, 2048, 2049, 2050, 2051, 2053], f.FP16).tolist() == [2047, 2048, 2048, 2050, 2052, 2052]


def test_bf16_integers_above_256_lose_odd_values() -> None:
    assert f.round_to([255, 256, 257, 258, 259], f.BF16).tolist() == [255, 256, 256, 258, 260]


def test_fp16_flushes_half_its_smallest_number_and_keeps_anything_above() -> None:
    assert f.round_to([2**-24, 2**-25, 2**-25 * (1 + 2**-50), 1e-8], f.FP16).tolist() == [2**-24, 0, 2**-24, 0]


def test_fp16_overflows_from_65520() -> None:
    assert f.round_to([65504, 65519.99, 65520, -65520], f.FP16).tolist() == [65504, 65504, np.inf, -np.inf]


def test_truncation_stops_at_the_largest_number() -> None:
    assert f.round_to([65519, 1e300, -1e300, np.inf], f.FP16, ZERO).tolist() == [65504, 65504, -65504, np.inf]
    assert f.round_to([1e300, -1e300], f.FP8_E4M3FNUZ, ZERO).tolist() == [240, -240]


def test_truncation_never_rounds_up() -> None:
    assert f.round_to([2049.999, -2049.999, 2**-24 * 1.99, -(2**-25)], f.FP16, ZERO).tolist() == [2048, -2048, 2**-24, 0]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [(f.Overflow.NAN, [448, np.nan, np.nan, np.nan]), (f.Overflow.SATURATE, [448, 448, -448, 448])],
    ids=["nan", "saturate"],
)
def test_e4m3fn_overflow_can_be_chosen(policy: f.Overflow, expected: list[float]) -> None:
    assert np.array_equal(f.round_to([464, 465, -1e9, np.inf], f.FP8_E4M3FN, overflow=policy), expected, equal_nan=True)


def test_a_saturating_cast_keeps_nan() -> None:
    assert np.isnan(f.round_to(np.nan, f.FP8_E4M3FN, overflow=f.Overflow.SATURATE))


def test_overflow_to_an_infinity_that_does_not_exist_is_refused() -> None:
    with pytest.raises(SettingsError, match="no infinity"):
        f.round_to(1.0, f.FP8_E4M3FN, overflow=f.Overflow.INFINITY)


@pytest.mark.parametrize("fmt", f.FORMATS, ids=str)
@pytest.mark.parametrize("mode", list(f.RoundingMode), ids=lambda mode: mode.value)
def test_zeros_keep_their_sign_where_the_format_has_one(fmt: f.Format, mode: f.RoundingMode) -> None:
    tiny = 5e-324 if fmt is not f.FP64 else 0.0
    signs = np.signbit(f.round_to([0.0, -0.0, -tiny], fmt, mode))
    assert signs.tolist() == [False, fmt.has_negative_zero, fmt.has_negative_zero]


@pytest.mark.parametrize("shape", [(), (1,), (0,), (2, 3)])
def test_shapes_are_kept_and_inputs_untouched(shape: tuple[int, ...]) -> None:
    x = np.full(shape, 1e9)
    for result in (f.round_to(x, f.FP16), f.FP16.ulp(x), f.round_as_torch(x, f.FP16)):
        assert isinstance(result, np.ndarray)
        assert (result.shape, result.dtype) == (shape, np.float64)
    assert (x == 1e9).all()


def test_strided_and_transposed_inputs_are_read_by_value() -> None:
    x = np.arange(24, dtype=np.float32).reshape(4, 6).T[::2] * np.float32(100.3)
    assert np.array_equal(f.round_to(x, f.BF16), f.round_to(x.copy(), f.BF16))


@pytest.mark.parametrize("x", [np.longdouble(1), 1j, "1", 10**400, None])
def test_what_float64_cannot_hold_is_refused(x: Any) -> None:
    with pytest.raises(SettingsError, match="do not fit in float64"):
        f.round_to(x, f.FP16)


def test_tf32_is_fp32_with_thirteen_bits_rounded_away(assert_identical: Any) -> None:
    rng = np.random.default_rng(0)
    words = rng.integers(0, 2**32, 500_000, dtype=np.uint32)
    words[:100_000] = (words[:100_000] & ~np.uint32(0x1FFF)) | np.uint32(0x1000)  # ties
    x = words.view(np.float32)
    x = x[np.isfinite(x)]
    w = x.view(np.uint32)
    nearest = (w + np.uint32(0xFFF) + ((w >> np.uint32(13)) & np.uint32(1))) & ~np.uint32(0x1FFF)
    assert_identical(f.round_to(x, f.TF32), nearest.view(np.float32), x)
    assert_identical(f.round_to(x, f.TF32, ZERO), (w & ~np.uint32(0x1FFF)).view(np.float32), x)


def test_truncation_to_bf16_is_dropping_the_lower_half_word(assert_identical: Any) -> None:
    x = np.random.default_rng(1).integers(0, 2**32, 500_000, dtype=np.uint32).view(np.float32)
    x = x[np.isfinite(x)]
    assert_identical(f.round_to(x, f.BF16, ZERO), (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32), x)


def test_rounding_is_the_nearest_number_in_exact_arithmetic(narrow: Any) -> None:
    """Random float64 magnitudes, and ties moved by 2^-52: the traps of double rounding."""
    values = narrow.magnitudes()
    rng = np.random.default_rng(2)
    low, high = np.log2(values[1]) - 3, np.log2(values[-1])
    ties = (values[:-1] + values[1:]) / 2
    ties = rng.choice(ties, min(300, ties.size), replace=False)
    x = np.concatenate([2 ** rng.uniform(low, high, 500), ties, np.nextafter(ties, 0), np.nextafter(ties, np.inf)])
    exact = [Fraction(v) for v in values.tolist()]
    nearest, truncated = [], []
    for a in map(Fraction, x.tolist()):
        below = bisect.bisect_right(exact, a) - 1
        above = min(below + 1, len(exact) - 1)
        down, up = a - exact[below], exact[above] - a
        go_up = down > up or (down == up and below % 2 == 1)  # the pattern of a magnitude is its rank, so even rank = even significand
        nearest.append(values[above if go_up else below])
        truncated.append(values[below])
    assert np.array_equal(f.round_to(x, narrow.fmt), nearest)
    assert np.array_equal(f.round_to(x, narrow.fmt, ZERO), truncated)


@steady
@given(finite, formats)
def test_a_rounding_error_is_at_most_half_an_ulp(x: float, fmt: f.Format) -> None:
    if abs(x) < fmt.overflow_threshold:
        error = abs(Fraction(float(f.round_to(x, fmt))) - Fraction(x))
        assert error <= Fraction(float(fmt.ulp(x))) / 2
        if abs(x) >= fmt.min_normal:
            assert error <= Fraction(fmt.u) * abs(Fraction(x))


@steady
@given(finite, formats)
def test_a_truncation_error_is_below_one_ulp_and_toward_zero(x: float, fmt: f.Format) -> None:
    if abs(x) <= fmt.max:
        lost = abs(Fraction(x)) - abs(Fraction(float(f.round_to(x, fmt, ZERO))))
        assert 0 <= lost < Fraction(float(fmt.ulp(x)))


@steady
@given(finite, finite, formats, st.sampled_from(f.RoundingMode))
def test_rounding_keeps_order(x: float, y: float, fmt: f.Format, mode: f.RoundingMode) -> None:
    x, y = sorted((x, y))
    low, high = f.round_to([x, y], fmt, mode, overflow=f.Overflow.SATURATE)
    assert low <= high


@steady
@given(st.floats(), formats, st.sampled_from(f.RoundingMode))
def test_rounding_twice_to_one_format_changes_nothing(x: float, fmt: f.Format, mode: f.RoundingMode) -> None:
    once = f.round_to(x, fmt, mode)
    assert np.array_equal(f.round_to(once, fmt, mode), once, equal_nan=True)
    assert f.represents(once, fmt).all()


@steady
@given(finite, formats, st.sampled_from(f.RoundingMode))
def test_rounding_treats_both_signs_alike(x: float, fmt: f.Format, mode: f.RoundingMode) -> None:
    assert np.array_equal(f.round_to(-x, fmt, mode), -f.round_to(x, fmt, mode), equal_nan=True)


@steady
@given(st.floats())
def test_fp64_keeps_every_float64(x: float) -> None:
    for mode in f.RoundingMode:
        assert np.array_equal(f.round_to(x, f.FP64, mode), x, equal_nan=True)


def test_represents_tells_what_a_cast_would_change() -> None:
    assert f.represents([2048, 2049, 1e-8, 0.1, np.inf, np.nan, -0.0], f.FP16).tolist() == [True, False, False, False, True, True, True]
    assert f.represents([-0.0, 0.0, np.inf], f.FP8_E4M3FNUZ).tolist() == [False, True, False]
    assert f.represents([np.inf, 448], f.FP8_E4M3FN).tolist() == [False, True]
