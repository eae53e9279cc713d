"""PL402: clipping scaled gradients."""

from precisionlab.checks.base import check
from precisionlab.checks.protocol import ProtocolCheck
from precisionlab.records import Kind


@check
class ClipBeforeUnscale(ProtocolCheck):
    """Gradients are clipped while they still carry the loss scale.

    What it means
        After `scaler.scale(loss).backward()` every gradient is multiplied by the scale (65536 at the start). `clip_grad_norm_` compares
        that with max_norm and shortens nearly every gradient; `scaler.step` then divides by the scale once more.

    Why it hurts
        The step is shorter than intended by up to the scale, so training all but stops, or, with an adaptive optimizer, only the
        direction survives. The bug hides while the scale is small and comes back when it grows.

    How it is measured
        The scale is carried as a unit with every gradient, from the loss on; clipping, or reading a norm to rescale with, must see
        gradients of unit 1. No rounding and no threshold is involved. Source: the gradient clipping section of torch's amp examples.

    Smallest example
        import torch
        weight = torch.nn.Parameter(torch.ones(1))
        optimizer = torch.optim.SGD([weight], lr=1.0)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        scaler.scale((0.5 * weight).sum()).backward()
        torch.nn.utils.clip_grad_norm_([weight], 1.0)     # missing before: scaler.unscale_(optimizer)
        scaler.step(optimizer)
        assert 0.998 < weight.item() < 1.0                # 0.5 with unscale_

    Fix
        Call `scaler.unscale_(optimizer)` once, after the last backward of the step and before `clip_grad_norm_`; `scaler.step` sees that
        it has been done.

    When to ignore
        When max_norm is multiplied by the scale as well (then the units match and nothing is reported).

    Known limits
        A norm that is only logged is not a fault. Clipping hidden inside a compiled extension is not seen.
    """

    code = "PL402"
    title = "Clipping scaled gradients"
    kind = Kind.SCALER
    faults = {
        "clip-before-unscale": (
            "clips gradients that still carry the loss scale",
            "Call scaler.unscale_(optimizer) after the last backward() of the step and before clipping (with a hand-written scale:"
            " divide the gradients by it first), so that max_norm is compared with the true norm.",
        ),
    }
