"""The dtype plan of an op as formats: how plans compare, combine, and what they cost.

Plans form a partial order: one is at least as wide as another if each of its three formats holds every number of the other's. fp16 and
bf16 hold numbers that the other lacks, so plans that differ in them are not comparable, and have fp32 in common above them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from precisionlab.formats import BF16, FP16, FP32, FP64, TF32, Format, get_format
from precisionlab.records import Plan

STORED: tuple[Format, ...] = (FP64, FP32, BF16, FP16)
"""Formats that joins and meets are sought among, besides the operands: those in which training keeps tensors."""

_RATES: dict[Format, float] = {FP64: 1.0, FP32: 1.0, TF32: 8.0, BF16: 16.0, FP16: 16.0}
_FP8_RATE = 32.0


def holds(wide: Format, narrow: Format) -> bool:
    """Whether every finite number of ``narrow`` is a number of ``wide``: at least its digits, its largest and its smallest number."""
    return wide.precision >= narrow.precision and wide.max >= narrow.max and wide.min_subnormal <= narrow.min_subnormal


def join_formats(a: Format, b: Format) -> Format | None:
    """The narrowest format that holds both, if one of the operands or of ``STORED`` is the narrowest; fp32 for fp16 and bf16."""
    bounds = [fmt for fmt in (a, b, *STORED) if holds(fmt, a) and holds(fmt, b)]
    return next((fmt for fmt in bounds if all(holds(other, fmt) for other in bounds)), None)


def meet_formats(a: Format, b: Format) -> Format | None:
    """The widest format that both hold, if one of the operands or of ``STORED`` is the widest; None for fp16 and bf16."""
    bounds = [fmt for fmt in (a, b, *STORED) if holds(a, fmt) and holds(b, fmt)]
    return next((fmt for fmt in bounds if all(holds(fmt, other) for other in bounds)), None)


@dataclass(frozen=True)
class DtypePlan:
    """In which formats an op stores its result, does its arithmetic, and keeps its sums. ``a <= b``: b is at least as wide everywhere."""

    storage: Format
    compute: Format
    accumulation: Format

    @classmethod
    def of(cls, plan: Plan) -> DtypePlan:
        """The plan of a record. Raises: SettingsError for names that are no formats (integers)."""
        return cls(get_format(plan.storage), get_format(plan.compute), get_format(plan.accumulation))

    @classmethod
    def uniform(cls, fmt: Format) -> DtypePlan:
        """Everything in one format."""
        return cls(fmt, fmt, fmt)

    def record(self) -> Plan:
        """The plan as records hold it: names."""
        return Plan(self.storage.name, self.compute.name, self.accumulation.name)

    def __str__(self) -> str:
        return f"{self.storage}/{self.compute}/{self.accumulation}"

    def __le__(self, other: DtypePlan) -> bool:
        return all(holds(theirs, own) for own, theirs in zip(self._formats, other._formats, strict=True))

    def __lt__(self, other: DtypePlan) -> bool:
        return self <= other and self != other

    def __ge__(self, other: DtypePlan) -> bool:
        return other <= self

    def __gt__(self, other: DtypePlan) -> bool:
        return other < self

    def join(self, other: DtypePlan) -> DtypePlan | None:
        """The narrowest plan at least as wide as both; None where a column has no narrowest (``join_formats``)."""
        return self._combined(other, join_formats)

    def meet(self, other: DtypePlan) -> DtypePlan | None:
        """The widest plan that both are at least as wide as; None where a column has no widest (``meet_formats``)."""
        return self._combined(other, meet_formats)

    @property
    def bytes_per_element(self) -> int:
        """Of a stored result; TF32 lies in 32-bit words."""
        return 4 if self.storage == TF32 else -(-self.storage.bits // 8)

    @property
    def matrix_rate(self) -> float:
        """Peak rate of matrix products, 1 for fp32: operands enter the units in the narrower of storage and compute.

        A class, not a prediction: fp64 and fp32 1, tf32 8, halves 16, fp8 32, whatever sums are kept in.
        Source: NVIDIA A100 (2020) and H100 (2022) white papers, dense peak rates, to a power of two.
        """
        return max(_RATES.get(fmt, _FP8_RATE) for fmt in (self.storage, self.compute))

    @property
    def cost(self) -> tuple[int, float]:
        """What a search minimises, in this order: bytes per element, then time of a matrix product relative to fp32."""
        return self.bytes_per_element, 1.0 / self.matrix_rate

    @property
    def _formats(self) -> Sequence[Format]:
        return self.storage, self.compute, self.accumulation

    def _combined(self, other: DtypePlan, combine: Callable[[Format, Format], Format | None]) -> DtypePlan | None:
        columns = [combine(own, theirs) for own, theirs in zip(self._formats, other._formats, strict=True)]
        found = [fmt for fmt in columns if fmt is not None]
        return DtypePlan(*found) if len(found) == len(columns) else None
