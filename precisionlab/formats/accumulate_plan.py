"""How a sum is accumulated, as data: the order of additions, the formats partial sums live in, and how each addition is rounded."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum

from precisionlab.errors import SettingsError
from precisionlab.formats.bounds import gamma
from precisionlab.formats.catalogue import FP32
from precisionlab.formats.format import Format, Overflow, Specials

WIDEST_EMULATED = 51
"""Precision up to which a sum rounded to odd in fp64 rounds on correctly: p + 2 <= 53 (Boldo & Melquiond 2008, Theorem 3)."""


class AccumulationOrder(Enum):
    """Which additions are made, in which order."""

    SEQUENTIAL = "sequential"
    """One running sum, from the first term to the last."""
    PAIRWISE = "pairwise"
    """A balanced binary tree over adjacent terms; an odd one out moves up a level unchanged."""
    BLOCKED = "blocked"
    """Running sums of ``block`` consecutive terms, then one running sum over them in ``outer``."""
    SPLIT_K = "split-k"
    """``splits`` running sums over consecutive slices of ceil(n/splits) terms, rounded to ``stored``, then one running sum in ``outer``."""
    BLOCK_FMA = "block-fma"
    """As matrix units: ``block`` terms and the running sum, aligned to the largest, cut off to ``bits``, added exactly, rounded once."""
    KAHAN = "kahan"
    """A running sum that carries the rounding error of each addition into the next (Kahan 1965)."""
    NEUMAIER = "neumaier"
    """A running sum beside a running sum of its rounding errors, added at the end (Neumaier 1974)."""


class SumRounding(Enum):
    """How the exact result of one addition becomes a number of the format."""

    NEAREST_EVEN = "nearest-even"
    """IEEE 754 default. Relative error at most u."""
    TOWARD_ZERO = "toward-zero"
    """Truncation. Relative error below 2u, of one sign: it adds up (Fasi, Higham, Mikaitis & Pranesh 2021)."""
    STOCHASTIC = "stochastic"
    """Up or down with the probability of the other neighbour's distance: right on average (Connolly, Higham & Mary 2021)."""


_COMPENSATED = (AccumulationOrder.KAHAN, AccumulationOrder.NEUMAIER)


@dataclass(frozen=True)
class AccumulationPlan:
    """One way to add up n terms. ``str(plan)`` is a short name for tables.

    Raises SettingsError for a field that the order needs and lacks, or has and does not use, and for a combination that cannot be emulated.
    """

    order: AccumulationOrder
    format: Format
    """Of the running sums, the inner ones where there are two levels."""
    block: int | None = None
    """BLOCKED: terms in an inner sum. BLOCK_FMA: products added at once."""
    splits: int | None = None
    """SPLIT_K: number of slices."""
    stored: Format | None = None
    """SPLIT_K: format in which the partial sums wait to be combined; None: that of the inner sums."""
    outer: Format | None = None
    """Format of the sum over partial sums; None: that of the inner sums. With ``promote_every``: None is fp32."""
    rounding: SumRounding = SumRounding.NEAREST_EVEN
    """Of every addition; in BLOCK_FMA of the one normalisation per block, promoted sums being rounded to nearest."""
    bits: int | None = None
    """BLOCK_FMA: significand bits, counted from the leading bit of the largest addend, that alignment keeps of each addend."""
    promote_every: int | None = None
    """BLOCK_FMA: terms after which the running sum moves to a sum in ``outer`` and starts again; None: never."""

    def __post_init__(self) -> None:
        needs = {
            "block": self.order in (AccumulationOrder.BLOCKED, AccumulationOrder.BLOCK_FMA),
            "splits": self.order is AccumulationOrder.SPLIT_K,
            "bits": self.order is AccumulationOrder.BLOCK_FMA,
        }
        for name, needed in needs.items():
            value = getattr(self, name)
            if needed and (value is None or value < 1):
                raise SettingsError(f"{self.order.value} accumulation needs a positive {name}, not {value}", hint=f"{name}=32")
            if not needed and value is not None:
                raise SettingsError(f"{self.order.value} accumulation has no {name}", hint=f"leave {name} out")
        if self.promote_every is not None and (self.order is not AccumulationOrder.BLOCK_FMA or self.promote_every < 1):
            raise SettingsError("only block-fma sums are promoted, after a positive number of terms", hint="order=BLOCKED for other sums")
        if self.stored is not None and self.order is not AccumulationOrder.SPLIT_K:
            raise SettingsError(f"{self.order.value} accumulation stores no partial sums", hint="order=SPLIT_K, or outer=")
        two_levels = self.order in (AccumulationOrder.BLOCKED, AccumulationOrder.SPLIT_K) or self.promote_every is not None
        if self.outer is not None and not two_levels:
            raise SettingsError(f"{self.order.value} accumulation has one level and no outer format", hint="leave outer out")
        self._check_emulable()

    def _check_emulable(self) -> None:
        nearest = self.rounding is SumRounding.NEAREST_EVEN
        for fmt in (self.format, self.outer_format):
            if not nearest and fmt.precision > WIDEST_EMULATED:
                raise SettingsError(f"{fmt} is what sums are emulated in: only rounding to nearest", hint="a narrower format")
        if self.order in _COMPENSATED and not nearest:
            raise SettingsError("compensated summation is defined for rounding to nearest", hint="leave rounding out")
        if self.bits is not None and self.block is not None and self.bits + math.log2(self.block + 1) > 53:
            raise SettingsError(
                f"{self.block} addends of {self.bits} bits do not add up exactly in fp64", hint="fewer bits, or smaller blocks"
            )

    @property
    def outer_format(self) -> Format:
        """Format of the last level of additions."""
        return self.outer or (FP32 if self.promote_every is not None else self.format)

    @property
    def stored_format(self) -> Format:
        """Format in which partial sums of a split-k sum wait."""
        return self.stored or self.format

    def __str__(self) -> str:
        fmt, outer = self.format.name, "" if self.outer in (None, self.format) else f", outer {self.outer}"
        rounding = "" if self.rounding is SumRounding.NEAREST_EVEN else f", {self.rounding.value.replace('-', ' ')}"
        if self.order is AccumulationOrder.BLOCKED:
            return f"blocks of {self.block} in {fmt}{outer}{rounding}"
        if self.order is AccumulationOrder.SPLIT_K:
            stored = "" if self.stored in (None, self.format) else f", stored in {self.stored}"
            return f"{self.splits} splits in {fmt}{stored}{outer}{rounding}"
        if self.order is AccumulationOrder.BLOCK_FMA:
            promoted = "" if self.promote_every is None else f", promoted to {self.outer_format} every {self.promote_every}"
            return f"block FMA of {self.block} in {fmt}, {self.bits} bits{rounding}{promoted}"
        return f"{self.order.value} {fmt}{rounding}"

    def bound_factor(self, n: int) -> float:
        """Deterministic bound: the sum of n terms is wrong by at most ``factor * sum |x_i|``; ``inf`` where nothing can be said.

        Rounding the terms on entry is included; overflow and underflow are not. A level of h roundings contributes ``gamma_h``, levels
        compound. A block of a block FMA truncates ``block + 1`` addends by less than ``2^(1 - bits)`` of the largest, then rounds once.
        Sources: Higham 2002 §4.2-4.3; Blanchard, Higham & Mary 2020 (blocks); Blanchard, Higham, Lopez, Mary & Pranesh 2020 (block FMA);
        compensated: first-order terms u (Neumaier) and 2u (Kahan) with ``gamma_n^2`` for the rest (Ogita, Rump & Oishi 2005,
        Proposition 4.5).
        """
        if n < 0:
            raise SettingsError(f"a sum cannot have {n} terms", hint="n >= 0")
        if n == 0:
            return 0.0
        u, u_outer = (self._unit(fmt) for fmt in (self.format, self.outer_format))
        if self.order is AccumulationOrder.PAIRWISE:
            return gamma((n - 1).bit_length() + 1, u)
        if self.order is AccumulationOrder.BLOCKED:
            block = min(self.block or n, n)
            return _compound(gamma(block, u), gamma(-(-n // block), u_outer))
        if self.order is AccumulationOrder.SPLIT_K:
            length = -(-n // (self.splits or 1))
            return _compound(gamma(length, u), gamma(1, self.stored_format.u), gamma(-(-n // length), u_outer))
        if self.order is AccumulationOrder.BLOCK_FMA:
            run = min(self.promote_every or n, n)
            inner = self._block_fma_factor(run, u)
            return inner if self.promote_every is None else _compound(inner, gamma(-(-n // run), self.outer_format.u))
        if self.order in _COMPENSATED:
            leading = 3 * u if self.order is AccumulationOrder.KAHAN else 2 * u
            return leading + gamma(n, u) ** 2
        return gamma(n, u)

    def _unit(self, fmt: Format) -> float:
        """Largest relative error of one rounding to ``fmt``."""
        return fmt.u if self.rounding is SumRounding.NEAREST_EVEN else fmt.eps

    def _block_fma_factor(self, n: int, u: float) -> float:
        block = self.block or 1
        per_block = (block + 1) * 2.0 ** (1 - (self.bits or 1)) + u
        total = -(-n // block) * per_block
        return total / (1.0 - total) if total < 1.0 else math.inf


def _compound(*factors: float) -> float:
    """(1 + f1)(1 + f2)... - 1."""
    product = 1.0
    for factor in factors:
        product *= 1.0 + factor
    return product - 1.0


V100 = AccumulationPlan(AccumulationOrder.BLOCK_FMA, FP32, block=4, bits=24, rounding=SumRounding.TOWARD_ZERO)
"""Volta, fp16 operands. With fp16 accumulators, here and below: ``replace(V100, format=FP16, rounding=SumRounding.NEAREST_EVEN)``.

Source: Fasi, Higham, Mikaitis & Pranesh 2021, Numerical behavior of NVIDIA tensor cores; Khattak & Mikaitis 2025, arXiv:2512.07004.
"""
A100 = AccumulationPlan(AccumulationOrder.BLOCK_FMA, FP32, block=8, bits=25, rounding=SumRounding.TOWARD_ZERO)
"""Ampere, fp16 and bf16 operands (tf32: block 4), one extra alignment bit. Source: Khattak & Mikaitis 2025, arXiv:2512.07004."""
H100 = AccumulationPlan(AccumulationOrder.BLOCK_FMA, FP32, block=16, bits=26, rounding=SumRounding.TOWARD_ZERO)
"""Hopper, fp16 and bf16 operands (tf32: block 8), two extra alignment bits. Source: Khattak & Mikaitis 2025, arXiv:2512.07004."""
E8M13 = Format("e8m13", precision=14, exponent_bits=8, bias=127, specials=Specials.IEEE, overflow=Overflow.INFINITY)
"""What Hopper's fp8 units keep of a sum: fp32 without its last ten bits. Source: Khattak & Mikaitis 2025, arXiv:2512.07004."""
H100_FP8 = AccumulationPlan(AccumulationOrder.BLOCK_FMA, E8M13, block=32, bits=14, rounding=SumRounding.TOWARD_ZERO)
"""Hopper, fp8 operands: about 14 bits. Sources: DeepSeek-AI 2024, DeepSeek-V3 §3.3.2, arXiv:2412.19437; Khattak & Mikaitis 2025."""
H100_FP8_PROMOTED = replace(H100_FP8, promote_every=128)
"""The same with the repair of DeepSeek-V3 §3.3.2: partial sums move to fp32 registers every 128 terms."""
