"""PL401: scale collapse."""

from precisionlab.checks.base import check
from precisionlab.checks.protocol import ProtocolCheck
from precisionlab.records import Kind

_NO_SCALE_HELPS = (
    "A smaller scale cannot repair this: find the op that makes the first non-finite value in the forward pass (PL101, PL108), check"
    " weights and inputs for inf and NaN, and call optimizer.zero_grad() on every iteration, also after a skipped step."
)


@check
class ScaleCollapse(ProtocolCheck):
    """The gradient scaler skips step after step, and its scale runs away instead of settling.

    What it means
        A scaler halves its scale when gradients are non-finite. That helps only when the scale is the cause. Here they stay
        non-finite at every scale: an inf or NaN is made in the forward pass, is already in the weights, or is left over in `.grad`.
        The opposite is reported too: a scale that grows past what can be divided out again, on steps that overflow, or so often that
        every few steps are lost to it; and a scaler that starts anew beside an optimizer that was resumed.

    Why it hurts
        No step is taken, or only a few; the scale falls to 1 and below, where small gradients flush to zero, so that even the repaired
        run trains badly until the scale has grown again (it doubles once in 2000 steps).

    How it is measured
        Skipped steps and the scale are followed over the audit, of `GradScaler` and of scaling by hand. The exact fp64 values of all fp16
        gradients tell whether a skip was the scale's doing: such skips are calibration and stay quiet. It is a fault when no step was
        taken and two skips in a row have no such cause; when the scale falls below 1, passes 2^126, or rises on a skipped step twice;
        when more than ten steps were lost to a scaler that was not resumed (two to ten are risky), and risky when a tenth of the steps
        is skipped right after a growth. No threshold can be set.
        Source: torch.amp.GradScaler (start 65536, backoff 0.5, growth 2 every 2000 steps).

    Smallest example
        import torch
        weight = torch.nn.Parameter(torch.ones(1))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale((weight * float("inf")).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        assert scaler.get_scale() == 0.5 and weight.item() == 1.0

    Fix
        Repair the op that makes the non-finite value (the report names it where it saw it), clear the gradients on every iteration,
        skipped or not, and restore the scaler's state with its checkpoint.

    When to ignore
        While the scale is still being found: at most about ten skips from 65536. Those are not reported.

    Known limits
        A cause that an unshadowed op hides is not named. A run that was started after the collapse shows only the low scale.
    """

    code = "PL401"
    title = "Loss scale collapse"
    kind = Kind.SCALER
    faults = {
        "scale-collapse": (
            "halves the loss scale again and again without ever finding one that works",
            _NO_SCALE_HELPS,
        ),
        "every-step-skipped": (
            "skips every step: the gradients are non-finite at every scale",
            _NO_SCALE_HELPS,
        ),
        "scale-overflow": (
            "lets the loss scale grow without end",
            "Let the scale fall on every iteration whose gradients are non-finite, and cap it where nothing ever overflows"
            " (growth_factor=1.0 from 2^16 on): check that the finite check sees the gradients of this iteration, and that the loss"
            " really depends on the parameters.",
        ),
        "scale-not-resumed": (
            "starts again from its initial scale although the optimizer was resumed",
            "Save scaler.state_dict() with the checkpoint and load it on resuming, so that the scale is not searched for again.",
        ),
        "growth-too-frequent": (
            "grows the loss scale so often that it keeps overflowing",
            "Raise growth_interval (torch's default is 2000): a scaler that doubles its scale every N clean steps overflows, and skips a"
            " batch, about once in N + 1.",
        ),
    }
