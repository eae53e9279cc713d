"""PL502: accumulation that is too narrow."""

from precisionlab.checks.base import Check, Fault, check
from precisionlab.checks.facts import event_is
from precisionlab.checks.precision_repairs import accumulation_repair
from precisionlab.checks.wording import fmt, joined, passing, place, sentence, when_known
from precisionlab.records import EventKind, Kind


@check
class NarrowAccumulation(Check):
    """The arithmetic inside an op is narrower than one rounding of its result would be.

    What it means
        A good kernel sums in fp32 and rounds once. This one is off by much more than one rounding, and by more than its operands'
        condition explains: it adds its terms in the narrow format, one after the other, or rounds in between.

    Why it hurts
        The error grows with the number of terms, and beyond 2048 terms in fp16 or 256 in bf16 the sum stops growing at all. Gradients of
        embeddings and of indexed tables, where frequent rows collect thousands of terms, come out many times too small.

    How it is measured
        rho: error of the op on its actual operands, over the bound half an ulp + 4 sqrt(n) u_acc S + declared internal roundings, where
        S sums absolute terms. `rho` (8.0) with a normwise error above `rho_local_u` (8.0 u); healthy kernels stay at 1.5. Cancellation
        does not raise it: S, not the result, sets the scale. Source: Higham 2002, chapter 4, with the
        probabilistic factor sqrt(n) of Higham and Mary 2019.

    Smallest example
        import torch
        table = torch.zeros(1, dtype=torch.float16)
        ones = torch.ones(4096, dtype=torch.float16)
        table.index_add_(0, torch.zeros(4096, dtype=torch.long), ones)
        assert table.item() == 2048.0                  # not 4096
        assert ones.sum().item() == 4096.0             # sum keeps an fp32 accumulator

    Fix
        Ask for a wide accumulator (`dtype=torch.float32`), keep the table and so its gradient in fp32, sum in blocks or pairwise, reduce
        across ranks in fp32.

    When to ignore
        When the number of terms stays small in real use; the evidence gives it as reduction_length.

    Known limits
        This machine's kernels are judged. Torch's CPU kernels accumulate most sums in fp32; a GPU or another library may not. Kernels
        with undeclared internal roundings read as too narrow.
    """

    code = "PL502"
    title = "Accumulation narrower than the format promises"
    kind = Kind.ACCUMULATION
    order = 100

    @classmethod
    def claims(cls, fault: Fault) -> bool:
        return event_is(fault, EventKind.RHO)

    @classmethod
    def message(cls, fault: Fault) -> str:
        numbers = joined(
            when_known(fault, "rho_max", "{} times the error its arithmetic should have"),
            when_known(fault, "local_error_u", "{} u normwise"),
            when_known(fault, "reduction_length", "{} terms"),
        )
        text = f"{place(fault)} accumulates too narrowly in {fmt(fault)}{passing(fault)}"
        return sentence(f"{text} ({numbers})" if numbers else text)

    @classmethod
    def advice(cls, fault: Fault) -> str:
        return accumulation_repair(fault)
