"""PL506: discrete flips."""

from precisionlab.checks.base import Check, Fault, check
from precisionlab.checks.facts import event_is, mentions, unexplained
from precisionlab.checks.wording import code_line, counted, fmt, joined, passing, place, sentence, share_when_known
from precisionlab.records import EventKind, Kind, SinkKind


@check
class DiscreteFlip(Check):
    """A comparison, an index or a selection comes out differently from its fp64 twin.

    What it means
        A rounded number fell on the other side of a threshold, or a different candidate won. The error may be tiny; its consequence is
        not, because decisions are not continuous.

    Why it hurts
        Another branch, another row, another expert, another token: the result is not a little off but a different result. In a loop
        the runs part for good.

    How it is measured
        `decision_share` (0.05): share of decisions that differ from the twin's where they are used (a Python condition, an index, an
        output). Quiet programs stay at 0.4 %. Source: calibrated on known faults and healthy programs (0.4 % against 62 %).

    Smallest example
        import torch
        scores = torch.tensor([0.8999, 0.9001, 0.9002])
        exact = scores > 0.9                             # [False, True, True]
        rounded = scores.to(torch.bfloat16) > 0.9        # 0.8984 three times
        assert exact.sum() == 2 and rounded.sum() == 0

    Fix
        Compute what is compared in fp32, from where it is a sum or a difference; put thresholds between values that can occur, with a
        margin above the rounding error; avoid comparing floats for equality.

    When to ignore
        When both outcomes are equally good (near ties in a sampler) or the decision only steers a log line.

    Known limits
        The program follows its own decisions and the twin follows it, so what the other branch would have given is not computed.
    """

    code = "PL506"
    title = "Decision that fp64 takes differently"
    kind = Kind.DISCRETE_FLIP
    order = 100

    @classmethod
    def claims(cls, fault: Fault) -> bool:
        return event_is(fault, EventKind.FLIP) or unexplained(fault, SinkKind.DECISION)

    @classmethod
    def message(cls, fault: Fault) -> str:
        numbers = joined(share_when_known(fault, "share", "{} of the decisions"))
        text = f"{place(fault)} takes {counted(fault, 'flips', 'decisions')} differently from fp64{passing(fault)}"
        text += f" on values in {fmt(fault)}" if fmt(fault, "") else ""
        return sentence(f"{text} ({numbers})" if numbers else text)

    @classmethod
    def advice(cls, fault: Fault) -> str:
        if mentions(fault, "route", "router", "gate", "expert", "moe"):
            return "Compute the router's logits and softmax in fp32: routers are small, and which expert is chosen changes the whole layer."
        if mentions(fault, "isfinite", "isnan", "isinf"):
            return (
                f"The check{code_line(fault)} sees a non-finite value that fp64 does not have: repair the op that overflows; the check"
                " itself is right."
            )
        return (
            f"Compute the compared values{code_line(fault)} in fp32 from their last sum or difference on, and keep a margin between the"
            f" threshold and the values that matter that is wider than the spacing of {fmt(fault, 'the narrow format')}."
        )
