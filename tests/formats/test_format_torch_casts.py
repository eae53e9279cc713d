"""round_to against PyTorch's own casts: ties and their neighbours, specials, millions of random patterns; where torch rounds twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from precisionlab import formats as f

SPECIALS = np.array(
    [0, np.inf, np.nan, 2.0**-149, 2.0**-126, np.finfo(np.float32).max, 1, 1e-45, 464, 464.00003, 465, 480, 248, 65519.996, 65520, 61440],
    np.float32,
)


def _both_signs(x: np.ndarray) -> np.ndarray:
    return np.concatenate([x, -x])


def _grid(magnitudes: np.ndarray, threshold: float) -> np.ndarray:
    """Every number of a format, every midpoint (the overflow threshold too), and the float32 neighbours of all of them."""
    points = np.concatenate([magnitudes, (magnitudes[:-1] + magnitudes[1:]) / 2, [threshold, min(2 * threshold, f.FP32.max)]])
    points = points.astype(np.float32)
    with np.errstate(over="ignore"):
        around = [points, np.nextafter(points, np.float32(0)), np.nextafter(points, np.float32(np.inf))]
    return _both_signs(np.concatenate([*around, SPECIALS]))


def _random_float32(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**32, count, dtype=np.uint32).view(np.float32)


def _in_range_float32(fmt: f.Format, count: int, seed: int) -> np.ndarray:
    """Random significands with exponents spread over the range of ``fmt``, a few binades beyond it at both ends."""
    rng = np.random.default_rng(seed)
    exponents = rng.integers(max(fmt.emin - fmt.precision - 2, -149), min(fmt.emax + 2, 127), count)
    return np.ldexp(rng.uniform(-2, 2, count), exponents).astype(np.float32)


def _check(narrow: Any, x: np.ndarray, rounded: np.ndarray, assert_identical: Any) -> None:
    values, patterns = narrow.torch_cast(x)
    assert_identical(rounded, values, x)
    real = ~np.isnan(values)
    assert np.array_equal(f.encode(rounded, narrow.fmt)[real], patterns[real])


def test_casts_of_every_number_tie_and_neighbour_equal_torch(narrow: Any, assert_identical: Any) -> None:
    x = _grid(narrow.magnitudes(), narrow.fmt.overflow_threshold)
    _check(narrow, x, f.round_to(x, narrow.fmt), assert_identical)


def test_casts_of_random_float32_equal_torch(narrow: Any, assert_identical: Any) -> None:
    x = np.concatenate([_random_float32(1_000_000, 3), _in_range_float32(narrow.fmt, 1_000_000, 4)])
    _check(narrow, x, f.round_to(x, narrow.fmt), assert_identical)


def test_casts_between_half_formats_equal_torch(narrow: Any, assert_identical: Any) -> None:
    for source, fmt in ((torch.float16, f.FP16), (torch.bfloat16, f.BF16)):
        every = torch.arange(2**16, dtype=torch.int32).to(torch.uint16).view(source)
        x = f.decode(np.arange(2**16), fmt)
        assert_identical(f.round_to(x, narrow.fmt), every.to(narrow.torch_dtype).double().numpy(), x)


def test_casts_of_float64_equal_torch_when_rounded_by_way_of_float32(narrow: Any, assert_identical: Any) -> None:
    rng = np.random.default_rng(5)
    ties = _grid(narrow.magnitudes(), narrow.fmt.overflow_threshold).astype(np.float64)
    x = np.concatenate(
        [ties, ties * (1 + 2.0**-40), ties * (1 - 2.0**-40), rng.integers(0, 2**64, 500_000, dtype=np.uint64).view(np.float64)]
    )
    _check(narrow, x, f.round_as_torch(x, narrow.fmt), assert_identical)


def test_torch_rounds_float64_to_half_twice() -> None:
    """If this fails, torch has mended its float64 casts: round_as_torch must then follow the version."""
    trap = 1 + 2**-11 + 2**-40  # just above the midpoint of 1 and 1 + 2^-10; float32 drops the 2^-40 and leaves a tie
    assert float(f.round_to(trap, f.FP16)) == 1 + 2**-10
    assert float(f.round_as_torch(trap, f.FP16)) == 1
    for count in (1, 64):  # the scalar and the vectorised kernel
        assert (torch.full((count,), trap, dtype=torch.float64).half() == 1).all()


def test_torch_rounds_float64_to_every_narrow_dtype_twice(narrow: Any) -> None:
    trap = 1 + narrow.fmt.u + 2**-40
    assert float(f.round_to(trap, narrow.fmt)) == 1 + narrow.fmt.eps
    assert float(f.round_as_torch(trap, narrow.fmt)) == 1
    assert (narrow.torch_cast(np.full(64, trap))[0] == 1).all()


def test_double_rounding_changes_no_float32_input(narrow: Any, assert_identical: Any) -> None:
    x = _random_float32(100_000, 6)
    assert_identical(f.round_as_torch(x, narrow.fmt), f.round_to(x, narrow.fmt), x)


def test_float64_to_float32_equals_torch_and_numpy(assert_identical: Any) -> None:
    rng = np.random.default_rng(7)
    words = _random_float32(300_000, 8)
    near = words[np.isfinite(words)].astype(np.float64)
    near = near[np.abs(near) < f.FP32.max]
    ties = near + np.copysign(f.FP32.ulp(near) / 2, near)
    wide = rng.integers(0, 2**64, 500_000, dtype=np.uint64).view(np.float64)
    edge = _both_signs(np.array([f.FP32.overflow_threshold, np.nextafter(f.FP32.overflow_threshold, 0), 2.0**-150, 1.1 * 2.0**-150, 1e300]))
    x = np.concatenate([near, ties, np.nextafter(ties, 0), np.nextafter(ties, np.inf), wide, edge])
    with np.errstate(over="ignore", invalid="ignore"):
        assert_identical(f.round_to(x, f.FP32), x.astype(np.float32), x)
    assert_identical(f.round_to(x, f.FP32), torch.from_numpy(x).float().double().numpy(), x)


def test_this_torch_saturates_e4m3fn_and_ml_dtypes_does_not(narrow: Any, assert_identical: Any) -> None:
    """Overflow to NaN is the other convention (torch before 2.12, ml_dtypes); everything else is the same in both."""
    x = np.concatenate([_grid(narrow.magnitudes(), narrow.fmt.overflow_threshold), _in_range_float32(narrow.fmt, 100_000, 9)])
    policy = f.Overflow.NAN if narrow.fmt is f.FP8_E4M3FN else None
    with np.errstate(over="ignore", invalid="ignore"):
        assert_identical(f.round_to(x, narrow.fmt, overflow=policy), x.astype(narrow.ml_dtype).astype(np.float64), x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_get_format_takes_the_dtype_of_a_tensor(dtype: torch.dtype) -> None:
    x = torch.tensor([1 / 3], dtype=dtype)
    assert float(f.round_to(1 / 3, f.get_format(x.dtype))) == x.item()
