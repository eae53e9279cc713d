"""The summation tree of a kernel, read from its results alone.

A kernel that sums n terms in floating point adds them along some tree. Let one leaf hold a huge M, another -M, and all others one
unit, small enough to vanish beside M. Units under the lowest common ancestor of the two are lost, the others survive: the result
counts the leaves outside of it. The sizes for all pairs of leaves determine the tree, and n log n pairs suffice in practice.

Source: Xie, Gao, Zhang, Xue, "FPRev: Revealing the Order of Floating-Point Summation" (2024), arXiv:2411.00442. A fused addition of
several terms (a tensor core's) shows as a node with more than two children.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from precisionlab.errors import PrecisionLabError
from precisionlab.formats.format import Format

FloatArray = npt.NDArray[np.float64]

Sums = Callable[[FloatArray], FloatArray]
"""A kernel under test: terms of shape (rows, n), numbers of its storage format, to the rows' sums (rows,) as it returned them."""


class NotASumError(PrecisionLabError):
    """The results are not those of a sum of the given terms (a Welford mean, a sum in another precision than assumed)."""


@dataclass(frozen=True)
class Masks:
    """The magnitudes with which a kernel is asked."""

    big: float
    """M: swamps ``count`` units in any accumulator of up to ``swamped_bits`` bits."""
    unit: float
    swamped_bits: int
    count: int
    """Units that one result can count: exactly representable, and together still lost beside M."""

    @staticmethod
    def of(storage: Format, length: int, divides: bool) -> Masks:
        """Masks for sums of ``length`` terms in ``storage``; ``divides`` where the kernel returns the sum over ``length``.

        fp16 has so little range that M = 2^15 and its smallest subnormal, 2^-24, are needed to pass fp32's 24 bits; formats with
        eight exponent bits swamp fp64's 53.
        """
        if storage.exponent_bits >= 8:
            exponent, unit_exponent, bits = 60, -12, 53
        else:
            exponent, bits = storage.emax, 24
            unit_exponent = storage.emin - storage.precision + 1 + (int(length).bit_length() - 1 if divides else 0)
        room = exponent - unit_exponent - bits - 1
        return Masks(2.0**exponent, 2.0**unit_exponent, bits, min(storage.largest_exact_integer, 1 << max(room, 0), 2048))


@dataclass(frozen=True)
class Tree:
    """A summation tree. Nodes 0 .. leaves - 1 are the leaves, by position in ``positions``; children come before their parents."""

    positions: tuple[int, ...]
    children: tuple[tuple[int, ...], ...]
    """Of the inner nodes: node ``leaves + k`` has ``children[k]``. The last is the root."""

    @property
    def leaves(self) -> int:
        """How many terms were asked about."""
        return len(self.positions)

    @property
    def height(self) -> int:
        """Additions on the longest path from a term to the result: h in the error bound h u sum|x| (Higham 2002 §4.2)."""
        heights = [0] * self.leaves
        for below in self.children:
            heights.append(1 + max(heights[c] for c in below))
        return heights[-1]

    def parents(self) -> list[int]:
        """Parent of each node, -1 for the root."""
        found = [-1] * (self.leaves + len(self.children))
        for k, below in enumerate(self.children):
            for c in below:
                found[c] = self.leaves + k
        return found

    def representatives(self) -> list[int]:
        """A leaf under each node."""
        found = list(range(self.leaves))
        for below in self.children:
            found.append(found[below[0]])
        return found

    def sizes(self) -> list[int]:
        """Leaves under each node."""
        found = [1] * self.leaves
        for below in self.children:
            found.append(sum(found[c] for c in below))
        return found

    def longest_run(self) -> int:
        """Terms that one partial sum takes one after the other: the longest chain of nodes that each add single leaves."""
        runs = [1] * self.leaves
        for below in self.children:
            inner = [c for c in below if c >= self.leaves]
            if len(inner) > 1:
                runs.append(1)
            else:
                runs.append(len(below) if not inner else runs[inner[0]] + len(below) - 1)
        return max(runs)

    def widest(self) -> int:
        """Most terms that a single addition takes: 2 for ordinary arithmetic, more for a fused one."""
        return max((len(below) for below in self.children), default=1)


def summation_tree(sums: Sums, length: int, positions: Sequence[int], masks: Masks, limit: int = 40_000) -> Tree:
    """The tree over ``positions`` of a sum of ``length`` terms, all others being zero.

    Raises ``NotASumError`` where the counts do not fit any tree, or where more than ``limit`` rows would be needed.
    """
    oracle = _Oracle(sums, length, tuple(positions), masks, limit)
    oracle.check()
    n = len(positions)
    asked: dict[tuple[int, ...], list[tuple[int, list[int]]]] = {}
    pending: list[tuple[tuple[int, ...], int]] = [(tuple(range(n)), 0)]
    while pending:
        # odd levels ask from the other end: a chain that runs downwards takes two rounds then, not n
        pivots = [leaves[-1] if depth % 2 else leaves[0] for leaves, depth in pending]
        pairs = [(pivot, j) for (leaves, _), pivot in zip(pending, pivots, strict=True) for j in leaves if j != pivot]
        sizes = iter(oracle.sizes(pairs))
        following: list[tuple[tuple[int, ...], int]] = []
        for (leaves, depth), pivot in zip(pending, pivots, strict=True):
            groups: dict[int, list[int]] = {}
            for j in leaves:
                if j != pivot:
                    groups.setdefault(next(sizes), []).append(j)
            asked[leaves] = [(pivot, []), *sorted(groups.items())]
            following += [(tuple(group), depth + 1) for group in groups.values() if len(group) > 1]
        pending = following
    return _assembled(tuple(positions), asked)


def _assembled(positions: tuple[int, ...], asked: dict[tuple[int, ...], list[tuple[int, list[int]]]]) -> Tree:
    n = len(positions)
    children: list[tuple[int, ...]] = []
    sizes = [1] * n

    def build(leaves: tuple[int, ...], size_above: int) -> list[int]:
        """The subtrees that hold ``leaves``: one, or several where they are siblings under a fused addition of ``size_above``."""
        if len(leaves) == 1:
            return [leaves[0]]
        (pivot, _), *groups = asked[leaves]
        top, siblings = pivot, []
        for size, group in groups:
            if size == size_above:
                siblings = build(tuple(group), size)
                continue
            below = (top, *build(tuple(group), size))
            if sum(sizes[c] for c in below) != size:
                raise NotASumError("the counts of surviving terms fit no summation tree")
            children.append(below)
            sizes.append(size)
            top = n + len(children) - 1
        return [top, *siblings]

    if len(build(tuple(range(n)), n + 1)) != 1:
        raise NotASumError("the counts of surviving terms fit no summation tree")
    return Tree(positions, tuple(children))


class _Oracle:
    def __init__(self, sums: Sums, length: int, positions: tuple[int, ...], masks: Masks, limit: int) -> None:
        self.sums, self.length, self.masks, self.limit = sums, length, masks, limit
        self.positions = np.array(positions)
        self.rows = 0
        n = len(positions)
        self.chunks = [range(start, min(start + masks.count, n)) for start in range(0, n, masks.count)]

    def check(self) -> None:
        """Units alone must be counted, and M - M must be zero."""
        terms = np.zeros((len(self.chunks) + 1, self.length))
        for row, chunk in enumerate(self.chunks):
            terms[row, self.positions[chunk]] = self.masks.unit
        terms[-1, self.positions[0]], terms[-1, self.positions[-1]] = self.masks.big, -self.masks.big
        counted = self.sums(terms) / self.masks.unit
        wanted = np.array([len(chunk) for chunk in self.chunks] + [0.0])
        if not np.array_equal(counted, wanted):
            raise NotASumError("units are not summed exactly")

    def sizes(self, pairs: list[tuple[int, int]]) -> list[int]:
        """Leaves under the lowest common ancestor of each pair."""
        self.rows += len(pairs) * len(self.chunks)
        if self.rows > self.limit:
            raise NotASumError(f"more than {self.limit} sums are needed to find the order")
        lost = np.zeros(len(pairs))
        first = self.positions[[i for i, _ in pairs]]
        second = self.positions[[j for _, j in pairs]]
        for start in range(0, len(pairs), 1024):
            part = slice(start, min(start + 1024, len(pairs)))
            rows = np.arange(part.stop - part.start)
            for chunk in self.chunks:
                terms = np.zeros((len(rows), self.length))
                at = self.positions[chunk]
                terms[:, at] = self.masks.unit
                terms[rows, first[part]], terms[rows, second[part]] = self.masks.big, -self.masks.big
                # the two masked leaves are none of the survivors, and do lie under their ancestor
                lost[part] += len(at) - self.sums(terms) / self.masks.unit
        if not np.all((lost >= 2) & (lost <= len(self.positions)) & (lost == np.floor(lost))):
            raise NotASumError("units beside M - M are neither lost nor kept")
        return [int(size) for size in lost]
