"""PL409: empty loss-scale window."""

from precisionlab.checks.base import Fault, check
from precisionlab.checks.facts import measured
from precisionlab.checks.protocol import ProtocolCheck
from precisionlab.checks.wording import joined, place, sentence, share_when_known, when_known
from precisionlab.records import Kind


@check
class EmptyScaleWindow(ProtocolCheck):
    """No loss scale keeps both the largest and the small gradients inside fp16.

    What it means
        A loss scale moves all gradients together. fp16 spans 40 binades, from 2^-24 to 65504. Here the gradients of one backward pass are
        spread wider than that: at the largest scale that overflows nothing, a material part of them is still zero.

    Why it hurts
        The layers with the small gradients are not trained, or the largest gradients overflow and the steps are skipped. A dynamic
        scaler settles at the upper end and never looks at the lower one.

    How it is measured
        The exponents of the exact unscaled gradients are counted for every result of the backward pass that is stored in fp16 (up to 1024
        elements of each; the largest exactly). It is risky when the energy that the best scale still flushes to zero, averaged over
        these results, exceeds `flush_share` (0.1). Source: Micikevicius et al. 2018, "Mixed Precision Training", section 3.2.

    Smallest example
        import torch
        g = torch.tensor([2.0**-30, 2.0**12])
        for k in range(-40, 40):
            stored = (g * 2.0**k).half()
            assert stored[0] == 0 or stored[1].isinf()

    Fix
        Store the gradients of the offending layers in bf16 or fp32 (`torch.autocast(enabled=False)` around the layer, or bf16 autocast),
        bring the loss terms to a common size, or normalise between the layers, so that their gradients are of one magnitude.

    When to ignore
        When the layers with the small gradients are meant to stand still.

    Known limits
        Ops that keep several magnitudes apart inside one fused kernel are seen by their results only. Other inputs have other gradients:
        the window is that of the steps observed.
    """

    code = "PL409"
    title = "Empty loss-scale window"
    kind = Kind.SCALER
    faults = {"empty-scale-window": ("makes gradients that no loss scale fits", "Use bf16 for the backward pass.")}

    @classmethod
    def message(cls, fault: Fault) -> str:
        numbers = joined(
            when_known(fault, "upper_log2", "nothing overflows up to 2^{}"),
            share_when_known(fault, "flushed_energy_share", "where {} of the gradient energy is still flushed to zero"),
            when_known(fault, "lower_log2", "which would need 2^{}"),
        )
        text = f"No loss scale fits the gradients; the largest is made by {place(fault)}"
        return sentence(f"{text} ({numbers})" if numbers else text)

    @classmethod
    def advice(cls, fault: Fault) -> str:
        upper, lower = measured(fault, "upper_log2"), measured(fault, "lower_log2")
        missing = f" It lacks {lower - upper:.0f} binades." if upper is not None and lower is not None else ""
        return (
            "Use bf16 for the backward pass, or keep this layer in fp32 (torch.autocast(enabled=False)), so that its large gradients no"
            f" longer bound the scale of the small ones.{missing}"
        )
