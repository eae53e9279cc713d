"""PL203: gradient accumulation that loses addends."""

from precisionlab.checks.base import Check, Fault, check
from precisionlab.checks.facts import detail_is, event_is, measured, mentions, phase_is
from precisionlab.checks.families import family
from precisionlab.checks.wording import counted, fmt, joined, number, passing, place, sentence, share_when_known, when_known
from precisionlab.records import EventKind, Kind, Phase


@check
class GradientAccumulationLoss(Check):
    """Gradients are added into a buffer whose spacing is larger than what is added.

    What it means
        `.grad` has the dtype of the parameter, and each backward adds into it. When the buffer is more than 2^p times an addend (256 in
        bf16, 2048 in fp16), the addend is rounded away and the buffer stops growing.

    Why it hurts
        With many micro-batches, ranks or tied uses the later ones do not count: the gradient is too short, and biased towards what was
        added first. bf16 stops at 256 equal addends; from there on a larger effective batch changes nothing.

    How it is measured
        `lost_share` (0.5): share of the addend's magnitude that the rounded sum lost, and then the gradient's own measure,
        `gradient_efficiency` (0.6): its projection on the twin's. Source: stagnation of a sum in p bits;
        calibrated on known faults and healthy programs (0.63 against 0.49).

    Smallest example
        import torch
        w = torch.ones(1, dtype=torch.bfloat16, requires_grad=True)
        for _ in range(1000):
            w.sum().backward()            # each adds 1
        assert w.grad.item() == 256.0     # 256 + 1 rounds back to 256

    Fix
        Accumulate in fp32: fp32 parameters under autocast have fp32 gradients; with narrow parameters add `.grad` to an fp32 buffer
        after each backward and clear it. Reduce across ranks in fp32 (`reduce_dtype=torch.float32`).

    When to ignore
        When the lost micro-batches are really negligible beside the first (a tiny auxiliary loss).

    Known limits
        Sums inside one op (an embedding's backward, a bias gradient) are PL502. Losing addends of changing sign averages out and is not
        reported.
    """

    code = "PL203"
    title = "Gradient accumulation that loses addends"
    kind = Kind.SWAMPING
    order = 20

    @classmethod
    def claims(cls, fault: Fault) -> bool:
        return event_is(fault, EventKind.LOST) and phase_is(fault, Phase.BACKWARD)

    @classmethod
    def message(cls, fault: Fault) -> str:
        what = "adds gradients into a buffer" if detail_is(fault, "accumulate") else "adds gradients"
        lost = share_when_known(fault, "lost_share", " and loses {} of what is added")
        addend, spacing = measured(fault, "addend_rms"), measured(fault, "spacing")
        numbers = joined(
            f"addends of {number(addend)} beside a spacing of {number(spacing)}" if addend is not None and spacing is not None else "",
            counted(fault, "swamped", "elements") + " did not change" if measured(fault, "swamped") is not None else "",
            when_known(fault, "occurrences", "{} times"),
        )
        text = f"{place(fault)} {what} in {fmt(fault)}{passing(fault)}{lost or ' and loses most of what is added'}"
        return sentence(f"{text} ({numbers})" if numbers else text)

    @classmethod
    def advice(cls, fault: Fault) -> str:
        if family(fault) == "collective" or mentions(fault, "all_reduce", "allreduce", "reduce_scatter", "world"):
            return "Reduce gradients in fp32 (reduce_dtype=torch.float32): a partial sum in the wire format stops taking in further ranks."
        return (
            "Accumulate in fp32: add each .grad to an fp32 buffer (main_grad) after backward and set .grad to None, or keep the parameter"
            f" in fp32 and let autocast produce the {fmt(fault, 'narrow')} copy; dividing the loss does not help, since all addends shrink"
            " alike."
        )
