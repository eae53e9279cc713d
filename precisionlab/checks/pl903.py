"""PL903: the subject raised."""

from precisionlab.checks.base import Check, Fault, check
from precisionlab.checks.wording import sentence
from precisionlab.records import Kind


@check
class SubjectRaised(Check):
    """The audited program raised an exception; the report covers what ran until then.

    What it means
        The exception came out of the program, with or without the audit. Everything measured before it is kept and judged.

    Why it hurts
        What had not run yet was not tested. Some exceptions are themselves a precision fault: fp16 gradients under a GradScaler,
        unscale_ called twice, a value that a narrow dtype refuses.

    How it is measured
        Nothing is measured: the exception that ended the run is quoted in one line, with the step in which it was raised. No threshold.
        Source: the run itself.

    Smallest example
        import torch
        scores = torch.zeros(3, dtype=torch.float16)
        try:
            scores.masked_fill(torch.tensor([True, False, True]), -1e9)     # raises: -1e9 is no fp16 number
        except RuntimeError as error:
            assert "overflow" in str(error)

    Fix
        Read the exception first. If it speaks of dtypes, the advice of the findings beside it usually applies; otherwise repair the
        program and audit again.

    When to ignore
        When it was you who stopped the run.

    Known limits
        A program that swallows its own exceptions ends normally and does not show this code.
    """

    code = "PL903"
    title = "The audited program raised"
    kind = Kind.SEMANTICS
    order = 2000

    @classmethod
    def claims(cls, fault: Fault) -> bool:
        return False

    @classmethod
    def message(cls, fault: Fault) -> str:
        error = fault.text("error")
        return sentence(f"The audited program raised an exception{': ' + error if error else ''}")

    @classmethod
    def advice(cls, fault: Fault) -> str:
        return (
            "Run the program without the audit: if it raises there too, repair that first; the findings describe the steps that ran"
            " before it."
        )
