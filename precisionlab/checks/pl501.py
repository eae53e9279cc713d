"""PL501: cancellation."""

from precisionlab.checks.base import Check, Fault, check
from precisionlab.checks.facts import event_is, measured
from precisionlab.checks.precision_repairs import cancellation_repair
from precisionlab.checks.wording import fmt, joined, number, passing, place, sentence, when_known
from precisionlab.records import EventKind, Kind


@check
class Cancellation(Check):
    """An op turned small rounding errors of its operands into a large error of its result.

    What it means
        Subtracting nearly equal numbers is exact, but the leading digits go and the rounding errors that were below them remain. log
        near 1, division by a small difference, a root near 0 and an angle of many turns do the same. The op itself rounds correctly;
        the error came in with its operands.

    Why it hurts
        The result has fewer correct digits than its format shows, down to none: a variance can come out negative, a distance between
        neighbours 0. Every later op inherits it.

    How it is measured
        Gain: normwise drift of the result from its fp64 twin over the drift of the operands. `gain` (8.0) and `gain_drift_u` (8.0 u)
        must both be exceeded; healthy forward ops stay below 7.1. The verdict needs a material difference at an output:
        `output_drift` (0.02) and `output_drift_u` (8.0). Source: calibrated on known faults and healthy programs.

    Smallest example
        import torch
        x = torch.tensor([29.0, 30.0, 31.0], dtype=torch.float16) + 0.1
        naive = x.pow(2).mean() - x.mean().pow(2)        # two numbers near 900, spacing 0.5
        stable = (x - x.mean()).pow(2).mean()            # 0.667
        assert abs(stable - 0.667) < 0.01 and abs(naive - 0.667) > 0.1

    Fix
        Subtract before rounding: keep both operands in fp32 up to the difference (positions, coordinates, partial sums), or use a form
        without the difference (sigmoid(-x), expm1, log1p, logsumexp, the mean of squared deviations). Making only the difference fp32
        does not help: the digits are already gone.

    When to ignore
        When the small result is added to something large right away. Then it does not reach an output and is not reported.

    Known limits
        Gain is normwise: single bad elements in a good tensor are not seen. Where the true result is exactly 0 (a difference of equal
        models) any rounding is an infinite gain; such results convict only when they exceed the noise of their operands.
    """

    code = "PL501"
    title = "Cancellation"
    kind = Kind.CANCELLATION
    order = 100

    @classmethod
    def claims(cls, fault: Fault) -> bool:
        return event_is(fault, EventKind.GAIN)

    @classmethod
    def message(cls, fault: Fault) -> str:
        factor, drift_in, drift_out = measured(fault, "gain"), measured(fault, "drift_u_in"), measured(fault, "drift_u_out")
        times = f" {number(factor)} times" if factor is not None else ""
        text = f"{place(fault)} amplifies the error of its operands{times}{passing(fault)}"
        numbers = joined(
            f"from {number(drift_in)} u to {number(drift_out)} u" if drift_in is not None and drift_out is not None else "",
            when_known(fault, "drift_u_out", "{} u off") if drift_in is None else "",
            f"u of {fmt(fault)}" if drift_out is not None and fmt(fault, "") else "",
        )
        return sentence(f"{text} ({numbers})" if numbers else text)

    @classmethod
    def advice(cls, fault: Fault) -> str:
        return cancellation_repair(fault)
