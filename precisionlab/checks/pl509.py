"""PL509: errors that grow exponentially."""

from precisionlab.checks.base import Check, Fault, check
from precisionlab.checks.facts import anywhere, detail_is, event_is
from precisionlab.checks.wording import number, place, sentence
from precisionlab.records import EventKind, Kind


@check
class ExponentialGrowth(Check):
    """Every layer, or every step of a sequence, multiplies the error that it inherits.

    What it means
        Measured at several sizes, the error grows by a constant factor per unit of size, and a power law fits worse. Each layer then
        amplifies differences more than it amplifies the signal: the network is chaotic, and rounding is such a difference.

    Why it hurts
        A format with k more bits holds only for k ln 2 / rate more layers: neither bf16 nor fp16 nor fp32 is safe for long. The same
        amplification makes gradients explode.

    How it is measured
        Drift and gradient errors at several sizes and seeds; flat, power, exponential and saturating laws, chosen by AIC; the finding
        needs an exponential law whose rate has a 95 % interval above 0. No threshold. Source: Poole et al. 2016 (arXiv:1606.05340),
        Schoenholz et al. 2017 (arXiv:1611.01232): the rate is half the logarithm of the gain of a perturbation over that of the signal.

    Smallest example
        import torch
        torch.manual_seed(0)
        x = torch.randn(256, dtype=torch.float64)
        y = x * (1 + 2.0**-11)                                  # one rounding away
        for _ in range(60):
            w = 2.0 * torch.randn(256, 256, dtype=torch.float64) / 16
            x, y = torch.tanh(w @ x), torch.tanh(w @ y)
        assert (y - x).norm() / x.norm() > 0.05

    Fix
        Bring the gain per layer to 1: smaller initial weights, pre-normalisation instead of post-normalisation, a factor on each residual
        branch. More digits only move the depth at which it happens.

    When to ignore
        Where the depths in use end well before the drift becomes material (the forecast says where), or after training has tamed the
        gain: measure with trained weights.

    Known limits
        A few sizes close to each other cannot tell an exponential from a power law; then the report names both.
    """

    code = "PL509"
    title = "Errors grow exponentially"
    kind = Kind.ERROR_GROWTH
    order = 10

    @classmethod
    def claims(cls, fault: Fault) -> bool:
        return event_is(fault, EventKind.GROWTH) and detail_is(fault, "exponential")

    @classmethod
    def message(cls, fault: Fault) -> str:
        rate, doubling = anywhere(fault, "rate"), anywhere(fault, "doubling")
        axis = fault.text("axis", "size")
        numbers = f": rate {number(rate)}, doubling every {number(doubling)}" if rate is not None and doubling is not None else ""
        return sentence(f"the {fault.text('quantity', 'error')} of {place(fault)} grows exponentially with {axis}{numbers}")

    @classmethod
    def advice(cls, fault: Fault) -> str:
        return (
            "Lower the gain per layer: pre-norm instead of post-norm, a factor of 1/sqrt(2 depth) on each residual branch, or smaller"
            " initial weights; a wider format only postpones it."
        )
