"""PL510: a limit that is reached before the size that is wanted."""

from precisionlab.checks.base import Check, Fault, check
from precisionlab.checks.facts import anywhere, event_is
from precisionlab.checks.wording import fmt, number, place, sentence
from precisionlab.records import EventKind, Kind


@check
class LimitWithinReach(Check):
    """The program holds at the sizes that were run and is forecast to fail before the size that is wanted.

    What it means
        A quantity that grows with size (largest value, drift, lost part of an addend) follows a law, and the law reaches a limit at a
        size below the one asked for with `--target`.

    Why it hurts
        Short tests pass, the long run overflows, stagnates or drifts. It is found after hours instead of before.

    How it is measured
        Audits at several sizes and seeds, a law chosen by AIC, and the crossing with its 95 % interval by inverse prediction. Limits:
        `output_drift` (0.02) with `output_drift_u` (8.0) for outputs, `gradient_efficiency` (0.6) for gradients, `flush_share` (0.1) for
        energy, `lost_share` (0.5) for addends, and the largest finite number for magnitudes. Broken where the whole interval lies below
        the target, risky where part of it does. Source: Draper & Smith 1998, section 3.2.

    Smallest example
        import torch
        def total(n):
            return torch.full((n,), 16.0, dtype=torch.float16).sum()   # grows like n
        assert total(1024).isfinite() and total(4000).isfinite()
        assert total(4096).isinf()                                       # 65536

    Fix
        The forecast names the place: divide before summing instead of after, keep that sum or state in fp32, or use bf16 where range is
        what runs out.

    When to ignore
        When the target is a bound that is never used.

    Known limits
        A forecast is an extrapolation: beyond ten times the largest size measured it should be confirmed (`--confirm`).
    """

    code = "PL510"
    title = "A limit is reached before the size that is wanted"
    kind = Kind.ERROR_GROWTH
    order = 20

    @classmethod
    def claims(cls, fault: Fault) -> bool:
        return event_is(fault, EventKind.GROWTH)

    @classmethod
    def message(cls, fault: Fault) -> str:
        size, low, high, target = (anywhere(fault, name) for name in ("size", "low", "high", "target"))
        axis = fault.text("axis", "the size")
        text = f"the {fault.text('quantity', 'error')} of {place(fault)} reaches the limit of {fmt(fault)}"
        if size is not None:
            between = f" [{number(low)}, {number(high)}]" if low is not None and high is not None else ""
            text += f" at {axis} {number(size)}{between}"
        return sentence(f"{text}, before the {number(target)} that is wanted" if target is not None else text)

    @classmethod
    def advice(cls, fault: Fault) -> str:
        quantity = fault.text("quantity")
        if quantity == "largest value":
            return "Scale before summing (divide the operands, not the result), compute this op in fp32, or use bf16 for its range."
        if quantity == "lost part of an addend":
            return "Keep this running sum in fp32, or add pairwise or in blocks: half addends vanish once the sum is 1/u times larger."
        return "Carry the quantity that accumulates (residual stream, recurrent state, running sum, gradient) in fp32 up to that size."
