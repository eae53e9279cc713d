"""PL505: ties that decide."""

from precisionlab.checks.base import Check, Fault, check
from precisionlab.checks.facts import event_is, mentions, op_stem
from precisionlab.checks.wording import counted, fmt, joined, passing, place, sentence, share_when_known, when_known
from precisionlab.records import EventKind, Kind


@check
class DecidingTie(Check):
    """A selection picks among candidates that are equal only because they were rounded.

    What it means
        argmax, topk or a sort found the two best candidates equal and took the lower index. In fp64 they differ, and often the other one
        wins. Logits near 20 step by 0.125 in bf16, so close candidates tie all the time.

    Why it hurts
        Greedy decoding takes another token, and everything after it differs; a router sends tokens to another expert; results change
        with the order of the vocabulary. Casting the scores to fp32 afterwards does not separate them again.

    How it is measured
        `tie_share` (0.005): share of selections that hold a tie which only the low precision has and that the twin decides otherwise.
        Healthy programs stay at 0 at sinks. Source: calibrated on known faults and healthy programs (0 against 1.4 %).

    Smallest example
        import torch
        logits = torch.tensor([20.01, 20.06])
        assert logits.argmax() == 1
        rounded = logits.to(torch.bfloat16)          # [20., 20.]
        assert rounded.argmax() == 0
        assert rounded.float().argmax() == 0         # too late

    Fix
        Let the op that makes the scores return fp32: an fp32 output projection, or an fp32 result from narrow operands. Scores that are
        close need the digits of the accumulator, which were there before the result was stored.

    When to ignore
        For a metric over many samples, where ties change the count by less than its noise; sampling at a high temperature.

    Known limits
        Candidates that are exactly equal in fp64 too are a tie of the program and not counted.
    """

    code = "PL505"
    title = "Ties that decide"
    kind = Kind.DISCRETE_FLIP
    order = 100

    @classmethod
    def claims(cls, fault: Fault) -> bool:
        return event_is(fault, EventKind.TIE)

    @classmethod
    def message(cls, fault: Fault) -> str:
        numbers = joined(
            when_known(fault, "flips", "{} of them fp64 decides otherwise"),
            share_when_known(fault, "share", "{} of the decisions"),
        )
        text = (
            f"{place(fault)} selects by index in {counted(fault, 'ties', 'selections')}, because the best candidates are equal in"
            f" {fmt(fault)}{passing(fault)}"
        )
        return sentence(f"{text} ({numbers})" if numbers else text)

    @classmethod
    def advice(cls, fault: Fault) -> str:
        if mentions(fault, "route", "router", "gate", "expert", "moe"):
            return (
                "Compute the router's logits and softmax in fp32, weights included: routers are small, and which expert is chosen changes"
                " the whole layer."
            )
        if op_stem(fault) in ("sort", "argsort", "topk"):
            return (
                f"Compute the scores in fp32 up to the {op_stem(fault)}; where equal scores are possible in principle, break ties by a"
                " second key instead of by position."
            )
        return (
            "Let the projection that makes these scores return fp32 (fp32 weights for it, or an fp32 output of the same narrow operands):"
            " the digits that separate the candidates are in the accumulator and are lost when the result is stored, so a later .float()"
            " comes too late."
        )
