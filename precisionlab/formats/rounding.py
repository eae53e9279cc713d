"""Moving numbers into a format: rounding, and the bit patterns.

``round_to`` is the definition: the *exact* input rounded once. PyTorch's casts from float32 are equal to it for every format. Its casts
from float64 are not: they go through float32 first and round twice (measured, torch 2.13 CPU, every dtype narrower than float32), so
``1 + 2^-11 + 2^-40`` becomes 1 in ``float16`` though the nearest number is ``1 + 2^-10``. ``round_as_torch`` reproduces that.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from precisionlab.errors import SettingsError
from precisionlab.formats.catalogue import FP32
from precisionlab.formats.format import FloatArray, Format, Overflow, Specials, as_float64


class RoundingMode(Enum):
    """Which of the two neighbouring numbers of the format is taken. Source: IEEE 754-2019 §4.3."""

    NEAREST_EVEN = "nearest-even"
    """The nearer one; of two equally near the one with an even significand. Relative error at most u."""
    TOWARD_ZERO = "toward-zero"
    """The one smaller in magnitude (truncation). Relative error below 2u, always of one sign; finite numbers never overflow."""


def round_to(x: ArrayLike, fmt: Format, mode: RoundingMode = RoundingMode.NEAREST_EVEN, *, overflow: Overflow | None = None) -> FloatArray:
    """The numbers of ``fmt`` that ``x`` rounds to, each rounded once from its exact value.

    0 and -0 stay, with their signs; so does the sign of what becomes zero (FNUZ formats have no -0 and give 0). Results below
    ``min_normal`` are subnormals of ``fmt``; nothing is flushed. NaN stays NaN. Infinities, and finite numbers that nearest rounding
    carries past ``fmt.max``, become what ``overflow`` says (default: ``fmt.overflow``, PyTorch's behaviour); under ``TOWARD_ZERO`` finite
    numbers stop at ±``fmt.max``, infinities are treated as under nearest.
    Shapes: that of ``x``, always a float64 array (0-d for a scalar). Units: those of ``x``.
    Raises: SettingsError if ``x`` does not fit in float64, or ``overflow`` is INFINITY for a format that has none.
    Source: IEEE 754-2019 §4.3 and §7.4 (rounding with unbounded exponent, then the overflow test).
    """
    policy = fmt.overflow if overflow is None else overflow
    if policy is Overflow.INFINITY and not fmt.has_inf:
        raise SettingsError(f"{fmt} has no infinity to overflow to", hint="Overflow.NAN or Overflow.SATURATE")
    values = as_float64(x)
    spacing = fmt.ulp(values)
    to_integer = np.rint if mode is RoundingMode.NEAREST_EVEN else np.trunc
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = np.asarray(to_integer(values / spacing) * spacing)  # exact but for to_integer: spacing is a power of two
    too_large = ~(np.abs(rounded) <= fmt.max)  # also NaN, and Inf (Inf/Inf is NaN)
    if too_large.any():
        rounded[too_large] = _overflowed(values[too_large], fmt, mode, policy)
    if not fmt.has_negative_zero:
        rounded += 0.0  # -0 + 0 = +0
    return rounded


def _overflowed(values: FloatArray, fmt: Format, mode: RoundingMode, policy: Overflow) -> FloatArray:
    """What stands for numbers whose rounding is beyond ``fmt.max``, for infinities and for NaN."""
    limit = {Overflow.INFINITY: np.inf, Overflow.NAN: np.nan, Overflow.SATURATE: fmt.max}[policy]
    finite_limit = fmt.max if mode is RoundingMode.TOWARD_ZERO else limit
    magnitude = np.where(np.isinf(values), limit, finite_limit)
    return np.where(np.isnan(values), np.nan, np.copysign(magnitude, values))


def round_as_torch(x: ArrayLike, fmt: Format) -> FloatArray:
    """What ``torch.tensor(x).to(dtype)`` holds: as ``round_to``, but float64 inputs are rounded to fp32 on the way (double rounding).

    Zeros, subnormals, Inf and NaN as in ``round_to``. Equal to ``round_to`` for every input that is a float32 number, and for fp32 and
    fp64.
    Shapes, units, Raises: as ``round_to``. Source: torch/headeronly/util/{Half,BFloat16,Float8_*}.h convert from ``float`` only (2.13).
    """
    return round_to(x if fmt.precision >= FP32.precision else round_to(x, FP32), fmt)


def represents(x: ArrayLike, fmt: Format) -> NDArray[np.bool_]:
    """Where ``x`` is already a number of ``fmt``, so that a cast loses nothing.

    0 and subnormals of ``fmt``: True. -0 and Inf: where ``fmt`` has them. NaN: True, every format here has one. Shapes: that of ``x``.
    Raises: SettingsError if ``x`` does not fit in float64.
    """
    values = as_float64(x)
    rounded = round_to(values, fmt)
    same = (rounded == values) & (np.signbit(rounded) == np.signbit(values))
    return np.asarray(same | np.isnan(values))


def encode(x: ArrayLike, fmt: Format, mode: RoundingMode = RoundingMode.NEAREST_EVEN) -> NDArray[Any]:
    """Bit patterns of ``round_to(x, fmt, mode)``: uint8 for formats of up to 8 bits, else uint16.

    0, -0, subnormals and Inf have the patterns of the format. NaN becomes one quiet NaN with its sign kept: 0x7e00 in fp16, 0x7fc0 in bf16,
    0x7e in e5m2, 0x7f in e4m3fn, and the unsigned 0x80 in FNUZ. PyTorch writes other NaN payloads in places (bf16 0xffff, e5m2 0x7f).
    Shapes: that of ``x``. Raises: SettingsError for formats wider than 16 bits, and as ``round_to``.
    Source: IEEE 754-2019 §3.4, OCP 8-bit Floating Point Specification 1.0 (2023), arXiv:2206.02915.
    """
    dtype = _word_type(fmt)
    values = as_float64(x)
    rounded = round_to(values, fmt, mode)
    finite = np.isfinite(rounded)
    magnitude = np.where(finite, np.abs(rounded), 0.0)
    significand = (magnitude / fmt.ulp(magnitude)).astype(np.int64)
    field = (magnitude.view(np.int64) >> 52) - 1023 + fmt.bias
    hidden_bit = 1 << fmt.fraction_bits
    bits = np.where(significand < hidden_bit, significand, (field << fmt.fraction_bits) + significand - hidden_bit)
    bits = np.where(np.isinf(rounded), _inf_bits(fmt), bits)
    bits = np.where(np.isnan(rounded), _nan_bits(fmt), bits)
    # The sign of a NaN is that of the input, as numpy may lose it in arithmetic; FNUZ NaN is a pattern of its own.
    signed = np.where(np.isnan(rounded), np.signbit(values) & fmt.has_negative_zero, np.signbit(rounded))
    return np.asarray(bits | (signed.astype(np.int64) << (fmt.bits - 1))).astype(dtype)


def decode(bits: ArrayLike, fmt: Format) -> FloatArray:
    """The numbers that bit patterns of ``fmt`` stand for, exactly, in float64.

    0, -0, subnormals and Inf come out as such; every NaN pattern gives NaN (payload and sign dropped). Shapes: that of ``bits``.
    Raises: SettingsError for formats wider than 16 bits, and for anything but integers in ``[0, 2^fmt.bits)`` (view signed words as
    unsigned).
    Source: IEEE 754-2019 §3.4, OCP 8-bit Floating Point Specification 1.0 (2023), arXiv:2206.02915.
    """
    _word_type(fmt)
    words = np.asarray(bits)
    if words.dtype.kind not in "iu" or (words.size and (int(words.min()) < 0 or int(words.max()) >> fmt.bits)):
        raise SettingsError(
            f"not bit patterns of {fmt}", hint=f"unsigned integers below 2^{fmt.bits}, e.g. .view(np.uint{8 * _word_type(fmt)().itemsize})"
        )
    patterns = words.astype(np.int64)
    sign_bit = 1 << (fmt.bits - 1)
    unsigned = patterns & (sign_bit - 1)
    field = unsigned >> fmt.fraction_bits
    fraction = unsigned & ((1 << fmt.fraction_bits) - 1)
    significand = np.where(field > 0, fraction + (1 << fmt.fraction_bits), fraction)
    exponent = np.maximum(field, 1) - fmt.bias - fmt.fraction_bits
    magnitude = np.ldexp(significand.astype(np.float64), exponent.astype(np.int32))
    if fmt.has_inf:
        magnitude = np.where(unsigned == _inf_bits(fmt), np.inf, magnitude)
    is_nan = {
        Specials.IEEE: unsigned > _inf_bits(fmt),
        Specials.FN: unsigned == sign_bit - 1,
        Specials.FNUZ: patterns == sign_bit,
    }[fmt.specials]
    signed = np.where(patterns & sign_bit != 0, -magnitude, magnitude)
    return np.asarray(np.where(is_nan, np.nan, signed))


def _word_type(fmt: Format) -> type[np.uint8 | np.uint16]:
    if fmt.bits > 16:
        raise SettingsError(
            f"{fmt} has {fmt.bits} bits; patterns are for formats of at most 16", hint="numpy's own .view for fp32 and fp64"
        )
    return np.uint8 if fmt.bits <= 8 else np.uint16


def _inf_bits(fmt: Format) -> int:
    """All-ones exponent field, zero fraction; meant for IEEE formats only."""
    return ((1 << fmt.exponent_bits) - 1) << fmt.fraction_bits


def _nan_bits(fmt: Format) -> int:
    """IEEE: Inf with the top fraction bit set (quiet); FN: all ones; FNUZ: the pattern of -0."""
    if fmt.specials is Specials.IEEE:
        return _inf_bits(fmt) | 1 << (fmt.fraction_bits - 1)
    return (1 << (fmt.bits - 1)) - (1 if fmt.specials is Specials.FN else 0)
