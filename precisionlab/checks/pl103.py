"""PL103: a constant or a cast that becomes infinite."""

from precisionlab.checks.base import Check, Fault, check
from precisionlab.checks.facts import anywhere, detail_is, event_is, phase_is
from precisionlab.checks.range_repairs import constant_overflow_repair
from precisionlab.checks.wording import counted, fmt, joined, number, passing, place, sentence, when_known
from precisionlab.records import EventKind, Kind, Phase


@check
class ConstantOverflow(Check):
    """A literal, a fill value or a cast tensor does not fit the format and becomes infinite.

    What it means
        No arithmetic is at fault: a number that exists in Python or in a wider tensor has no counterpart in the target format. In fp16
        that is everything from 65520 on: -1e9 as a mask, a loss scale of 65536, a pixel count of 67600.

    Why it hurts
        Two such constants meet as inf / inf or inf - inf and give NaN; a mask of -inf instead of -1e9 makes a fully masked row NaN
        after softmax; an infinite scale makes every gradient non-finite.

    How it is measured
        Casts and factories are compared with the value they were given. No threshold: one finite value that becomes infinite is an
        event. Source: origin rule for non-finite values; Python numbers are seen before torch rounds them.

    Smallest example
        import torch
        count = torch.tensor(260.0 * 260.0)       # 67600 in fp32
        n = count.to(torch.float16)               # inf
        correction = n / (n - 1)                  # inf / inf
        assert n.isinf() and correction.isnan()

    Fix
        Keep counts, factors and scales as Python numbers or in fp32, and combine them before they meet a half tensor. Write mask values
        as `torch.finfo(x.dtype).min`, or better as a boolean mask with `masked_fill`.

    When to ignore
        When the value is meant as infinity (an additive mask of which every row keeps a finite entry). Such masks reach no sink and are
        not reported as broken.

    Known limits
        A scalar inside an op (`x * 1e9`) stays exact until the op rounds its result: an overflow there is PL101.
    """

    code = "PL103"
    title = "Constant or cast that becomes infinite"
    kind = Kind.RANGE_CAST
    order = 30

    @classmethod
    def claims(cls, fault: Fault) -> bool:
        if event_is(fault, EventKind.CONSTANT):
            return detail_is(fault, "rounds to infinity")
        if not event_is(fault, EventKind.OVERFLOW):
            return False
        return detail_is(fault, "constant") or (detail_is(fault, "cast") and not phase_is(fault, Phase.BACKWARD))

    @classmethod
    def message(cls, fault: Fault) -> str:
        what = "casts" if detail_is(fault, "cast") else "stores a constant in"
        numbers = joined(
            when_known(fault, "true_max_abs", "largest value {}"),
            when_known(fault, "format_max", f"{fmt(fault)} ends at {{}}"),
        )
        value = anywhere(fault, "value")
        if value is not None:
            text = f"{place(fault)} stores the constant {number(value)} in {fmt(fault)}{passing(fault)}, where it becomes infinite"
        elif what == "casts":
            text = f"{place(fault)} casts to {fmt(fault)}{passing(fault)}: {counted(fault, 'nonfinite')} became infinite"
        else:
            text = f"{place(fault)} {what} {fmt(fault)}{passing(fault)}: {counted(fault, 'nonfinite')} became infinite"
        return sentence(f"{text} ({numbers})" if numbers else text)

    @classmethod
    def advice(cls, fault: Fault) -> str:
        return constant_overflow_repair(fault)
