"""Facts of the formats against hand-written numbers and torch.finfo."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys

import numpy as np
import pytest
import torch

from precisionlab import formats as f
from precisionlab.errors import SettingsError

TORCH_DTYPES = {
    f.FP64: torch.float64,
    f.FP32: torch.float32,
    f.BF16: torch.bfloat16,
    f.FP16: torch.float16,
    f.FP8_E5M2: torch.float8_e5m2,
    f.FP8_E4M3FN: torch.float8_e4m3fn,
    f.FP8_E5M2FNUZ: torch.float8_e5m2fnuz,
    f.FP8_E4M3FNUZ: torch.float8_e4m3fnuz,
}


def test_formats_import_without_torch() -> None:
    code = "import sys, precisionlab.formats; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(("fmt", "dtype"), TORCH_DTYPES.items(), ids=str)
def test_derived_facts_equal_torch_finfo(fmt: f.Format, dtype: torch.dtype) -> None:
    info = torch.finfo(dtype)
    word = {8: torch.uint8, 16: torch.int16, 32: torch.int32, 64: torch.int64}[info.bits]
    smallest = torch.tensor(1, dtype=word).view(dtype).double().item()
    assert (fmt.bits, fmt.max, fmt.min_normal, fmt.min_subnormal) == (info.bits, info.max, info.smallest_normal, smallest)
    if fmt is not f.FP8_E5M2FNUZ:
        assert fmt.eps == info.eps


def test_torch_finfo_halves_the_eps_of_e5m2fnuz() -> None:
    """A slip in torch 2.13: the number after 1 is 1.25, which torch itself decodes so. If this fails, it has been mended."""
    one, after = torch.tensor([0x40, 0x41], dtype=torch.uint8).view(torch.float8_e5m2fnuz).double().tolist()
    assert after - one == f.FP8_E5M2FNUZ.eps == 0.25
    assert torch.finfo(torch.float8_e5m2fnuz).eps == 0.125


@pytest.mark.parametrize(
    ("fmt", "largest", "min_normal", "min_subnormal", "u", "integer"),
    [
        (f.FP16, 65504, 2**-14, 2**-24, 2**-11, 2048),
        (f.BF16, 3.3895313892515355e38, 2**-126, 2**-133, 2**-8, 256),
        (f.TF32, (2 - 2**-10) * 2.0**127, 2**-126, 2**-136, 2**-11, 2048),
        (f.FP32, (2 - 2**-23) * 2.0**127, 2**-126, 2**-149, 2**-24, 2**24),
        (f.FP64, sys.float_info.max, 2.0**-1022, 5e-324, 2**-53, 2**53),
        (f.FP8_E5M2, 57344, 2**-14, 2**-16, 2**-3, 8),
        (f.FP8_E4M3FN, 448, 2**-6, 2**-9, 2**-4, 16),
        (f.FP8_E5M2FNUZ, 57344, 2**-15, 2**-17, 2**-3, 8),
        (f.FP8_E4M3FNUZ, 240, 2**-7, 2**-10, 2**-4, 16),
    ],
    ids=str,
)
def test_range_and_precision_are_the_published_ones(
    fmt: f.Format, largest: float, min_normal: float, min_subnormal: float, u: float, integer: int
) -> None:
    assert (fmt.max, fmt.min_normal, fmt.min_subnormal, fmt.u, fmt.largest_exact_integer) == (
        largest,
        min_normal,
        min_subnormal,
        u,
        integer,
    )
    assert fmt.eps == 2 * fmt.u


@pytest.mark.parametrize("fmt", [fmt for fmt in f.FORMATS if fmt is not f.FP64], ids=str)
def test_thresholds_are_where_rounding_overflows_and_flushes(fmt: f.Format) -> None:
    as_inf = f.Overflow.INFINITY if fmt.has_inf else f.Overflow.NAN
    edge = fmt.overflow_threshold
    below, at, above = f.round_to([math.nextafter(edge, 0), edge, math.nextafter(edge, math.inf)], fmt, overflow=as_inf)
    assert below == fmt.max
    assert np.isfinite(at) == (fmt.specials is f.Specials.FN)
    assert not np.isfinite(above)
    flush = fmt.flush_threshold
    assert f.round_to([flush, math.nextafter(flush, 1)], fmt).tolist() == [0.0, fmt.min_subnormal]


def test_fp64_has_no_threshold_within_float64() -> None:
    assert f.FP64.overflow_threshold == math.inf
    assert f.FP64.flush_threshold == 0.0


def test_thresholds_by_hand() -> None:
    assert [fmt.overflow_threshold for fmt in (f.FP16, f.FP8_E5M2, f.FP8_E4M3FN, f.FP8_E4M3FNUZ)] == [65520, 61440, 464, 248]
    assert f.FP16.flush_threshold == 2**-25


def test_tf32_has_the_range_of_fp32_and_the_precision_of_fp16() -> None:
    assert f.TF32.bits == 19
    assert (f.TF32.emin, f.TF32.emax) == (f.FP32.emin, f.FP32.emax)
    assert f.TF32.u == f.FP16.u


@pytest.mark.parametrize("fmt", f.FORMATS, ids=str)
def test_largest_exact_integer_is_the_last_before_a_gap(fmt: f.Format) -> None:
    n = fmt.largest_exact_integer
    if fmt is not f.FP64:  # 2^53 + 1 is no float64
        assert f.represents([n - 1, n, n + 1], fmt).tolist() == [True, True, False]


def test_formats_are_values() -> None:
    assert dataclasses.replace(f.FP16) == f.FP16
    assert len({*f.FORMATS, dataclasses.replace(f.BF16)}) == len(f.FORMATS)
    with pytest.raises(dataclasses.FrozenInstanceError):
        f.FP16.precision = 12  # type: ignore[misc]


@pytest.mark.parametrize(
    ("spelling", "fmt"),
    [
        *((s, f.FP16) for s in ("fp16", "half", "float16", "torch.float16", torch.float16, torch.half, np.dtype("float16"), " FP16 ")),
        *((s, f.BF16) for s in ("bf16", "bfloat16", torch.bfloat16)),
        *((s, f.FP32) for s in ("fp32", "float", "float32", "single", torch.float32)),
        *((s, f.FP64) for s in ("fp64", "double", "float64", torch.double)),
        *((s, f.FP8_E4M3FN) for s in ("e4m3", "fp8_e4m3fn", "fp8-e4m3fn", "float8_e4m3fn", torch.float8_e4m3fn)),
        *((s, f.FP8_E5M2) for s in ("e5m2", "fp8_e5m2", torch.float8_e5m2)),
        *((s, f.FP8_E5M2FNUZ) for s in ("e5m2fnuz", torch.float8_e5m2fnuz)),
        *((s, f.FP8_E4M3FNUZ) for s in ("e4m3fnuz", torch.float8_e4m3fnuz)),
        *((s, f.TF32) for s in ("tf32", "TF32", f.TF32)),
    ],
    ids=str,
)
def test_formats_are_found_by_every_usual_spelling(spelling: object, fmt: f.Format) -> None:
    assert f.get_format(spelling) is fmt


@pytest.mark.parametrize(
    ("spelling", "nearest"), [("flot16", "float16"), ("bfloat61", "bfloat16"), ("e4m3f", "e4m3fn"), ("floot32", "float32")]
)
def test_a_misspelled_format_is_answered_with_the_nearest_one(spelling: str, nearest: str) -> None:
    with pytest.raises(SettingsError) as caught:
        f.get_format(spelling)
    assert repr(spelling) in caught.value.message
    assert repr(nearest) in caught.value.hint


@pytest.mark.parametrize("spelling", ["posit", "", None, torch.int64, 3])
def test_a_word_like_no_format_is_answered_with_the_list(spelling: object) -> None:
    with pytest.raises(SettingsError) as caught:
        f.get_format(spelling)
    assert all(fmt.name in caught.value.hint for fmt in f.FORMATS)
