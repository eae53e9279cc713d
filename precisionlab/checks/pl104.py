"""PL104: near overflow."""

from precisionlab.checks.base import Check, Fault, check
from precisionlab.checks.facts import anywhere, detail_is, event_is
from precisionlab.checks.range_repairs import overflow_repair
from precisionlab.checks.wording import fmt, joined, number, passing, place, sentence, when_known
from precisionlab.records import EventKind, Kind


@check
class NearOverflow(Check):
    """A result came close to the largest number of its format.

    What it means
        Nothing overflowed, but the largest magnitude lies within a factor of 1.4 of the end of the format. Headroom is counted in
        binades: log2(largest finite number / largest magnitude seen). fp16 values above 46300 have less than half of one.

    Why it hurts
        A slightly different input, a longer sequence or one more layer makes it inf, and then the whole row or step is lost. Precision
        is not affected: the relative spacing near the end of a format is the same as everywhere else.

    How it is measured
        `headroom_log2` (0.5): binades left under which a result is called near overflow. Source: maxima of products and sums vary by
        about as much from batch to batch; only forward products, sums and convolutions are looked at, so deliberate
        extremes (masks, fills) are not counted. The finding is a warning and never "broken".

    Smallest example
        import math, torch
        h = torch.tensor([50000.0], dtype=torch.float16)
        headroom = math.log2(torch.finfo(torch.float16).max / h.item())
        assert 0.38 < headroom < 0.40         # binades
        assert (h + h).isinf()                # one addition away from inf

    Fix
        The same changes as for PL101, before it happens: keep the value in fp32 or bf16, or scale what writes to it by a power of two
        where a norm reads it.

    When to ignore
        When the value is bounded by construction (a clamp, a cap, a normalised quantity), or when the largest inputs you will ever have
        were audited.

    Known limits
        Headroom is that of the audited inputs. `precisionlab growth` shows how it shrinks with sequence length or depth.
    """

    code = "PL104"
    title = "Near overflow"
    kind = Kind.OVERFLOW
    order = 10

    @classmethod
    def claims(cls, fault: Fault) -> bool:
        return event_is(fault, EventKind.OVERFLOW) and detail_is(fault, "headroom")

    @classmethod
    def message(cls, fault: Fault) -> str:
        largest = anywhere(fault, "max_abs")
        largest = anywhere(fault, "true_max_abs") if largest is None else largest
        numbers = joined(
            f"largest magnitude {number(largest)}" if largest is not None else "",
            when_known(fault, "format_max", f"{fmt(fault)} ends at {{}}"),
            when_known(fault, "headroom_log2", "{} binades left"),
        )
        head = f"{place(fault)} comes close to the end of {fmt(fault)}{passing(fault)}"
        return sentence(f"{head} ({numbers})" if numbers else head)

    @classmethod
    def advice(cls, fault: Fault) -> str:
        return f"Nothing is lost yet. {overflow_repair(fault)}"
