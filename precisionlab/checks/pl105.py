"""PL105: underflow that matters."""

from precisionlab.checks.base import Check, Fault, check
from precisionlab.checks.facts import detail_is, event_is
from precisionlab.checks.range_repairs import underflow_repair
from precisionlab.checks.wording import counted, fmt, joined, passing, place, sentence, share_when_known, subnormal_message, when_known
from precisionlab.records import EventKind, Kind


@check
class Underflow(Check):
    """Results became zero in storage, and they carried a material share of the tensor.

    What it means
        Values that are not zero in fp64 are stored as 0 because they lie below half the smallest positive number of the format: 3.0e-8
        in fp16, 4.6e-41 in bf16. Together they hold a noticeable share of the energy (sum of squares) of the result.

    Why it hurts
        A zero has no relative size: what multiplies it is gone, what divides by it is inf or NaN, and what was to grow from it
        (a warm-up, a moment, a product of probabilities) stays 0 for ever.

    How it is measured
        `flush_share` (0.1): share of the energy of a result that became zero, counted where the value is non-zero in fp64 on the same
        operands. Tails of a softmax and dead units stay far below it. Source: calibrated on known faults and healthy programs (0.003
        against 0.78).

    Smallest example
        import torch
        p = torch.full((4,), 1e-4, dtype=torch.float16)
        joint = p * p                                # 1e-8 is stored as 0
        log_joint = 2 * p.float().log()              # -18.4: the same number, kept
        assert (joint == 0).all() and log_joint.isfinite().all()

    Fix
        Keep probabilities and products in log space, squares and moments in fp32, or scale the inputs by a power of two and divide it
        out where the values are large again. bf16 has the range of fp32 and flushes nothing of this size.

    When to ignore
        When the zeroed values only ever are added to much larger ones. Such underflow reaches no sink and is not reported as broken.

    Known limits
        Hardware that flushes subnormals starts losing at 6.1e-5 in fp16, 2048 times earlier than gradual underflow: this machine's
        kernels decide what is measured.
    """

    code = "PL105"
    title = "Underflow that matters"
    kind = Kind.UNDERFLOW
    order = 100

    @classmethod
    def claims(cls, fault: Fault) -> bool:
        return event_is(fault, EventKind.FLUSH)

    @classmethod
    def message(cls, fault: Fault) -> str:
        if detail_is(fault, "subnormal"):
            return subnormal_message(fault)
        verb = "casts" if detail_is(fault, "cast") else "turns"
        object_ = counted(fault, "flushed")
        action = f"{verb} {object_} to {fmt(fault)} as zero" if verb == "casts" else f"{verb} {object_} into zero in {fmt(fault)}"
        numbers = joined(
            share_when_known(fault, "flushed_energy_share", "{} of the energy of the result"),
            when_known(fault, "true_max_abs", "largest exact magnitude {}"),
            when_known(fault, "smallest_subnormal", f"{fmt(fault)} starts at {{}}"),
        )
        text = f"{place(fault)} {action}{passing(fault)}"
        return sentence(f"{text} ({numbers})" if numbers else text)

    @classmethod
    def advice(cls, fault: Fault) -> str:
        return underflow_repair(fault)
