"""PL511: gradients that get worse with the number of parts they are summed from."""

from precisionlab.checks.base import Check, Fault, check
from precisionlab.checks.facts import anywhere, detail_is, event_is
from precisionlab.checks.wording import fmt, number, place, sentence
from precisionlab.records import EventKind, Kind


@check
class GradientsWorsenWithParts(Check):
    """The error of the gradient grows with the number of micro-batches, or of ranks, that it is the sum of.

    What it means
        Each part is added to a gradient that is stored in half precision, and each addition rounds. Gradients accumulated in fp32 have
        the same error whatever their number of parts.

    Why it hurts
        More accumulation is meant to lower the noise of a step and raises its rounding error instead; with a mean gradient larger than
        its noise the sum stands still after a few hundred parts, and the rest of the batch is ignored.

    How it is measured
        Gradient errors at several numbers of parts; the finding needs a growing law whose exponent has a 95 % interval above 0. No
        threshold. Source: square-root growth of independent roundings (Higham & Mary 2019); stagnation (Higham 2002, section 4.2).

    Smallest example
        import torch
        torch.manual_seed(0)
        parts = 3 + torch.randn(1024, 64)
        total = torch.zeros(64, dtype=torch.bfloat16)
        for part in parts:
            total += part.to(torch.bfloat16)
        assert (total.double() / parts.double().sum(0)).mean() < 0.75

    Fix
        Accumulate in fp32: fp32 parameters under autocast, an fp32 buffer for `.grad`, or fp32 gradients in the all-reduce; or sum fewer,
        larger micro-batches.

    When to ignore
        When the number of parts in use is small and the drift there is a few u.

    Known limits
        Only numbers of parts that were run are judged; reductions inside a communication library are seen as one op.
    """

    code = "PL511"
    title = "Gradients get worse with the number of their parts"
    kind = Kind.ACCUMULATION
    order = 10

    @classmethod
    def claims(cls, fault: Fault) -> bool:
        return event_is(fault, EventKind.GROWTH) and detail_is(fault, "partial sums")

    @classmethod
    def message(cls, fault: Fault) -> str:
        exponent, last = anywhere(fault, "exponent"), anywhere(fault, "last_u")
        axis = fault.text("axis", "the number of their parts")
        text = f"the {fault.text('quantity', 'error')} of {place(fault)} grows with {axis}"
        if exponent is not None and last is not None:
            text += f"^{number(exponent)}, to {number(last)} u"
        return sentence(f"{text}: the parts are added up in {fmt(fault)}")

    @classmethod
    def advice(cls, fault: Fault) -> str:
        return "Accumulate gradients in fp32 (fp32 parameters under autocast, or an fp32 buffer), and reduce them over ranks in fp32."
