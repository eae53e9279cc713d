"""PL201: gradient flushed to zero."""

from precisionlab.checks.base import Check, Fault, check
from precisionlab.checks.facts import at_sink, detail_is, event_is, op_stem, phase_is, sink_is, unexplained
from precisionlab.checks.range_repairs import bce_repair
from precisionlab.checks.wording import (
    code_line,
    counted,
    fmt,
    joined,
    passing,
    place,
    sentence,
    share_when_known,
    subnormal_message,
    when_known,
)
from precisionlab.records import EventKind, Kind, Phase, SinkKind

_SINKS = (SinkKind.GRADIENT, SinkKind.UPDATE, SinkKind.STATE)


@check
class GradientFlushed(Check):
    """A gradient that is not zero in fp64 became zero on its way to the parameter.

    What it means
        Somewhere between the loss and the parameter a product fell below half the smallest number of the format (3.0e-8 in fp16) and was
        stored as 0. The finding names the op that lost it, not the parameter that misses it.

    Why it hurts
        The parameter, and everything in front of it, is not trained, or only by its largest gradients. Nothing else shows it: the loss
        is right, no value is NaN, and the scaler never looks at small numbers.

    How it is measured
        The op's result is compared with fp64: `flush_share` (0.1) of its energy must have become zero, and the parameter's gradient
        must have lost its projection on the twin's: `gradient_efficiency` (0.6), where the gradient holds at least `gradient_share`
        (1e-6) of the total. Zeros that fp64 has too are never counted. Source: Micikevicius et al. 2018, "Mixed Precision
        Training"; calibrated on known faults and healthy programs.

    Smallest example
        import torch
        x = torch.full((4,), 1e-4, dtype=torch.float16)
        w = torch.ones(4, dtype=torch.float16, requires_grad=True)
        ((w * x).sum() * 1e-4).backward()            # true gradient: 1e-8
        assert (w.grad == 0).all()
        w.grad = None
        ((w * x).sum().float() * (1e-4 * 2**16)).backward()
        assert (w.grad > 0).all()                    # 6.5e-4: divide by 2^16 in fp32

    Fix
        Multiply the loss by a power of two before backward and divide the gradients by it in fp32 (`torch.amp.GradScaler`), or use bf16,
        which has the range of fp32. Where one expression is at fault, feed the loss with logits instead of probabilities.

    When to ignore
        When the lost part is a negligible share of the parameter's gradient; then it is not reported.

    Known limits
        GradScaler follows the largest gradient only: a scale that just does not overflow may still flush small ones. The window between
        both ends can be empty; then only a wider format helps.
    """

    code = "PL201"
    title = "Gradient flushed to zero"
    kind = Kind.UNDERFLOW
    order = 70

    @classmethod
    def claims(cls, fault: Fault) -> bool:
        if unexplained(fault, SinkKind.GRADIENT):
            return bool(at_sink(fault, "flushed_share") or at_sink(fault, "flushed_energy_share"))
        return event_is(fault, EventKind.FLUSH) and phase_is(fault, Phase.BACKWARD, Phase.CLIP, Phase.SCALER) and sink_is(fault, *_SINKS)

    @classmethod
    def message(cls, fault: Fault) -> str:
        if detail_is(fault, "subnormal"):
            return subnormal_message(fault)
        numbers = joined(
            share_when_known(fault, "flushed_energy_share", "{} of the energy"),
            when_known(fault, "true_max_abs", "largest exact magnitude {}"),
            when_known(fault, "smallest_subnormal", f"{fmt(fault)} starts at {{}}"),
        )
        if fault.event is None:
            share = share_when_known(fault, "flushed_share", " in {} of its elements")
            text = f"The gradient of {place(fault)} is zero{share} where its fp64 twin is not"
        else:
            text = f"{place(fault)} turns {counted(fault, 'flushed', 'gradient values')} into zero in {fmt(fault)}{passing(fault)}"
        return sentence(f"{text} ({numbers})" if numbers else text)

    @classmethod
    def advice(cls, fault: Fault) -> str:
        stem = op_stem(fault)
        if stem in ("sigmoid_backward", "softmax_backward_data") or (stem.startswith("binary_cross_entropy") and "logits" not in stem):
            return bce_repair()
        if phase_is(fault, Phase.CLIP, Phase.SCALER):
            return (
                "Hold gradients in fp32 before they are unscaled or clipped: dividing an fp16 gradient by the scale brings back the"
                " underflow that the scale had avoided."
            )
        return (
            "Scale the loss by a power of two before backward (torch.amp.GradScaler, 2^10 to 2^16) and divide in fp32, or compute in"
            f" bf16; if only this expression{code_line(fault)} loses its gradient, run it in fp32. A mean over many elements in the loss"
            " makes every gradient smaller by their number: sum over tokens in fp32 and divide afterwards."
        )
