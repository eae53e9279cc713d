"""PL403: the unscale protocol."""

from precisionlab.checks.base import Fault, check
from precisionlab.checks.protocol import ProtocolCheck
from precisionlab.records import Kind

_IN_ORDER = (
    "Follow the order scale(loss).backward(), unscale_(optimizer), clip, scaler.step(optimizer), scaler.update(), zero_grad(), once per"
    " step."
)


@check
class UnscaleProtocol(ProtocolCheck):
    """The loss scale is divided out twice, not at all, or in a format that cannot hold the result.

    What it means
        A loss scale is a unit: every gradient carries it from backward until it is divided out, once, in fp32. Calls in another order
        leave a factor of the scale, or of its inverse, in the update; a gradient penalty formed on scaled gradients is wrong by it too.

    Why it hurts
        SGD steps are 65536 times too long or too short. Adam hides the factor in its second moment until the scale changes, and then the
        step size jumps. fp16 gradients divided by the scale underflow, which is what the scale was to avoid.

    How it is measured
        The scale is carried as a unit with every gradient; each scaler, clip and optimizer call must find the unit it expects. No rounding
        and no threshold is involved. Source: torch's amp examples.

    Smallest example
        import torch
        weight = torch.nn.Parameter(torch.zeros(1))
        scale = 1024.0
        (weight.sum() * scale).backward()
        with torch.no_grad():
            weight -= 0.1 * weight.grad       # missing: weight.grad / scale
        assert round(weight.item()) == -102   # should be -0.1

    Fix
        The order is: scale(loss).backward() for every micro-batch, unscale_(optimizer), clip, step(optimizer), update(), zero_grad().
        Trainable parameters, and so their gradients, in fp32.

    When to ignore
        Never: a factor of the scale in an update is not wanted by anyone.

    Known limits
        Torch itself raises for two of these (unscale_ twice, fp16 gradients under GradScaler); the report then comes from the
        exception. Hand-written scalers are recognised by the factor on the loss.
    """

    code = "PL403"
    title = "Loss scale not divided out properly"
    kind = Kind.SCALER
    faults = {
        "unscale-twice": (
            "divides gradients by the loss scale twice",
            "Unscale exactly once per optimizer and step, after the last micro-batch: either scaler.unscale_(optimizer) or a division of"
            " your own, not both.",
        ),
        "step-without-unscale-division": (
            "takes a step on gradients that still carry the loss scale",
            "Divide the gradients by the scale (in fp32) before optimizer.step(), or call scaler.step(optimizer), which does it.",
        ),
        "step-on-scaled-gradients": (
            "takes a step on gradients that still carry the loss scale",
            "Divide the gradients by the scale (in fp32) before optimizer.step(), or call scaler.step(optimizer), which does it.",
        ),
        "plain-step-after-scaler-step": (
            "takes a plain step after scaler.step(), past its check for non-finite gradients",
            "Remove the plain optimizer.step(): scaler.step(optimizer) calls it, and leaves it out when gradients are non-finite.",
        ),
        "update-between-optimizers": (
            "updates the loss scale between two optimizers of the same iteration",
            "Call scaler.update() once per iteration, after the scaler.step() of every optimizer, so that all of them use the same scale.",
        ),
        "fp16-parameters-under-scaler": (
            "is given fp16 parameters, whose fp16 gradients cannot hold the unscaled values",
            "Keep the trainable parameters in fp32 and let autocast cast them (frozen ones may stay fp16); for pure fp16 training give"
            " the optimizer fp32 masters.",
        ),
        "gradient-penalty-on-scaled-gradients": (
            "computes a penalty from gradients that still carry the loss scale",
            "Divide the gradients from torch.autograd.grad by scaler.get_scale() before the penalty is formed from them, and scale only"
            " the final loss.",
        ),
        "mixed-scales": (
            "adds values that do not carry the loss scale to gradients that do",
            "Unscale first (scaler.unscale_(optimizer), or a division in fp32), then add weight decay, noise or other gradients; or"
            " scale what is added as well.",
        ),
        "unscale-inside-accumulation": (
            "adds scaled gradients to unscaled ones",
            "Scale the loss of every micro-batch with the same scale and unscale once, after the last of them.",
        ),
        "divided-by-another-scale": (
            "divides gradients by another loss scale than the one they carry",
            "Keep the scale that multiplied the loss until its gradients are divided by it; raise or lower it only after the step.",
        ),
    }
    takes_unknown = True

    @classmethod
    def _words(cls, fault: Fault) -> tuple[str, str]:
        detail = fault.event.detail if fault.event is not None else ""
        spoken = f" ({detail.replace('-', ' ')})" if detail else ""
        unknown = (f"is called in an order that changes the result{spoken}", _IN_ORDER)
        return cls.faults.get(detail, unknown)
