"""Every bit pattern of every format of at most 16 bits, against torch and ml_dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from precisionlab import formats as f
from precisionlab.errors import SettingsError


def test_every_pattern_decodes_as_in_torch(narrow: Any, assert_identical: Any) -> None:
    patterns = narrow.patterns()
    assert_identical(f.decode(patterns, narrow.fmt), torch.from_numpy(patterns).view(narrow.torch_dtype).double().numpy(), patterns)


def test_every_pattern_decodes_as_in_ml_dtypes(narrow: Any, assert_identical: Any) -> None:
    patterns = narrow.patterns()
    assert_identical(f.decode(patterns, narrow.fmt), narrow.ml_values(), patterns)


def test_every_pattern_but_nan_survives_decode_and_encode(narrow: Any) -> None:
    patterns = narrow.patterns()
    values = f.decode(patterns, narrow.fmt)
    kept = ~np.isnan(values) & ~(np.isinf(values) & (narrow.fmt.overflow is not f.Overflow.INFINITY))
    encoded = f.encode(values, narrow.fmt)
    assert encoded.dtype == patterns.dtype
    assert np.array_equal(encoded[kept], patterns[kept])
    assert np.isnan(f.decode(encoded[np.isnan(values)], narrow.fmt)).all()


def test_facts_agree_with_the_patterns(narrow: Any) -> None:
    fmt = narrow.fmt
    values = f.decode(narrow.patterns(), fmt)
    finite = values[np.isfinite(values)]
    assert fmt.max == finite.max() == -finite.min()
    assert fmt.min_subnormal == finite[finite > 0].min()
    assert fmt.has_inf == bool(np.isinf(values).any())
    assert fmt.has_negative_zero == bool((np.signbit(finite) & (finite == 0)).any())
    assert f.represents(values, fmt).all()


@pytest.mark.parametrize(
    ("fmt", "number", "pattern"),
    [
        (f.FP16, 1.0, 0x3C00),
        (f.FP16, -2.0, 0xC000),
        (f.FP16, 65504.0, 0x7BFF),
        (f.FP16, 2**-24, 0x0001),
        (f.FP16, -0.0, 0x8000),
        (f.FP16, np.inf, 0x7C00),
        (f.FP16, 1e6, 0x7C00),
        (f.FP16, np.nan, 0x7E00),
        (f.FP16, -np.nan, 0xFE00),
        (f.BF16, 1.0, 0x3F80),
        (f.BF16, -np.inf, 0xFF80),
        (f.BF16, np.nan, 0x7FC0),
        (f.FP8_E5M2, 1.0, 0x3C),
        (f.FP8_E5M2, np.nan, 0x7E),
        (f.FP8_E4M3FN, 448.0, 0x7E),
        (f.FP8_E4M3FN, np.nan, 0x7F),
        (f.FP8_E4M3FN, -np.nan, 0xFF),
        (f.FP8_E4M3FNUZ, 240.0, 0x7F),
        (f.FP8_E4M3FNUZ, -0.0, 0x00),
        (f.FP8_E4M3FNUZ, -np.nan, 0x80),
        (f.FP8_E5M2FNUZ, np.inf, 0x80),
    ],
)
def test_patterns_by_hand(fmt: f.Format, number: float, pattern: int) -> None:
    assert int(f.encode(number, fmt)) == pattern


@pytest.mark.parametrize("fmt", [f.TF32, f.FP32, f.FP64], ids=str)
def test_wide_formats_have_no_patterns_here(fmt: f.Format) -> None:
    with pytest.raises(SettingsError, match="at most 16"):
        f.encode(1.0, fmt)
    with pytest.raises(SettingsError, match="at most 16"):
        f.decode(1, fmt)


@pytest.mark.parametrize("bits", [256, -1, 1.0, [0, 300]])
def test_decode_refuses_what_is_no_pattern(bits: object) -> None:
    with pytest.raises(SettingsError, match="not bit patterns"):
        f.decode(bits, f.FP8_E5M2)  # type: ignore[arg-type]


def test_decode_of_no_patterns_is_empty() -> None:
    assert f.decode(np.empty((0, 3), np.uint8), f.FP8_E5M2).shape == (0, 3)
