"""PL503: swamping outside the optimizer."""

from precisionlab.checks.base import Check, Fault, check
from precisionlab.checks.facts import detail_is, event_is, measured
from precisionlab.checks.precision_repairs import lost_repair
from precisionlab.checks.wording import counted, fmt, joined, number, passing, place, sentence, share_when_known, when_known
from precisionlab.records import EventKind, Kind


@check
class Swamping(Check):
    """An addition loses most of its smaller operand, because the larger one's spacing is wider than what is added.

    What it means
        Near 3000 bf16 steps by 16: adding 5 gives back 3000's neighbour or nothing. The same happens to a running sum that has outgrown
        its terms, to a low-rank update merged into a weight, and to wide arithmetic whose result is written back into a narrow state.

    Why it hurts
        The small operand is the information: what a block computed, what a token contributes, what the adapter learnt. It is missing
        from everything after, while the sum looks plausible.

    How it is measured
        eta: size of what the rounded sum missed of the addend, over the size of the addend: `lost_share` (0.5). Healthy residual
        additions lose up to 0.12. The verdict needs a material difference at a sink. Source: calibrated on known faults and healthy
        programs (0.12 against 0.67).

    Smallest example
        import torch
        stream = torch.full((4,), 3008.0, dtype=torch.bfloat16)
        block = torch.full((4,), 5.0, dtype=torch.bfloat16)
        for _ in range(24):
            stream = stream + block               # 3008 + 5 rounds back to 3008
        assert (stream == 3008).all()             # should be 3128

    Fix
        Keep the wide operand (the residual stream, the running sum, the recurrent state, the merged weight) in fp32 and cast only what
        each consumer reads.

    When to ignore
        When the addend is a guard (eps) beside numbers that need no guard.

    Known limits
        Losses that average out (addends of random sign, rounded either way) keep eta below the threshold. Additions inside fused kernels
        are judged by PL502.
    """

    code = "PL503"
    title = "Addition that loses its addend"
    kind = Kind.SWAMPING
    order = 100

    @classmethod
    def claims(cls, fault: Fault) -> bool:
        return event_is(fault, EventKind.LOST)

    @classmethod
    def message(cls, fault: Fault) -> str:
        lost = share_when_known(fault, "lost_share", " {} of")
        verb = "rounds a wide result back into" if detail_is(fault, "write-back") else "adds in"
        addend, base, spacing = measured(fault, "addend_rms"), measured(fault, "base_rms"), measured(fault, "spacing")
        numbers = joined(
            f"adding {number(addend)} to {number(base)}" if addend is not None and base is not None else "",
            f"where {fmt(fault)} steps by {number(spacing)}" if spacing is not None else "",
            counted(fault, "swamped", "elements") + " did not change" if measured(fault, "swamped") is not None else "",
            when_known(fault, "occurrences", "{} times"),
        )
        text = f"{place(fault)} {verb} {fmt(fault)}{passing(fault)} and loses{lost or ' most of'} what is added"
        return sentence(f"{text} ({numbers})" if numbers else text)

    @classmethod
    def advice(cls, fault: Fault) -> str:
        return lost_repair(fault)
