"""The loss-scale window: which factors S keep the gradients of a backward pass inside a narrow format.

A gradient g is stored as S g. It overflows when S |g| reaches the overflow threshold (65520 in fp16) and becomes 0 when S |g| is at most
half the smallest subnormal (2^-25 in fp16). So S must lie between 2^-25 / |g_low| and 65520 / |g_max|, for a g_low that may not be lost
(Micikevicius et al. 2018, "Mixed Precision Training", section 3.2). Only powers of two are considered: they round nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from precisionlab.formats.format import Format

LOWEST = -140
HIGHEST = 40
"""Exponents counted one by one; smaller and larger values fall into the first and the last binade. fp32 ends at 2^-149."""
BINADES = HIGHEST - LOWEST + 1

ADVISED_HEADROOM = 2
"""Binades that an advised scale leaves to the largest gradient seen: gradients of the next batches are not those of this one."""
USUAL_START = 16
"""log2 of the scale at which torch.amp.GradScaler starts; no larger one is advised unless small gradients need it."""


@dataclass(frozen=True, slots=True)
class GradientExponents:
    """How the magnitudes of unscaled gradients are spread: entry i counts 2^(LOWEST + i) <= |g| < 2^(LOWEST + i + 1).

    ``elements`` are numbers of values, zeros left out. ``energy`` are sums of squares, each tensor normalised to 1 beforehand, so that a
    layer with small gradients counts as much as one with large ones. ``largest`` is the largest finite |g|, 0 when there is none.
    """

    elements: Sequence[float]
    energy: Sequence[float]
    largest: float

    def below(self, exponent: int) -> tuple[float, float]:
        """Shares of the elements and of the energy with |g| < 2^exponent; 0 when nothing was counted."""
        end = min(max(exponent - LOWEST, 0), BINADES)
        return _share(self.elements, end), _share(self.energy, end)

    def lowest_kept(self, tolerated: float) -> int:
        """The largest exponent e such that the values below 2^e hold at most the share ``tolerated`` of the energy."""
        total, sum_below = math.fsum(self.energy), 0.0
        for i, energy in enumerate(self.energy):
            sum_below += energy
            if sum_below > tolerated * total:
                return LOWEST + i
        return HIGHEST


def _share(counts: Sequence[float], end: int) -> float:
    total = math.fsum(counts)
    return math.fsum(counts[:end]) / total if total > 0 else 0.0


@dataclass(frozen=True, slots=True)
class ScaleWindow:
    """Loss scales as powers of two (the exponents). ``lower > upper`` means that no scale keeps both ends."""

    fmt: Format
    exponents: GradientExponents
    tolerated: float
    """Share of the energy that may become zero."""
    lower: int
    """Smallest scale at which at most ``tolerated`` of the energy becomes zero."""
    lower_normal: int
    """Smallest scale at which at most ``tolerated`` of the energy leaves the normal range, where values keep all their bits."""
    upper: int
    """Largest scale at which nothing seen overflows."""

    @property
    def binades(self) -> int:
        """Powers of two in the window; 0 or less when it is empty."""
        return self.upper - self.lower + 1

    def lost(self, scale_log2: float) -> tuple[float, float]:
        """Shares of the elements and of the energy that become zero at a scale (at the power of two below it, when it is none)."""
        return self.exponents.below(math.floor(math.log2(self.fmt.flush_threshold)) - math.floor(scale_log2))

    @property
    def advised(self) -> int:
        """A scale to start with: ``ADVISED_HEADROOM`` below the upper end, as high as the normal range asks for or ``USUAL_START``,
        and never outside of a window that is not empty."""
        comfortable = min(self.upper - ADVISED_HEADROOM, max(USUAL_START, self.lower_normal))
        return min(max(comfortable, self.lower), self.upper)

    def numbers(self, scale: float | None) -> dict[str, Any]:
        """Everything as plain numbers, for the scale in force (``None``: the loss is not scaled)."""
        stands = math.log2(scale) if scale and math.isfinite(scale) and scale > 0 else 0.0
        lost_elements, lost_energy = self.lost(stands)
        advised_elements, advised_energy = self.lost(self.advised)
        counts, energies = math.fsum(self.exponents.elements), math.fsum(self.exponents.energy)
        return {
            "format": self.fmt.name,
            "largest_gradient": self.exponents.largest,
            "lower_log2": self.lower,
            "lower_normal_log2": self.lower_normal,
            "upper_log2": self.upper,
            "binades": self.binades,
            "scale_log2": stands,
            "headroom_binades": self.upper - stands,
            "flushed_share": lost_elements,
            "flushed_energy_share": lost_energy,
            "tolerated_energy_share": self.tolerated,
            "advised_log2": self.advised,
            "advised_flushed_share": advised_elements,
            "advised_flushed_energy_share": advised_energy,
            "upper_flushed_energy_share": self.lost(self.upper)[1],
            "exponents": [
                [LOWEST + i, n / counts, e / energies if energies else 0.0]
                for i, (n, e) in enumerate(zip(self.exponents.elements, self.exponents.energy, strict=True))
                if n
            ],
        }


def scale_window(exponents: GradientExponents, fmt: Format, tolerated: float | None = None) -> ScaleWindow | None:
    """The window of ``fmt``; None when no gradient was seen. ``tolerated`` is u unless given: what rounding takes anyway.

    Exact for powers of two: a binade is lost as a whole or not at all, since the flush threshold is a power of two itself.
    """
    if not exponents.largest > 0 or not any(exponents.energy):
        return None
    share = fmt.u if tolerated is None else tolerated
    kept = exponents.lowest_kept(share)
    lower = math.floor(math.log2(fmt.flush_threshold)) - kept
    lower_normal = math.floor(math.log2(fmt.min_normal)) - kept
    upper = math.floor(math.log2(fmt.overflow_threshold / exponents.largest))
    while math.ldexp(exponents.largest, upper) >= fmt.overflow_threshold:
        upper -= 1
    return ScaleWindow(fmt, exponents, share, lower, lower_normal, upper)
