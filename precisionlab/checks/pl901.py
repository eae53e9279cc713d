"""PL901: an op that was not shadowed."""

from precisionlab.checks.base import Check, Fault, check
from precisionlab.checks.wording import other_evidence, place, sentence
from precisionlab.records import Kind


@check
class NotShadowed(Check):
    """An op ran without an fp64 twin, so what it did to its numbers is not known.

    What it means
        The op has no fp64 kernel and no reference, raised on fp64 operands, or left torch (NumPy, a custom extension). It ran exactly as
        without the audit; its outputs start again from the values that it produced.

    Why it hurts
        It does not hurt the program. It limits the audit: errors made before it are forgotten at this point, and its own are invisible.
        "safe" does not speak for it.

    How it is measured
        Counted by name in the coverage: ops seen, shadowed and not, with the reason. No threshold; `--min-coverage` turns a low share
        into exit code 3, `pl.audit(strict=True)` any unshadowed op into the verdict unknown. Source: what cannot be seen must be said.

    Smallest example
        import torch
        x = torch.full((3,), 0.1, dtype=torch.float16)
        y = torch.from_numpy(x.numpy() * 2)      # computed by NumPy: torch never sees the product
        assert y.dtype is torch.float16

    Fix
        Express the op in torch, or register a reference for it (docs: adding an op). For a custom op, an fp64 implementation on the CPU is
        enough.

    When to ignore
        When the op moves data without arithmetic, or its results do not reach anything that matters.

    Known limits
        Code that never passes torch's dispatcher is not counted at all; its results show up as tensors of unknown origin (PL902).
    """

    code = "PL901"
    title = "Op not shadowed"
    kind = Kind.SEMANTICS
    order = 2000

    @classmethod
    def claims(cls, fault: Fault) -> bool:
        return False

    @classmethod
    def message(cls, fault: Fault) -> str:
        numbers = other_evidence(fault)
        text = f"{place(fault)} ran without an fp64 twin"
        return sentence(f"{text} ({numbers})" if numbers else text)

    @classmethod
    def advice(cls, fault: Fault) -> str:
        return (
            "Register an fp64 reference for the op, or replace it by torch ops while auditing; until then read what comes after it as"
            " starting anew from its results."
        )
