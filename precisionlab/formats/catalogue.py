"""The formats precisionlab knows, and the ways people spell them.

PyTorch's overflow behaviour was measured on 2.13 CPU and is part of each entry. One case depends on the version: ``float8_e4m3fn``
saturates to 448 (infinities too) since pytorch #178817 (2.12), and gave NaN before; for an older torch use
``dataclasses.replace(FP8_E4M3FN, overflow=Overflow.NAN)``, which is also what ``ml_dtypes`` does.
"""

from __future__ import annotations

from difflib import get_close_matches

from precisionlab.errors import SettingsError
from precisionlab.formats.format import Format, Overflow, Specials

FP64 = Format("fp64", precision=53, exponent_bits=11, bias=1023, specials=Specials.IEEE, overflow=Overflow.INFINITY)
"""binary64. Source: IEEE 754-2019 Table 3.5."""
FP32 = Format("fp32", precision=24, exponent_bits=8, bias=127, specials=Specials.IEEE, overflow=Overflow.INFINITY)
"""binary32. Source: IEEE 754-2019 Table 3.5."""
TF32 = Format("tf32", precision=11, exponent_bits=8, bias=127, specials=Specials.IEEE, overflow=Overflow.INFINITY)
"""Operand format of Ampere and later tensor cores: the range of fp32 with the precision of fp16. Source: NVIDIA A100 white paper (2020).

How a GPU rounds fp32 operands to it (ties away from zero, or cut off) is the hardware's affair: probe it. Here it is a format like any
other.
"""
BF16 = Format("bf16", precision=8, exponent_bits=8, bias=127, specials=Specials.IEEE, overflow=Overflow.INFINITY)
"""bfloat16: the upper half of an fp32 word. Source: Intel, BFLOAT16 Hardware Numerics Definition (2018)."""
FP16 = Format("fp16", precision=11, exponent_bits=5, bias=15, specials=Specials.IEEE, overflow=Overflow.INFINITY)
"""binary16. Source: IEEE 754-2019 Table 3.5."""
FP8_E5M2 = Format("fp8_e5m2", precision=3, exponent_bits=5, bias=15, specials=Specials.IEEE, overflow=Overflow.INFINITY)
"""The upper half of an fp16 word. Source: OCP 8-bit Floating Point Specification 1.0 (2023)."""
FP8_E4M3FN = Format("fp8_e4m3fn", precision=4, exponent_bits=4, bias=7, specials=Specials.FN, overflow=Overflow.SATURATE)
"""Source: OCP 8-bit Floating Point Specification 1.0 (2023); overflow: torch/headeronly/util/Float8_e4m3fn.h (2.13)."""
FP8_E5M2FNUZ = Format("fp8_e5m2fnuz", precision=3, exponent_bits=5, bias=16, specials=Specials.FNUZ, overflow=Overflow.NAN)
"""Source: Noune et al. 2022, arXiv:2206.02915; overflow: torch/headeronly/util/Float8_fnuz_cvt.h (2.13)."""
FP8_E4M3FNUZ = Format("fp8_e4m3fnuz", precision=4, exponent_bits=4, bias=8, specials=Specials.FNUZ, overflow=Overflow.NAN)
"""Source: Noune et al. 2022, arXiv:2206.02915; overflow: torch/headeronly/util/Float8_fnuz_cvt.h (2.13)."""

FORMATS: tuple[Format, ...] = (FP64, FP32, TF32, BF16, FP16, FP8_E5M2, FP8_E4M3FN, FP8_E5M2FNUZ, FP8_E4M3FNUZ)
"""Every known format, widest first."""

_ALIASES: dict[Format, tuple[str, ...]] = {
    FP64: ("float64", "double", "f64", "binary64"),
    FP32: ("float32", "float", "single", "f32", "binary32"),
    TF32: ("tensorfloat32",),
    BF16: ("bfloat16", "bfloat"),
    FP16: ("float16", "half", "f16", "binary16"),
    FP8_E5M2: ("float8_e5m2", "e5m2"),
    FP8_E4M3FN: ("float8_e4m3fn", "fp8_e4m3", "float8_e4m3", "e4m3fn", "e4m3"),
    FP8_E5M2FNUZ: ("float8_e5m2fnuz", "e5m2fnuz"),
    FP8_E4M3FNUZ: ("float8_e4m3fnuz", "e4m3fnuz"),
}
_BY_SPELLING: dict[str, Format] = {spelling: fmt for fmt in FORMATS for spelling in (fmt.name, *_ALIASES[fmt])}


def get_format(spelling: object) -> Format:
    """The format meant by a name, a ``torch.dtype``, a numpy dtype, or a ``Format`` (returned as it is).

    Case, surrounding blanks, ``torch.`` and ``-`` for ``_`` do not matter. Dtypes are recognised by their ``str()``, so torch is not
    needed.
    Raises: SettingsError if no format is spelled so; the hint names the nearest known spelling and lists all formats.
    """
    if isinstance(spelling, Format):
        return spelling
    word = str(spelling).strip().lower().removeprefix("torch.").replace("-", "_")
    if word in _BY_SPELLING:
        return _BY_SPELLING[word]
    known = ", ".join(fmt.name for fmt in FORMATS)
    nearest = get_close_matches(word, _BY_SPELLING, n=1, cutoff=0.5)
    hint = f"{nearest[0]!r} (formats: {known})" if nearest else f"one of {known}"
    raise SettingsError(f"unknown number format {str(spelling)!r}", hint=hint)
