"""From what a profile says of a kernel to a plan that can be emulated."""

from __future__ import annotations

from precisionlab.backends.profile import Entry, Order, Rounding, significand_bits
from precisionlab.formats import FP32, AccumulationOrder, AccumulationPlan, Format, Overflow, Specials, SumRounding, get_format
from precisionlab.formats.accumulate_plan import E8M13
from precisionlab.formats.catalogue import FORMATS

SPLITS = 8
"""Slices of a split-k product: the library's choice, and seen to be a few to some tens; eight stand for it."""
UNKNOWN_BLOCK = 128
"""Block length where a profile says that partial sums are combined and not how long they are."""


def accumulation_format(name: str) -> Format:
    """``fp32`` as a format; ``14-bit`` as one with the exponents of fp32. Raises: SettingsError for other words."""
    if name in {fmt.name for fmt in FORMATS}:
        return get_format(name)
    bits = significand_bits(name)
    if bits == E8M13.precision:
        return E8M13
    return Format(f"e8m{bits - 1}", bits, 8, 127, Specials.IEEE, Overflow.INFINITY)


def emulable(entry: Entry) -> AccumulationPlan:
    """The accumulation of ``entry``, as near as the profile describes it. An order that is not known is taken for sequential.

    A matrix unit whose addition takes k > 2 terms adds k - 1 products to the running sum; alignment keeps the digits of its accumulator and
    the extra bits that the profile states, without them what its accumulator has. Rounding away from zero at ties, and rounding that
    differs within a sum, are taken for rounding to nearest even.
    """
    fmt = accumulation_format(entry.accumulation)
    toward_zero = entry.rounding is Rounding.TOWARD_ZERO
    rounding = SumRounding.TOWARD_ZERO if toward_zero else SumRounding.NEAREST_EVEN
    terms = entry.evidence.get("terms_of_an_addition")
    if isinstance(terms, int) and not isinstance(terms, bool) and terms > 2:
        extra = entry.evidence.get("extra_alignment_bits", 0)
        bits = fmt.precision + (extra if isinstance(extra, int) else 0)
        return AccumulationPlan(AccumulationOrder.BLOCK_FMA, fmt, block=terms - 1, bits=bits, rounding=rounding)
    if "split-k" in entry.case:
        return AccumulationPlan(AccumulationOrder.SPLIT_K, FP32, splits=SPLITS, stored=fmt, outer=fmt)
    if entry.order is Order.PAIRWISE:
        return AccumulationPlan(AccumulationOrder.PAIRWISE, fmt, rounding=rounding)
    if entry.order is Order.BLOCKED:
        return AccumulationPlan(AccumulationOrder.BLOCKED, fmt, block=entry.block or UNKNOWN_BLOCK, rounding=rounding)
    return AccumulationPlan(AccumulationOrder.SEQUENTIAL, fmt, rounding=rounding)
