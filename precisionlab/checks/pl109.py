"""PL109: non-finite values that were there before."""

from precisionlab.checks.base import Check, Fault, check
from precisionlab.checks.facts import at_sink, unexplained
from precisionlab.checks.wording import counted, place, sentence
from precisionlab.records import Kind


@check
class GivenNonFinite(Check):
    """Inputs or weights already hold inf or NaN when the audit first sees them.

    What it means
        A tensor that the audited program did not compute (a batch, a checkpoint, a buffer) contains non-finite values. The fp64 twin
        starts from the same values, so no op of the program made them.

    Why it hurts
        NaN spreads through every op it meets, so nothing downstream can be judged: the audit cannot tell damage done by the format from
        damage that was there before. Whatever else the report calls safe was not tested where the NaN went.

    How it is measured
        Non-finite values at a sink, or in a tensor on first sight, without any op that introduced them. No threshold.
        The finding is a warning about the run and never "broken". Source: origin rule for non-finite values.

    Smallest example
        import torch
        batch = torch.tensor([[1.0, float("nan")]])      # e.g. a missing measurement
        layer = torch.nn.Linear(2, 1)
        assert layer(batch).isnan().all()                # in fp64 just as in fp16
        assert layer(batch.nan_to_num(0.0)).isfinite().all()

    Fix
        Find the source outside the program: check the batch with `torch.isfinite(x).all()` where it is loaded, and a checkpoint right
        after loading it. A checkpoint saved after a diverged step has to be replaced by an earlier one. Then audit again.

    When to ignore
        When non-finite entries are data (`-inf` in a precomputed attention mask, `inf` as a missing bound) and are masked before any
        arithmetic.

    Known limits
        Values that an unshadowed op made (PL901) also seem to come from outside: look at the coverage line first.
    """

    code = "PL109"
    title = "Non-finite values already in inputs or weights"
    kind = Kind.SEMANTICS
    order = 15

    @classmethod
    def claims(cls, fault: Fault) -> bool:
        return unexplained(fault) and bool(at_sink(fault, "nonfinite"))

    @classmethod
    def message(cls, fault: Fault) -> str:
        return sentence(f"{place(fault)} holds {counted(fault, 'nonfinite')} that are non-finite without any audited op having made them")

    @classmethod
    def advice(cls, fault: Fault) -> str:
        return (
            "Check what the program is given: torch.isfinite(x).all() on each batch where it is loaded and on each parameter and buffer"
            " right after load_state_dict; replace or mask those entries, then audit again. If the coverage line names unshadowed ops,"
            " look there first."
        )
