"""PL107: a constant that its format changes into another one."""

from precisionlab.checks.base import Check, Fault, check
from precisionlab.checks.facts import anywhere, detail_is, event_is, mentions, op_stem
from precisionlab.checks.range_repairs import bce_repair, guard_repair
from precisionlab.checks.wording import code_line, fmt, number, passing, place, sentence
from precisionlab.records import EventKind, Kind


@check
class VanishingConstant(Check):
    """A guard, an eps or a factor is rounded to 0 or 1 (or to another value) by the format it is stored in.

    What it means
        fp16 stores everything up to 2^-25 = 2.98e-8 as 0, so an eps of 1e-8 or 1e-12 does not exist. Close to 1 the spacing is the
        limit: bf16 has nothing between 0.99609375 and 1, fp16 nothing between 0.99951172 and 1, so 0.999 in bf16 is exactly 1.

    Why it hurts
        A guard of 0 guards nothing: x / (0 + eps) is inf or NaN. A decay of 1 never forgets and 1 - decay is 0, so a bias correction
        divides by zero. A learning rate of 0 trains nothing and cannot be multiplied back.

    How it is measured
        Python numbers and wide tensors are compared with what a narrow tensor stores of them. No threshold: a value that becomes 0 or 1
        but is neither acts differently by itself; whether it mattered is decided at the sink. Source: round to nearest, ties to
        even: up to 2^-25 goes to 0 in fp16, 1 - beta up to 2^-9 to a beta of 1 in bf16.

    Smallest example
        import torch
        eps = torch.tensor(1e-8, dtype=torch.float16)
        decay = torch.tensor(0.999, dtype=torch.bfloat16)
        zero = torch.zeros(1, dtype=torch.float16)
        assert eps == 0 and (zero / (zero + eps)).isnan()
        assert decay == 1 and 1 - decay == 0

    Fix
        Choose the guard for the format: 1e-4 to 1e-5 in fp16, any usual eps in bf16 or fp32. Keep decays, learning rates and schedules
        as Python floats, and compute 1 - beta in Python. Or do the guarded division in fp32.

    When to ignore
        When what the constant guards against cannot happen (a sum of squares that is never 0).

    Known limits
        A literal inside an op (`x + 1e-8`) is exact until the result is rounded; that it had no effect shows at the addition. Constants
        inside fused kernels are not visible.
    """

    code = "PL107"
    title = "Constant that its format changes"
    kind = Kind.RANGE_CAST
    order = 60

    @classmethod
    def claims(cls, fault: Fault) -> bool:
        return event_is(fault, EventKind.CONSTANT) or (event_is(fault, EventKind.FLUSH) and detail_is(fault, "constant"))

    @classmethod
    def message(cls, fault: Fault) -> str:
        value, stored = anywhere(fault, "value"), anywhere(fault, "stored")
        if value is None and event_is(fault, EventKind.FLUSH):
            value = anywhere(fault, "true_max_abs")
        vanishes = event_is(fault, EventKind.FLUSH) or detail_is(fault, "rounds to 0")
        if vanishes:
            became = "0"
        elif detail_is(fault, "rounds to 1"):
            became = "exactly 1"
        else:
            became = number(stored) if stored is not None and stored != value else "another number"
        subject = f"The constant {number(value)}" if value is not None else "A constant"
        return sentence(f"{subject} at {place(fault)} is {became} in {fmt(fault)}{passing(fault)}")

    @classmethod
    def advice(cls, fault: Fault) -> str:
        if op_stem(fault).startswith("binary_cross_entropy") and "logits" not in op_stem(fault):
            return bce_repair()
        if event_is(fault, EventKind.FLUSH) or detail_is(fault, "rounds to 0"):
            if mentions(fault, "lr", "rate", "sched", "warm", "decay"):
                return (
                    f"Compute learning rates, schedules and decays as Python floats (or in fp32){code_line(fault)}: a scalar costs nothing"
                    f" and {fmt(fault)} stores this one as 0."
                )
            return guard_repair(fault)
        if detail_is(fault, "rounds to 1"):
            return (
                f"Keep this factor as a Python float or in fp32{code_line(fault)} and compute 1 - factor there: {fmt(fault)} has no number"
                " between it and 1, so a decay never forgets and its complement is 0."
            )
        return (
            f"Keep this constant as a Python float or in fp32{code_line(fault)}: as an operand of an op it is used exactly, as a tensor of"
            f" {fmt(fault)} it is rounded first."
        )
