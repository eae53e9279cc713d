"""PL404: clipping inside gradient accumulation."""

from precisionlab.checks.base import check
from precisionlab.checks.protocol import ProtocolCheck
from precisionlab.records import Kind


@check
class ClipInsideAccumulation(ProtocolCheck):
    """The accumulated gradient is clipped after each micro-batch instead of once per step.

    What it means
        `.grad` holds the sum of all micro-batches so far. Clipping it in the loop rescales that whole sum each time, so micro-batch k
        is multiplied by every clip factor from k on.

    Why it hurts
        The early micro-batches fade and the last ones dominate: the update depends on the order of the data, and gradient accumulation
        no longer equals a larger batch. Everything is finite and the loss falls, only worse.

    How it is measured
        From the order of calls: a clip that changed a gradient, followed by another backward into the same `.grad` before the step. No
        rounding and no threshold is involved. Source: the gradient accumulation section of torch's
        amp examples.

    Smallest example
        import torch
        weight = torch.nn.Parameter(torch.zeros(2))
        for data in (torch.tensor([3.0, 0.0]), torch.tensor([0.0, 3.0])):
            (weight * data).sum().backward()
            torch.nn.utils.clip_grad_norm_([weight], 1.0)     # belongs after the loop
        assert weight.grad[1] > 2.9 * weight.grad[0]          # both should count alike

    Fix
        Clip once, after the last micro-batch (after unscale_ where a scaler is used) and before `optimizer.step()`.

    When to ignore
        When each micro-batch is clipped on purpose (differential privacy): then clip its own gradient, not the running sum.

    Known limits
        A clip whose factor is 1 changes nothing and is not reported, so large enough limits hide the mistake.
    """

    code = "PL404"
    title = "Clipping inside gradient accumulation"
    kind = Kind.SEMANTICS
    faults = {
        "clip-inside-accumulation": (
            "clips the gradient sum between micro-batches, so the earlier ones are scaled down again and again",
            "Move the clipping behind the micro-batch loop: clip once per optimizer step, on the complete sum, and divide the loss by"
            " the number of micro-batches.",
        ),
    }
