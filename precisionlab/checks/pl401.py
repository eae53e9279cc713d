"""PL401: scale collapse."""

from precisionlab.checks.base import Check, Fault, check
from precisionlab.checks.facts import detail_is, protocol_is
from precisionlab.checks.wording import other_evidence, place, sentence
from precisionlab.records import Kind

_SAYS = {
    "scale-collapse": "halves the loss scale again and again without ever finding one that works",
    "every-step-skipped": "skips every step: the gradients are non-finite at every scale",
    "scale-overflow": "lets the loss scale grow until it is infinite",
    "scale-not-resumed": "starts again from its initial scale although training was resumed",
}


@check
class ScaleCollapse(Check):
    """The gradient scaler skips step after step, and its scale runs away instead of settling.

    What it means
        A scaler halves its scale when gradients are non-finite. That helps only when the scale is the cause. Here they stay
        non-finite at every scale: an inf or NaN is made in the forward pass, is already in the weights, or is left over in `.grad`.

    Why it hurts
        No step is taken, or only a few; the scale falls to 1 and below, where small gradients flush to zero, so that even the repaired
        run trains badly until the scale has grown again (it doubles once in 2000 steps).

    How it is measured
        Skipped steps and the scale are followed over the audit. A few skips at the start are calibration and stay quiet; it is a fault
        when no step was taken, or the scale keeps falling past what the gradients need. No threshold of its own.
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
    order = 10

    @classmethod
    def claims(cls, fault: Fault) -> bool:
        return protocol_is(fault, cls.code)

    @classmethod
    def message(cls, fault: Fault) -> str:
        detail = fault.event.detail if fault.event is not None else ""
        numbers = other_evidence(fault)
        text = f"{place(fault)} {_SAYS.get(detail, _SAYS['scale-collapse'])}"
        return sentence(f"{text} ({numbers})" if numbers else text)

    @classmethod
    def advice(cls, fault: Fault) -> str:
        if detail_is(fault, "scale-not-resumed"):
            return "Save scaler.state_dict() with the checkpoint and load it on resuming, so that the scale is not searched for again."
        if detail_is(fault, "scale-overflow"):
            return (
                "Gradients are so small that nothing ever overflows: cap the scale (or use growth_factor=1.0 from 2^16 on) and check that"
                " the loss really depends on the parameters."
            )
        return (
            "A smaller scale cannot repair this: find the op that makes the first non-finite value in the forward pass (PL101, PL108),"
            " check weights and inputs for inf and NaN, and call optimizer.zero_grad() on every iteration, also after a skipped step."
        )
