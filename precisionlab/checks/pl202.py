"""PL202: gradient overflow."""

from precisionlab.checks.base import Check, Fault, check
from precisionlab.checks.facts import detail_is, event_is, phase_is, sink_is
from precisionlab.checks.families import family
from precisionlab.checks.range_repairs import gradient_overflow_repair
from precisionlab.checks.wording import counted, fmt, joined, passing, place, sentence, when_known
from precisionlab.records import EventKind, Kind, Phase, SinkKind


@check
class GradientOverflow(Check):
    """A gradient leaves the range of its format during the backward pass.

    What it means
        The op's incoming gradient is finite, its result is not, and in fp64 it is: the loss scale, a sum over micro-batches or ranks, or
        a large local derivative carried it past 65504 (fp16).

    Why it hurts
        With a GradScaler the step is skipped and the scale halved; where the overflow does not depend on the scale, every step is
        skipped. Without one the weights become NaN in a single step.

    How it is measured
        As PL101, in the backward pass (and in reductions of gradients across ranks). No threshold. Overflows that a scaler skips while
        it calibrates reach no weight and are only counted. Source: origin rule for non-finite values.

    Smallest example
        import torch
        w = torch.ones(2, dtype=torch.float16, requires_grad=True)
        (w.float().sum() * 65536).backward()      # 65536 is cast to fp16: inf
        assert w.grad.isinf().all()
        w.grad = None
        (w.float().sum() * 1024).backward()
        assert (w.grad == 1024).all()

    Fix
        Divide the loss by the number of micro-batches before backward and gradients by the world size before they are reduced, or
        reduce in fp32. Where an activation's derivative overflows, evaluate it in fp32 or use the fused activation. Otherwise let the
        scaler lower its scale, or use bf16.

    When to ignore
        In the first steps of a GradScaler, which starts at 65536 and finds its scale by overflowing. Those are not reported.

    Known limits
        The overflow may start in the forward pass and only show here (an infinity that a bounded function had hidden): the finding is
        then PL101 at the forward op.
    """

    code = "PL202"
    title = "Gradient overflow"
    kind = Kind.OVERFLOW
    order = 40

    @classmethod
    def claims(cls, fault: Fault) -> bool:
        if not event_is(fault, EventKind.OVERFLOW) or detail_is(fault, "integer", "constant"):
            return False
        if phase_is(fault, Phase.BACKWARD):
            return True
        return family(fault) == "collective" and sink_is(fault, SinkKind.GRADIENT, SinkKind.UPDATE, SinkKind.STATE)

    @classmethod
    def message(cls, fault: Fault) -> str:
        numbers = joined(
            when_known(fault, "term_max_abs", "largest operand {}"),
            when_known(fault, "true_max_abs", "exact result {}"),
            when_known(fault, "format_max", f"{fmt(fault)} ends at {{}}"),
        )
        where = passing(fault) or " while gradients are reduced"
        text = f"{place(fault)} overflows {fmt(fault)}{where}: {counted(fault, 'nonfinite', 'gradient values')} became non-finite"
        return sentence(f"{text} ({numbers})" if numbers else text)

    @classmethod
    def advice(cls, fault: Fault) -> str:
        return gradient_overflow_repair(fault)
