"""PL301: swamped weight update."""

from precisionlab.checks.base import Check, Fault, check
from precisionlab.checks.facts import anywhere, event_is, measured, mentions, phase_is, sink_is, unexplained
from precisionlab.checks.precision_repairs import update_loss
from precisionlab.checks.wording import counted, fmt, joined, number, percent, place, sentence, share_when_known, when_known
from precisionlab.records import EventKind, Kind, Phase, SinkKind


@check
class SwampedUpdate(Check):
    """The optimizer's step is smaller than half the spacing of the weight and is rounded away.

    What it means
        w + dw equals w when |dw| is at most half the spacing at w. Beside a weight of 1 the spacing is 2^-7 = 0.0078 in bf16 and 2^-10 =
        0.00098 in fp16; an Adam step is about the learning rate. Elements that do move jump by a whole spacing.

    Why it hurts
        The parameter is frozen although its gradient and the optimizer state look healthy, and a smaller learning rate makes it worse.
        Normalisation weights, which sit at 1, freeze first.

    How it is measured
        `update_efficiency` (0.5): projection of the real change of the parameter on the change its fp64 twin made. It must be low for
        `update_steps` (3) steps in a row, and either summed over the audit or for the optimizer's step as a whole: a learning rate that
        falls is found, a small weight that pauses while the others move is not. `lost_share` (0.5) finds the op. fp32 masters,
        stochastic rounding and Kahan summation pass by evidence: their updates are not lost. Source: Micikevicius et al. 2018;
        Zamirai et al. 2020, "Revisiting BFloat16 Training".

    Smallest example
        import torch
        weight = torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
        optimizer = torch.optim.SGD([weight], lr=1e-3)
        for _ in range(1000):
            weight.grad = torch.ones_like(weight)
            optimizer.step()              # 1 - 0.001 rounds back to 1
        assert (weight == 1).all()        # fp32: about 0

    Fix
        Keep the parameters in fp32 and run the forward pass under autocast, or keep fp32 master weights and cast a copy after each step.
        Where memory forbids it: stochastic rounding or a Kahan compensation term in the update.

    When to ignore
        When the parameter is meant to stay (a learning rate of 0, frozen layers): then the twin does not move either and nothing is
        reported.

    Known limits
        Judged over the audited steps. A learning rate in warm-up or at the end of its schedule is smaller than usual; audit steps from
        the middle of training as well.
    """

    code = "PL301"
    title = "Swamped weight update"
    kind = Kind.SWAMPING
    order = 40

    @classmethod
    def claims(cls, fault: Fault) -> bool:
        if unexplained(fault, SinkKind.UPDATE):
            return True
        if not event_is(fault, EventKind.LOST):
            return False
        return phase_is(fault, Phase.OPTIMIZER) or (sink_is(fault, SinkKind.UPDATE) and not phase_is(fault, Phase.FORWARD, Phase.BACKWARD))

    @classmethod
    def message(cls, fault: Fault) -> str:
        addend, spacing = measured(fault, "addend_rms"), measured(fault, "spacing")
        steps = anywhere(fault, "steps")
        numbers = joined(
            f"steps of {number(addend)} beside a weight spacing of {number(spacing)}" if addend is not None and spacing is not None else "",
            counted(fault, "swamped", "elements") + " did not move" if measured(fault, "swamped") is not None else "",
            share_when_known(fault, "swamped_share", "{} of the elements did not move"),
            f"{number(steps)} steps" if steps is not None else "",
        )
        if fault.event is None:
            lost = update_loss(fault)
            share = f": {percent(lost)} of it is lost" if lost is not None and 0.0 <= lost <= 1.0 else ""
            text = f"The update of {place(fault)} is rounded away{share}"
        else:
            lost_share = share_when_known(fault, "lost_share", " {} of")
            text = f"{place(fault)} writes a weight update in {fmt(fault)} and loses{lost_share or ' most of'} it"
        return sentence(f"{text} ({numbers})" if numbers else text)

    @classmethod
    def advice(cls, fault: Fault) -> str:
        name = fmt(fault, "the narrow format")
        norm = ""
        if mentions(fault, "norm", "bias", "layernorm", "rmsnorm", "batchnorm"):
            norm = " Normalisation weights and biases are few: keeping only them in fp32 is cheap and repairs the worst part."
        return (
            f"Keep the parameters in fp32 and compute under autocast, or give the optimizer fp32 master weights and cast to {name} after"
            f" the step; if memory forbids it, use stochastic rounding or a Kahan compensation term.{norm}"
            + when_known(fault, "spacing", " As it is, a step has an effect only above half of the weight's spacing of {}.")
        )
