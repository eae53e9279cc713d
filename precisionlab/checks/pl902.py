"""PL902: twins that were restarted."""

from precisionlab.checks.base import Check, Fault, check
from precisionlab.checks.wording import other_evidence, place, sentence
from precisionlab.records import Kind


@check
class TwinsRestarted(Check):
    """fp64 twins were thrown away and started again from the real values.

    What it means
        A tensor was changed in a way the audit could not follow (`.data = ...`, a write from outside torch, a view as another dtype, a
        resized storage), its twin was evicted to stay under the memory cap, or the step ended and weights were resynchronised.

    Why it hurts
        It does not hurt the program. Differences that had built up in such a tensor are forgotten, so errors that grow across the
        restart are under-reported.

    How it is measured
        Restarts are counted by reason in the coverage. No threshold. The restart of weights and optimizer state after each step is the
        default (`resync="step"`) and not reported. Source: what cannot be seen must be
        said.

    Smallest example
        import torch
        p = torch.nn.Parameter(torch.ones(2))
        before = p.data_ptr()
        p.data = torch.zeros(2)          # other storage, assigned past the dispatcher
        assert p.data_ptr() != before

    Fix
        Use `with torch.no_grad(): p.copy_(new)` instead of assigning `.data`. Raise `max_shadow_bytes` when twins were evicted, or audit
        a smaller batch. `resync="never"` keeps the twins of the weights across steps.

    When to ignore
        Between steps, and for tensors that are filled from outside each step (input buffers).

    Known limits
        A write that changes neither the version counter nor the storage cannot be noticed.
    """

    code = "PL902"
    title = "Twins restarted"
    kind = Kind.SEMANTICS
    order = 2000

    @classmethod
    def claims(cls, fault: Fault) -> bool:
        return False

    @classmethod
    def message(cls, fault: Fault) -> str:
        numbers = other_evidence(fault)
        text = f"The fp64 twins of {place(fault)} were restarted from the real values"
        return sentence(f"{text} ({numbers})" if numbers else text)

    @classmethod
    def advice(cls, fault: Fault) -> str:
        return (
            "Write tensors through torch (with torch.no_grad(): p.copy_(new), not p.data = new), and raise max_shadow_bytes or shrink the"
            " batch when twins were evicted."
        )
