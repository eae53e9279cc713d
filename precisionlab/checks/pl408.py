"""PL408: gradient with a wrong factor."""

from precisionlab.checks.base import check
from precisionlab.checks.protocol import ProtocolCheck
from precisionlab.records import Kind


@check
class WrongGradientFactor(ProtocolCheck):
    """Gradients reach the optimizer with a factor that nobody meant: negative, the number of micro-batches, or all earlier steps.

    What it means
        Between backward and the step, all gradients were multiplied by the same number. A negative one turns descent into ascent (a
        clip coefficient computed from a sentinel norm of -1, say); one of N means that N micro-batches were added and never averaged.
        Gradients that nobody sets to zero between steps are the sum over all steps so far.

    Why it hurts
        A reversed step raises the loss, and it does so exactly in the iterations in which something else was already wrong. A factor of
        N acts as a learning rate N times as large for SGD, and brings sums closer to overflow for any optimizer.

    How it is measured
        The factor is read off the ops that rescale gradients between backward and the step: a negative factor on all of a parameter's
        gradient. Gradients that were not zeroed: backward added to values that the step before had used, in three steps in a row.
        No threshold; fp64 does the same. Source: descent needs a positive factor; a mean over N batches needs 1 / N.

    Smallest example
        import torch
        weight = torch.nn.Parameter(torch.tensor([3.0]))
        weight.square().sum().backward()              # gradient 6
        total_norm = -1.0                             # "not finite" in some libraries
        weight.grad.mul_(min(1.0, 1.0 / (total_norm + 1e-6)))
        with torch.no_grad():
            weight -= 0.1 * weight.grad
        assert weight.item() > 3.5                    # up the hill

    Fix
        Treat a negative or non-finite norm as "skip this step" before a coefficient is formed from it, and clamp the coefficient to
        [0, 1]. Divide the loss by the number of micro-batches before backward.

    When to ignore
        When the sign is meant: gradient reversal layers work inside backward and are not affected; maximisation is better written as
        `maximize=True`.

    Known limits
        A missing average cannot be told from a loss that is meant as a sum. It is reported only where the numbers show harm.
    """

    code = "PL408"
    title = "Gradient with a wrong sign or factor"
    kind = Kind.SEMANTICS
    faults = {
        "reversed-gradient": (
            "multiplies gradients by a negative factor, so the step goes uphill",
            "Treat a negative or non-finite gradient norm as a reason to skip the step, before max_norm / norm is formed, and clamp the"
            " clip coefficient to [0, 1]; then repair the op that made the gradient non-finite.",
        ),
        "gradients-not-zeroed": (
            "adds to gradients that an earlier step has used already",
            "Call optimizer.zero_grad() once per step, before the first backward pass that belongs to it (or right after the step).",
        ),
    }
