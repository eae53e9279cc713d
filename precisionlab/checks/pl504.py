"""PL504: precision loss."""

from precisionlab.checks.base import Check, Fault, check
from precisionlab.checks.facts import anywhere, event_is
from precisionlab.checks.wording import code_line, counted, fmt, joined, number, passing, place, sentence, when_known
from precisionlab.records import EventKind, Kind


@check
class PrecisionLoss(Check):
    """A value has fewer correct digits than its use needs, through storing it narrowly and nothing else.

    What it means
        No range was left, nothing cancelled and no sum was too narrow: the format simply holds 3 (fp16) or 2 (bf16) decimal digits, and
        a cast or a store threw away digits that the program goes on to use.

    Why it hurts
        Quantities whose small differences matter (timestamps, prices, coordinates, probabilities near 1, learning rates) come out wrong
        by their last kept digit: 1000.4 is 1000 in bf16, and everything between 1000 and 1004 is one of two numbers.

    How it is measured
        Material drift at a sink: `output_drift` (0.02) with `output_drift_u` (8.0), `exit_drift` (0.05) or `item_drift` (0.1), traced
        to a cast or to an event of no other kind. Source: calibrated on known faults and healthy programs.

    Smallest example
        import torch
        seconds = torch.tensor([1000.4, 1001.9])
        stored = seconds.to(torch.bfloat16)           # [1000., 1000.]
        assert (stored[1] - stored[0]).item() == 0.0  # should be 1.5

    Fix
        Keep this value in fp32 and cast it where it enters a matrix product. If it has to be narrow, store the difference from a
        reference, or fp16 instead of bf16 where the range allows (8 times finer).

    When to ignore
        When the consumer is tolerant by construction (a noise level, a data augmentation).

    Known limits
        This is what remains when no sharper check applies. Look at the op's drift in the table: the cause is where it jumps.
    """

    code = "PL504"
    title = "Precision loss"
    kind = Kind.PRECISION_LOSS
    order = 1000

    @classmethod
    def claims(cls, fault: Fault) -> bool:
        return fault.event is not None

    @classmethod
    def message(cls, fault: Fault) -> str:
        before, after = when_known(fault, "example_from", "{}"), when_known(fault, "example_to", "{}")
        drift, drift_u = anywhere(fault, "drift"), anywhere(fault, "drift_u")
        numbers = joined(
            f"for example {before} becomes {after}" if before and after else "",
            f"relative error {number(drift)}" if drift is not None else "",
            f"{number(drift_u)} u" if drift_u is not None else "",
        )
        if event_is(fault, EventKind.CAST):
            text = f"{place(fault)} rounds {counted(fault, 'inexact')} to {fmt(fault)}{passing(fault)}"
        else:
            text = f"{place(fault)} stores digits in {fmt(fault)} that do not fit{passing(fault)}"
        return sentence(f"{text} ({numbers})" if numbers else text)

    @classmethod
    def advice(cls, fault: Fault) -> str:
        return (
            f"Keep this value in fp32{code_line(fault)} and cast it only where it enters a matrix product or convolution; if it must be"
            f" stored in {fmt(fault, 'a narrow format')}, store its difference from a reference value, which needs fewer digits."
        )
