"""What the kernels of one machine sum in: plain data, without torch.

A ``Profile`` is made by ``precisionlab probe`` on the machine it describes (origin *probed*) or written down from published
measurements of hardware that is not at hand (origin *declared*, each entry with its source).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from precisionlab.errors import SettingsError
from precisionlab.formats.catalogue import FORMATS

Evidence = Mapping[str, float | int | bool | str]


class _Word(str, Enum):
    def __str__(self) -> str:
        return str(self.value)


class Origin(_Word):
    """Where a profile comes from."""

    PROBED = "probed"
    """Measured on the machine it describes."""
    DECLARED = "declared"
    """Written down from published measurements; not probed."""


class Order(_Word):
    """The shape of the summation tree of n terms."""

    SEQUENTIAL = "sequential"
    """One partial sum takes all terms: n - 1 roundings on the longest path."""
    PAIRWISE = "pairwise"
    """Balanced: no more than twice log2 n roundings on the longest path."""
    BLOCKED = "blocked"
    """Several partial sums (vector lanes, blocks), each sequential, then combined."""
    UNKNOWN = "unknown"


class Rounding(_Word):
    """How each addition inside the sum rounds."""

    NEAREST_EVEN = "nearest-even"
    NEAREST_AWAY = "nearest-away"
    TOWARD_ZERO = "toward-zero"
    DOWN = "down"
    UP = "up"
    MIXED = "mixed"
    """Not all additions of one sum round alike."""
    UNKNOWN = "unknown"


class SizeClass(_Word):
    """Classes of reduction length n. Kernels switch their blocking with it."""

    SHORT = "short"
    """n <= 256."""
    MEDIUM = "medium"
    """256 < n <= 4096."""
    LONG = "long"
    """n > 4096."""

    @staticmethod
    def of(length: int) -> SizeClass:
        """The class of a reduction over ``length`` terms."""
        return SizeClass.SHORT if length <= 256 else SizeClass.MEDIUM if length <= 4096 else SizeClass.LONG


_CLASSES = tuple(SizeClass)


@dataclass(frozen=True)
class Entry:
    """What one kernel does for one dtype and one class of lengths."""

    op: str
    """As reports name it: ``aten.mm``."""
    dtype: str
    """Storage format of the terms and of the result: ``bf16``."""
    size_class: SizeClass
    accumulation: str
    """Format of the partial sums: ``fp32``; ``14-bit`` for a significand that belongs to no format."""
    order: Order = Order.UNKNOWN
    block: int | None = None
    """Terms that a partial sum takes one after the other before it meets another partial sum; None for the other orders."""
    rounding: Rounding = Rounding.UNKNOWN
    flushes_subnormals: bool | None = None
    """Whether subnormal terms or results become zero; None where that was not measured."""
    case: str = ""
    """Which sum of the op is meant where it has several: ``weight gradient``."""
    evidence: Evidence = field(default_factory=dict)
    """Measured numbers with units in their names; ``source`` for declared entries."""

    @property
    def bits(self) -> int:
        """Significand bits of the partial sums, the hidden one included."""
        return significand_bits(self.accumulation)


@dataclass(frozen=True)
class FlagEffect:
    """What a switch of torch changed in one entry of the probe; ``changes`` is empty where it made no difference."""

    flag: str
    """As it is written in a program: ``torch.set_flush_denormal(True)``."""
    op: str
    dtype: str
    changes: Mapping[str, str] = field(default_factory=dict)
    """Field of the entry -> "before -> after"."""


@dataclass(frozen=True)
class Profile:
    """The kernels of one device under one version of torch."""

    name: str
    device: str
    """``cpu`` or ``cuda``: the ``torch.device`` type whose ops it describes."""
    hardware: str
    """The processor, in words."""
    torch: str
    """Version of torch that was probed; empty where any is meant."""
    origin: Origin
    entries: tuple[Entry, ...]
    flags: tuple[FlagEffect, ...] = ()
    notes: tuple[str, ...] = ()

    def accumulation_of(self, op: str, dtype: str, length: int | None = None, case: str | None = None) -> Entry | None:
        """The entry for sums of ``length`` terms by ``op`` (``aten.sum``; in-place forms are the same) in ``dtype`` (``bf16``).

        ``case`` says which sum is meant where the op makes several (gradients of weight and bias). Where that, or the length, is not
        known, the one with the narrowest accumulator; where the class of ``length`` was not measured, the nearest that was. None where
        the profile does not know the op in that dtype.
        """
        return min(self.entries_of(op, dtype, length, case), key=lambda entry: entry.bits, default=None)

    def entries_of(self, op: str, dtype: str, length: int | None = None, case: str | None = None) -> list[Entry]:
        """Every entry that ``accumulation_of`` chooses from: what the kernel may do, where the profile knows several ways."""
        known = self._index().get((op.rstrip("_"), dtype), [])
        if case is not None:
            known = [entry for entry in known if entry.case == case] or known
        if length is not None and known:
            wanted = _CLASSES.index(SizeClass.of(length))
            distances = [abs(_CLASSES.index(entry.size_class) - wanted) for entry in known]
            known = [entry for entry, distance in zip(known, distances, strict=True) if distance == min(distances)]
        return known

    def _index(self) -> dict[tuple[str, str], list[Entry]]:
        found: dict[tuple[str, str], list[Entry]] | None = self.__dict__.get("_by_op")
        if found is None:
            found = {}
            for entry in self.entries:
                found.setdefault((entry.op.rstrip("_"), entry.dtype), []).append(entry)
            self.__dict__["_by_op"] = found
        return found

    def mismatch(self, torch_version: str) -> str | None:
        """A sentence when the profile was probed under another torch than ``torch_version``, else None."""
        if not self.torch or _release(self.torch) == _release(torch_version):
            return None
        return (
            f"profile {self.name!r} was probed under torch {self.torch} and this is {torch_version}: kernels may sum otherwise "
            "(precisionlab probe measures this one)"
        )


def _release(version: str) -> str:
    """``2.13.0+cpu`` -> ``2.13``: kernels change between releases, not between patches or builds."""
    return ".".join(version.split("+")[0].split(".")[:2])


_BITS = {fmt.name: fmt.precision for fmt in FORMATS}


def significand_bits(accumulation: str) -> int:
    """24 for ``fp32``, 14 for ``14-bit``. Raises ``SettingsError`` for other words."""
    if accumulation in _BITS:
        return _BITS[accumulation]
    number, _, unit = accumulation.partition("-")
    if unit == "bit" and number.isdigit() and int(number) > 0:
        return int(number)
    raise SettingsError(f"{accumulation!r} is no accumulation format", hint=f"one of {', '.join(_BITS)}, or '14-bit'")
