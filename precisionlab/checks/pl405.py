"""PL405: stale non-finite gradient."""

from precisionlab.checks.base import check
from precisionlab.checks.protocol import ProtocolCheck
from precisionlab.records import Kind


@check
class StaleNonFiniteGradient(ProtocolCheck):
    """A non-finite gradient stays in `.grad` and spoils the iterations after it.

    What it means
        One backward overflowed, which is normal under a scaler. The gradients were not cleared before the next backward (often because
        clearing them sits in the branch of a taken step), and inf + g is inf again. Or they were replaced by zeros and used.

    Why it hurts
        Every later step is skipped and the scale halves each time, down to 0: a single harmless overflow ends the training. Replacing
        the values by zero instead makes a step on a wrong gradient and hides the overflow from the scaler.

    How it is measured
        A backward that adds into a `.grad` that already holds non-finite values, with the scale falling since; or a write that turns
        non-finite gradients into finite ones before the step. No threshold. Source: inf + g = inf in IEEE 754.

    Smallest example
        import torch
        weight = torch.nn.Parameter(torch.ones(1))
        (weight * float("inf")).sum().backward()     # one overflow
        (weight * 1.0).sum().backward()              # missing before: weight.grad = None
        assert weight.grad.isinf().all()

    Fix
        Call `optimizer.zero_grad(set_to_none=True)` on every iteration, whether or not the scaler took the step. Do not repair non-finite
        gradients with nan_to_num: let the scaler skip the step.

    When to ignore
        In a loop that accumulates on purpose and discards the whole sum when it is non-finite.

    Known limits
        Where the gradient would overflow again anyway, the cause is PL202 or PL401 and this finding only adds to it.
    """

    code = "PL405"
    title = "Stale non-finite gradient"
    kind = Kind.SCALER
    faults = {
        "stale-nonfinite-gradient": (
            "adds to a gradient that is still non-finite from an earlier iteration",
            "Call optimizer.zero_grad(set_to_none=True) on every iteration, also when the scaler skipped the step: inf plus anything is"
            " inf.",
        ),
        "nonfinite-gradient-replaced": (
            "replaces non-finite gradients by finite numbers and lets the step be taken",
            "Remove the replacement (nan_to_num, masking) and skip the step instead, as GradScaler does; then repair the op that"
            " overflows.",
        ),
    }
