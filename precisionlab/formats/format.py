"""What a binary floating-point format *is*: four defining facts, and everything that follows from them.

A finite number of a format is ``± m * 2^(e - (precision - 1))`` with integers ``0 <= m < 2^precision`` and ``emin <= e <= emax``. Read
``Format`` first; ``catalogue`` holds the nine formats, ``rounding`` moves numbers into them, ``bounds`` says how errors add up.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import ArrayLike, NDArray

from precisionlab.errors import SettingsError

FloatArray = NDArray[np.float64]


class Specials(Enum):
    """Which bit patterns are not finite numbers, and whether there are two zeros."""

    IEEE = "ieee"
    """The top exponent field holds ±Inf (fraction 0) and NaN (any other fraction). Source: IEEE 754-2019 §3.4."""
    FN = "fn"
    """No infinities ("finite"); only all ones, with either sign, is NaN. Source: OCP 8-bit Floating Point Specification 1.0 (2023)."""
    FNUZ = "fnuz"
    """No infinities, no negative zero ("unsigned zero"): the pattern of -0 is the one NaN. Source: Noune et al. 2022, arXiv:2206.02915."""


class Overflow(Enum):
    """What a cast gives where the rounded magnitude exceeds ``Format.max``, and for an infinite input."""

    INFINITY = "infinity"
    """±Inf."""
    NAN = "nan"
    """NaN."""
    SATURATE = "saturate"
    """±``Format.max``, for infinities too. NaN stays NaN."""


@dataclass(frozen=True)
class Format:
    """A binary floating-point format. Fields are the defining facts; every property is derived from them.

    Attributes are plain Python numbers, exact in float64. Equality and hash are those of the facts.
    """

    name: str
    """Short name, as written on the command line and in reports: ``fp16``."""
    precision: int
    """Significand digits p in bits, *including* the hidden bit: 11 for fp16."""
    exponent_bits: int
    """Width w of the exponent field in bits: 5 for fp16."""
    bias: int
    """What is subtracted from the exponent field of a normal number: 15 for fp16."""
    specials: Specials
    """Which patterns are Inf, NaN and -0."""
    overflow: Overflow
    """What PyTorch's cast does with a number that is too large (measured, torch 2.13 CPU; see ``catalogue``)."""

    def __str__(self) -> str:
        return self.name

    # ---- layout -------------------------------------------------------------------------------------------------------------------

    @property
    def fraction_bits(self) -> int:
        """Stored significand bits: precision - 1, since the leading one is implied by a non-zero exponent field."""
        return self.precision - 1

    @property
    def bits(self) -> int:
        """Bits that carry information: 1 (sign) + w + (p - 1). TF32 has 19; PyTorch keeps it in 32-bit words."""
        return 1 + self.exponent_bits + self.fraction_bits

    @property
    def has_inf(self) -> bool:
        """Whether ±Inf exist."""
        return self.specials is Specials.IEEE

    @property
    def has_negative_zero(self) -> bool:
        """Whether -0 exists."""
        return self.specials is not Specials.FNUZ

    # ---- precision ----------------------------------------------------------------------------------------------------------------

    @property
    def eps(self) -> float:
        """Spacing just above 1: 2^(1-p). That is ``torch.finfo(dtype).eps``, but for e5m2fnuz, where torch 2.13 says half of it."""
        return 2.0 ** (1 - self.precision)

    @property
    def u(self) -> float:
        """Unit roundoff 2^-p = eps/2: largest relative error of one round to nearest in the normal range (Higham 2002 §2.1).

        Truncation has twice that, ``eps``.
        """
        return 2.0**-self.precision

    @property
    def largest_exact_integer(self) -> int:
        """2^p: every integer up to here is a number of the format, and 2^p + 1 is not. 2048 for fp16, 256 for bf16."""
        return 1 << self.precision

    # ---- range --------------------------------------------------------------------------------------------------------------------

    @property
    def emin(self) -> int:
        """Exponent of the smallest normal number: field 1 less the bias (field 0 is for zero and subnormals)."""
        return 1 - self.bias

    @property
    def emax(self) -> int:
        """Exponent of ``max``: the highest field with finite numbers (IEEE keeps the all-ones field for Inf and NaN) less the bias."""
        top_field = (1 << self.exponent_bits) - 1
        return (top_field - 1 if self.specials is Specials.IEEE else top_field) - self.bias

    @property
    def max(self) -> float:
        """Largest finite number: significand 2 - eps (all ones) at emax; in FN formats 2 - 2 eps, as all ones there is NaN."""
        top_significand = 2.0 - (2.0 if self.specials is Specials.FN else 1.0) * self.eps
        return top_significand * 2.0**self.emax

    @property
    def min_normal(self) -> float:
        """Smallest positive number that has full precision: 2^emin."""
        return 2.0**self.emin

    @property
    def min_subnormal(self) -> float:
        """Smallest positive number, and the spacing of all subnormals: 2^(emin - p + 1)."""
        return 2.0 ** (self.emin - self.precision + 1)

    @property
    def overflow_threshold(self) -> float:
        """Where round to nearest leaves the finite range: max + ulp(max)/2; 65520 for fp16, infinity (none) for fp64.

        All magnitudes below it stay finite and all above it overflow. It is itself a tie, which goes to the even significand: away
        from ``max`` (overflow) in IEEE and FNUZ formats, whose ``max`` is odd, and to ``max`` (no overflow) in FN formats.
        """
        return self.max + float(self.ulp(self.max)) / 2.0  # fp64: max + 2^970 rounds to Inf in Python's own fp64

    @property
    def flush_threshold(self) -> float:
        """Largest magnitude that round to nearest turns into zero: min_subnormal/2, a tie that goes to even; 2^-25 for fp16.

        For fp64 it underflows to 0.0 itself: no float64 is small enough.
        """
        return self.min_subnormal / 2.0

    # ---- spacing ------------------------------------------------------------------------------------------------------------------

    def ulp(self, x: ArrayLike) -> FloatArray:
        """Spacing of this format's numbers at ``x``: ``eps * 2^max(floor(log2 |x|), emin)``, always a power of two.

        ``x`` need not be a number of the format. At a power of two it is the spacing above (the one below is half of it). Zeros of both
        signs and subnormals give ``min_subnormal``. Beyond ``max`` the grid goes on as if the exponent had no limit, which is how
        IEEE 754-2019 §7.4 defines overflow. Inf gives Inf, NaN gives NaN.
        Shapes: that of ``x``, always a float64 array (0-d for a scalar). Units: those of ``x``.
        Raises: SettingsError if ``x`` does not fit in float64 (longdouble, complex, text).
        Source: Goldberg's ulp extended to subnormals (Muller et al., Handbook of Floating-Point Arithmetic, 2018, ch. 2).
        """
        values = as_float64(x)
        # Clearing all but the exponent field leaves 2^floor(log2 |x|): 0.0 for zeros and float64 subnormals, Inf for Inf and NaN.
        binade = (values.view(np.uint64) & np.uint64(0x7FF0_0000_0000_0000)).view(np.float64)
        spacing = np.maximum(binade, self.min_normal) * self.eps
        return np.asarray(np.where(np.isnan(values), np.nan, spacing))


def as_float64(x: ArrayLike) -> FloatArray:
    """``x`` as a float64 array, exactly; -0, subnormals, Inf and NaN are kept. Integers beyond 2^53 are rounded by numpy.

    Raises: SettingsError for types that float64 cannot hold (longdouble, complex, objects, text).
    """
    array = np.asarray(x)
    if array.dtype != np.float64 and not np.can_cast(array.dtype, np.float64, casting="safe"):
        raise SettingsError(f"numbers of type {array.dtype} do not fit in float64", hint="float64, float32, float16 or integer arrays")
    with np.errstate(invalid="ignore"):  # a signalling NaN of float32 is no fault of the caller
        return array.astype(np.float64, copy=False)
