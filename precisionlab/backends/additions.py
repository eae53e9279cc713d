"""What each addition inside a sum does: how many bits it keeps, how it rounds, whether it flushes subnormals or overflows.

At an inner node of the summation tree, put M on one side, a small s on the other and -M above: the result is what the addition kept of
s. The largest M/s that still leaves a trace tells the significand of the partial sum; s of three quarters of its last place tells the
rounding. Nodes of one sum may differ (an inner sum in fp32, written back in bf16), so several are asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from precisionlab.backends.profile import Rounding
from precisionlab.backends.trees import FloatArray, Sums, Tree
from precisionlab.formats.catalogue import BF16, FP16, FP32, FP64
from precisionlab.formats.format import Format

MAX_NODES = 24
"""Inner nodes that are asked, spread over the sizes of their subtrees."""


@dataclass(frozen=True)
class Additions:
    """What was found. Bits count the hidden one."""

    bits_min: int
    bits_max: int
    """Significands of the narrowest and the widest partial sum asked."""
    capped: bool
    """Whether the format has no room to show more than ``bits_max``."""
    rounding: Rounding
    overflows: bool
    """Whether a partial sum of 1.5 times the largest storable number became infinite or NaN."""
    nodes: int

    def accumulation(self, storage: Format) -> str:
        """The name of the format with the narrowest significand found; fp16 and tf32 are told apart by their range."""
        if self.capped and self.bits_min == self.bits_max:
            return FP64.name
        named = {fmt.precision: fmt.name for fmt in (BF16, FP32, FP64)}
        if self.bits_min == FP16.precision and storage == FP16 and self.overflows:
            return FP16.name
        return named.get(self.bits_min, f"{self.bits_min}-bit")


@dataclass(frozen=True)
class _Place:
    """Positions for M, s and -M that let one addition be asked."""

    big: int
    small: int
    outside: int


def ask_additions(sums: Sums, length: int, tree: Tree, storage: Format, divides: bool) -> Additions | None:
    """Asks the additions of ``tree``; None where it has fewer than two (nothing can be taken away again above the root)."""
    places = list(_places(tree))
    if not places:
        return None
    top = 40.0 if storage.exponent_bits >= 8 else float(storage.emax)
    floor = storage.emin - storage.precision + 1 + (length.bit_length() - 1 if divides else 0)
    most = min(int(top) - floor, 60)
    big = 2.0**top
    kept = _kept(sums, length, places, big, [big * 2.0**-k for k in range(1, most + 1)])
    smalls = big * 2.0 ** -np.arange(1, most + 1)
    intact = np.cumprod(kept == smalls, axis=1).sum(axis=1)
    bits = [int(k) + 1 for k in intact]
    capped = max(bits) > min(most, FP64.precision)
    overflows = _overflow(sums, length, places, storage)
    return Additions(min(bits), max(bits), capped, _rounding(sums, length, places, bits, big, most), overflows, len(places))


def _places(tree: Tree) -> Iterator[_Place]:
    sizes, parents, leaf = tree.sizes(), tree.parents(), tree.representatives()
    inner = sorted(range(tree.leaves, tree.leaves + len(tree.children) - 1), key=lambda node: (sizes[node], node))
    chosen = [inner[i] for i in np.unique(np.linspace(0, len(inner) - 1, min(MAX_NODES, len(inner))).astype(int))] if inner else []
    for node in chosen:
        below = tree.children[node - tree.leaves]
        sibling = next(c for c in tree.children[parents[node] - tree.leaves] if c != node)
        at = [tree.positions[leaf[c]] for c in (*below[:2], sibling)]
        yield _Place(at[0], at[1], at[2])
        yield _Place(at[1], at[0], at[2])


def _kept(sums: Sums, length: int, places: list[_Place], big: float, smalls: list[float], sign: float = 1.0) -> FloatArray:
    """(places, smalls): the result of sign * (M + s - M)."""
    terms = np.zeros((len(places) * len(smalls), length))
    for row, (place, small) in enumerate((p, s) for p in places for s in smalls):
        terms[row, place.big], terms[row, place.outside] = sign * big, -sign * big
        terms[row, place.small] = sign * small
    return sums(terms).reshape(len(places), len(smalls))


def _rounding(sums: Sums, length: int, places: list[_Place], bits: list[int], big: float, most: int) -> Rounding:
    """How M + 3/4 ulp and M + 1/2 ulp round, with both signs. M is a power of two, so the tie goes down when it goes to even."""
    found: set[Rounding] = set()
    for width in sorted(set(bits)):
        if width + 1 > most:  # 3/4 ulp needs one bit below the last
            continue
        these = [place for place, b in zip(places, bits, strict=True) if b == width]
        ulp = big * 2.0 ** (1 - width)
        above = _kept(sums, length, these, big, [0.75 * ulp, 0.5 * ulp]) / ulp
        below = -_kept(sums, length, these, big, [0.75 * ulp, 0.5 * ulp], sign=-1.0) / ulp
        for up, down in zip(above, below, strict=True):
            found.add(_ROUNDINGS.get((*map(float, up), *map(float, down)), Rounding.UNKNOWN))
    return Rounding.UNKNOWN if not found else found.pop() if len(found) == 1 else Rounding.MIXED


_ROUNDINGS: dict[tuple[float, ...], Rounding] = {
    (1.0, 0.0, 1.0, 0.0): Rounding.NEAREST_EVEN,
    (1.0, 1.0, 1.0, 1.0): Rounding.NEAREST_AWAY,
    (0.0, 0.0, 0.0, 0.0): Rounding.TOWARD_ZERO,
    (0.0, 0.0, 1.0, 1.0): Rounding.DOWN,
    (1.0, 1.0, 0.0, 0.0): Rounding.UP,
}
"""Ulps kept of +3/4, +1/2, -3/4 and -1/2 ulp, as magnitudes."""


def _overflow(sums: Sums, length: int, places: list[_Place], storage: Format) -> bool:
    """Whether 3/4 max + 3/4 max - 3/4 max, added in this order, leaves the range."""
    terms = np.zeros((len(places), length))
    for row, place in enumerate(places):
        terms[row, [place.big, place.small]] = 0.75 * storage.max
        terms[row, place.outside] = -0.75 * storage.max
    return not bool(np.all(np.isfinite(sums(terms))))


def flushes_subnormals(sums: Sums, length: int, storage: Format, divides: bool) -> tuple[bool, bool]:
    """(terms, results): whether subnormal terms, and subnormal sums of normal terms, become zero.

    A kernel that divides by the length gets the same value at every place, so that its result keeps the magnitude of a term.
    """
    half = storage.min_normal / 2
    terms = np.zeros((2, length))
    if divides:
        terms[0] = half
        terms[1, 0::2], terms[1, 1::2] = 3 * half, -2 * half
    else:
        terms[0, 0] = half
        terms[1, 0], terms[1, 1] = 3 * half, -2 * half
    results = sums(terms)
    return bool(results[0] == 0), bool(results[1] == 0)


def term_bits(sums: Sums, length: int, storage: Format) -> int:
    """Significand bits of a single term that reach the result: fewer than the format's where operands are rounded (TF32, bf16x1)."""
    terms = np.zeros((storage.precision - 1, length))
    for row in range(storage.precision - 1):
        terms[row, 0] = 1.0 + 2.0 ** -(row + 1)
    intact = np.cumprod(sums(terms) == terms[:, 0])
    return int(intact.sum()) + 1
