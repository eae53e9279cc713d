"""PL507: error growth without a single culprit."""

from precisionlab.checks.base import Check, Fault, check
from precisionlab.checks.facts import anywhere, at_sink, unexplained
from precisionlab.checks.wording import joined, number, percent, place, sentence
from precisionlab.records import Kind


@check
class ErrorGrowth(Check):
    """A result differs materially from its fp64 twin and no single op is to blame.

    What it means
        Each op rounds as well as it can and none amplifies much, but the errors add up, or are multiplied by a little at each of many
        layers or iterations. In a healthy network they grow with the square root of the depth or slower; here they grow faster.

    Why it hurts
        The result is wrong by more than the format suggests, and it gets worse with depth, sequence length or number of iterations. There
        is no line to repair.

    How it is measured
        Drift at a sink above its limit, `output_drift` (0.02) with `output_drift_u` (8.0) or `gradient_efficiency` (0.6), without any
        event upstream. The finding is a warning. Source: square-root growth of independent roundings;
        calibrated on known faults and healthy programs.

    Smallest example
        import torch
        x = torch.tensor(1.0, dtype=torch.bfloat16)
        for _ in range(100):
            x = x * 1.01                  # each product is rounded correctly
        assert x.item() < 0.92 * 1.01**100      # 2.47 instead of 2.70

    Fix
        Carry the quantity that is updated again and again (residual stream, recurrent state, integrator) in fp32; shorten the chain by
        summing pairwise; in chaotic networks, normalise between layers.

    When to ignore
        When the task metric (accuracy, perplexity) is unchanged: a chaotic network may move far without becoming worse.

    Known limits
        An op that was not shadowed hides its part (see the coverage line). The ledger of the report shows which ops contribute most.
    """

    code = "PL507"
    title = "Error growth without a single culprit"
    kind = Kind.ERROR_GROWTH
    order = 900

    @classmethod
    def claims(cls, fault: Fault) -> bool:
        return unexplained(fault)

    @classmethod
    def message(cls, fault: Fault) -> str:
        drift, drift_u, efficiency = anywhere(fault, "drift"), anywhere(fault, "drift_u"), at_sink(fault, "efficiency")
        numbers = joined(
            f"relative difference {percent(drift)}" if drift is not None else "",
            f"{number(drift_u)} u" if drift_u is not None else "",
            f"projection on the twin {number(efficiency)}" if efficiency is not None else "",
        )
        text = f"{place(fault)} drifts from its fp64 twin, and no single op explains it"
        return sentence(f"{text} ({numbers})" if numbers else text)

    @classmethod
    def advice(cls, fault: Fault) -> str:
        return (
            "Follow the drift column of the ops (--all) to where it rises fastest and carry that quantity (residual stream, recurrent"
            " state, running sum) in fp32 from there on; if unshadowed ops are listed, look at them first."
        )
