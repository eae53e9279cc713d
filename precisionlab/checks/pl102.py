"""PL102: overflow inside an accumulator."""

from precisionlab.checks.base import Check, Fault, check
from precisionlab.checks.facts import detail_is, event_is
from precisionlab.checks.range_repairs import accumulator_repair
from precisionlab.checks.wording import counted, fmt, joined, passing, place, sentence, when_known
from precisionlab.records import EventKind, Kind


@check
class AccumulatorOverflow(Check):
    """A sum, dot product, norm or convolution overflows although each of its terms fits.

    What it means
        Every term is finite in the format, their sum is not. The longer the reduction, the smaller the terms may be: 1024 terms of 64
        exceed fp16, and so do 65536 terms of 1. The fault therefore appears with a longer sequence, a larger image or a larger vocabulary.

    Why it hurts
        The result becomes inf and the mean, the norm or the ratio computed from it inf, NaN or 0, often although that final number
        would fit easily: the norm of 1024 values of 300 is 9600, the sum of their squares 9.2e7.

    How it is measured
        As PL101, for ops that reduce: a non-finite result of finite terms, finite in fp64. No threshold. The evidence gives the length
        of the reduction and the largest term. Source: sqrt(65520) = 255.97: a norm
        beyond it has a sum of squares that leaves fp16.

    Smallest example
        import torch
        pixels = torch.full((1024,), 100.0, dtype=torch.float16)
        narrow = pixels.sum()                      # inf: 102400 does not fit fp16
        wide = pixels.sum(dtype=torch.float32)     # 102400
        assert narrow.isinf() and wide == 102400.0

    Fix
        Pass `dtype=torch.float32` to the reduction and keep its result wide until it has been divided or logged. Take norms with
        `torch.linalg.vector_norm(g, dtype=torch.float32)`. For products let the layer return fp32, or scale one operand first.

    When to ignore
        Hardly ever: the result depends on how many terms there are, so it gets worse with size.

    Known limits
        Torch's CPU kernels accumulate most half-precision reductions in fp32, so an overflow of a partial sum whose final value fits is
        seen only on hardware, or in code, that accumulates narrowly.
    """

    code = "PL102"
    title = "Overflow inside a sum, product or norm"
    kind = Kind.OVERFLOW
    order = 50

    @classmethod
    def claims(cls, fault: Fault) -> bool:
        return event_is(fault, EventKind.OVERFLOW) and detail_is(fault, "accumulator")

    @classmethod
    def message(cls, fault: Fault) -> str:
        numbers = joined(
            when_known(fault, "reduction_length", "{} terms each"),
            when_known(fault, "term_max_abs", "largest operand {}"),
            when_known(fault, "true_max_abs", "exact result {}"),
            when_known(fault, "format_max", f"{fmt(fault)} ends at {{}}"),
        )
        head = (
            f"{place(fault)} sums past the end of {fmt(fault)}{passing(fault)}: {counted(fault, 'nonfinite', 'results')} became non-finite"
        )
        return sentence(f"{head} ({numbers})" if numbers else head)

    @classmethod
    def advice(cls, fault: Fault) -> str:
        return accumulator_repair(fault)
