"""PL101: overflow of a result."""

from precisionlab.checks.base import Check, Fault, check
from precisionlab.checks.facts import event_is
from precisionlab.checks.range_repairs import overflow_repair
from precisionlab.checks.wording import counted, fmt, joined, passing, place, sentence, when_known
from precisionlab.records import EventKind, Kind


@check
class ResultOverflow(Check):
    """A result is too large for the format it is stored in and becomes infinite.

    What it means
        The operands are finite, the result is infinite (or NaN, where two infinities met inside the op), and the same op in fp64 on the
        same operands gives a finite number. fp16 ends at 65504; values from 65520 on become inf. bf16 and fp32 end at 3.4e38.

    Why it hurts
        One infinity is enough: the next norm, softmax or mask turns it into NaN (inf / inf, inf - inf, inf * 0), and NaN reaches every
        later value. Where a bounded function hides it in the forward pass (tanh(inf) = 1), the backward pass multiplies 0 by inf.

    How it is measured
        Every result is compared with the op in fp64 on the operands as they were. No threshold: one new non-finite value is an event.
        The verdict comes from the sink it reaches; infinities that a mask or a skipped step absorbs are counted and not reported.
        Source: origin rule for non-finite values, as in GPU-FPX and NSan.

    Smallest example
        import torch
        x = torch.tensor([11.0, 12.0], dtype=torch.float16)
        y = x.exp()                # [59872, inf]: exp leaves fp16 above 11.09
        z = (x - x.max()).exp()    # [0.3679, 1.0]: the same ratios, in range
        assert y.isinf().any() and z.isfinite().all()

    Fix
        Rewrite the expression so that the large number never exists (subtract the maximum, scale q before the product, divide before
        summing), or keep this op and the one that reads it in fp32. bf16 has the range of fp32 and trades three bits for it. Where a
        scale-invariant norm reads the result, dividing the weights that write to it by a power of two changes nothing but the range.

    When to ignore
        When the infinity is wanted and masked afterwards on every input, not only on the audited ones. `-inf` written into a mask is
        never reported: fp64 has it too.

    Known limits
        Only the audited inputs are seen; PL104 reports results that came close. A kernel that saturates instead of overflowing shows
        up as precision loss (PL504).
    """

    code = "PL101"
    title = "Overflow of a result"
    kind = Kind.OVERFLOW
    order = 100

    @classmethod
    def claims(cls, fault: Fault) -> bool:
        return event_is(fault, EventKind.OVERFLOW)

    @classmethod
    def message(cls, fault: Fault) -> str:
        numbers = joined(
            when_known(fault, "true_max_abs", "the exact result reaches {}"),
            when_known(fault, "format_max", f"{fmt(fault)} ends at {{}}"),
        )
        head = f"{place(fault)} overflows {fmt(fault)}{passing(fault)}: {counted(fault, 'nonfinite', 'results')} became non-finite"
        return sentence(f"{head} ({numbers})" if numbers else head)

    @classmethod
    def advice(cls, fault: Fault) -> str:
        return overflow_repair(fault)
