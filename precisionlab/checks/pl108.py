"""PL108: domain faults."""

from precisionlab.checks.base import Check, Fault, check
from precisionlab.checks.facts import event_is
from precisionlab.checks.range_repairs import domain_repair
from precisionlab.checks.wording import counted, fmt, passing, place, sentence
from precisionlab.records import EventKind, Kind

_HOW = {
    "log": "an argument that had been rounded to 0 or below",
    "log2": "an argument that had been rounded to 0 or below",
    "log10": "an argument that had been rounded to 0 or below",
    "log1p": "an argument that had been rounded to -1 or below",
    "acos": "an argument that had been rounded beyond [-1, 1]",
    "asin": "an argument that had been rounded beyond [-1, 1]",
    "atanh": "an argument that had been rounded onto or beyond [-1, 1]",
    "sqrt": "an argument that had been rounded below 0",
    "rsqrt": "an argument that had been rounded to 0 or below",
    "div": "a divisor that had been rounded to 0",
    "reciprocal": "a divisor that had been rounded to 0",
}


@check
class DomainFault(Check):
    """Rounding moved an operand out of the domain of a function, which answered with inf or NaN.

    What it means
        log of a 0 that should be 1e-9, acos of 1.001 that should be 1, a root of -1e-4 that should be 0, a division by a difference
        that came out as 0. The function is right about the operand it got; the operand is not what the mathematics says.

    Why it hurts
        The value becomes -inf, inf or NaN and so does everything computed from it; the gradient of log and sqrt is infinite there even
        where the value is masked out later.

    How it is measured
        The op in fp64 on the same narrow operands is non-finite too (so it is no overflow), while the fp64 twin, computed from unrounded
        operands, is finite. No threshold. Source: origin rule for non-finite values (overflow versus domain).

    Smallest example
        import torch, torch.nn.functional as F
        z = torch.tensor(9.0, dtype=torch.float16)
        bad = torch.log(1 - torch.sigmoid(z))    # log(0) = -inf: sigmoid(9) rounds to 1
        good = F.logsigmoid(-z)                  # -9.0
        assert bad.isinf() and good.isfinite()

    Fix
        Use the fused form that never leaves the domain: log_softmax, logsigmoid, log1p, expm1, logaddexp,
        binary_cross_entropy_with_logits. Where there is none, compute the argument in fp32 and clamp it to the domain.

    When to ignore
        When the value is masked out and no gradient flows through it. Note that a mask by multiplication does not do that: 0 * inf = NaN.

    Known limits
        Where fp64 is out of the domain as well, the program itself is at fault, not the format, and nothing is reported. fp64 twins
        can underflow too (log(softmax) beyond a gap of 745).
    """

    code = "PL108"
    title = "Operand rounded out of the domain of a function"
    kind = Kind.DOMAIN
    order = 100

    @classmethod
    def claims(cls, fault: Fault) -> bool:
        return event_is(fault, EventKind.DOMAIN)

    @classmethod
    def message(cls, fault: Fault) -> str:
        function = fault.event.detail if fault.event is not None else ""
        how = _HOW.get(function, "operands that rounding had moved out of its domain")
        text = f"{place(fault)} gets {how} in {fmt(fault)}{passing(fault)}: {counted(fault, 'nonfinite', 'results')} became non-finite"
        return sentence(text)

    @classmethod
    def advice(cls, fault: Fault) -> str:
        return domain_repair(fault)
