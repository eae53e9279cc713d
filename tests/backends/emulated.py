"""Kernels whose accumulation is known: emulated, for the probe to find out."""

from __future__ import annotations

from precisionlab.backends.trees import FloatArray, Sums
from precisionlab.formats.accumulate import accumulate
from precisionlab.formats.accumulate_plan import AccumulationPlan
from precisionlab.formats.format import Format
from precisionlab.formats.rounding import round_to


def emulated(plan: AccumulationPlan, storage: Format) -> Sums:
    """Sums under ``plan``, stored in ``storage``."""

    def sums(terms: FloatArray) -> FloatArray:
        return round_to(accumulate(terms, plan), storage)

    return sums
