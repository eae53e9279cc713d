"""PL601: the target machine keeps sums in less than this one does."""

from math import isfinite

from precisionlab.checks.base import Check, Fault, check
from precisionlab.checks.facts import detail_is, event_is, measured
from precisionlab.checks.precision_repairs import accumulation_repair
from precisionlab.checks.wording import fmt, joined, number, passing, place, sentence
from precisionlab.records import EventKind, Kind


@check
class TargetAccumulation(Check):
    """The machine named by --target adds this op's terms up in less than the machine that ran the audit.

    What it means
        On this machine the op is as good as its rounding. The profile of the target says that its kernels keep partial sums in a
        narrower format, or cut them off. On the values of this run such a sum stalls, overflows on the way, or loses its digits.

    Why it hurts
        The program was tried on one machine and will be trained on another. There the result of this op is wrong by many roundings,
        every time, and nothing in the program says so: the dtypes are the same.

    How it is measured
        Outputs of the op are drawn at random, and some of the largest besides (`trial_outputs`, 32). Their terms are added up again as
        the target does, bit for bit, and the stored result is compared with the exact one. A finding needs an error above `rho_local_u`
        (8.0 u) and a partial sum that stalled or overflowed (broken), or an error above `rho` (8.0) times its bound (risky), and a
        machine at hand that does better. Source: profiles from published measurements or from `precisionlab probe`; emulation as
        Fasi, Higham, Mikaitis and Pranesh 2021 describe tensor cores.

    Smallest example
        import torch
        terms = torch.ones(4096, dtype=torch.float16)
        total = torch.zeros((), dtype=torch.float16)
        for term in terms:
            total = total + term                # an fp16 accumulator
        assert total.item() == 2048.0
        assert terms.sum().item() == 4096.0     # this CPU keeps the sum in fp32

    Fix
        Forbid narrow accumulation where the library has a switch for it, split the sum into blocks with an fp32 total, scale the
        operands down where partial sums overflow, or run this op in fp32.

    When to ignore
        When the profile is declared and not probed, and the library that will be used is known to accumulate in fp32.

    Known limits
        Shares hold for the outputs of this run, within their intervals. Sums of more than 8192 terms are tried on their first 8192. Where
        a profile says neither how long blocks are nor in how many parts a product is split, 128 and 8 are assumed.
    """

    code = "PL601"
    title = "Accumulation of the target is too narrow"
    kind = Kind.ACCUMULATION
    order = 50

    @classmethod
    def claims(cls, fault: Fault) -> bool:
        return event_is(fault, EventKind.RHO) and detail_is(fault, "target")

    @classmethod
    def message(cls, fault: Fault) -> str:
        error, here = measured(fault, "trial_error_u"), measured(fault, "executed_error_u")
        sites = measured(fault, "sites")
        plan, target = fault.text("trial", "a narrower accumulator"), fault.text("target", "the target")
        numbers = joined(
            f"{number(error)} u" + (f" instead of {number(here)} u here" if here is not None else "") if error and isfinite(error) else "",
            _outputs(fault, "stagnated_outputs", "stall"),
            _outputs(fault, "overflowed_outputs", "overflow on the way"),
            f"{number(length)} terms" if (length := measured(fault, "reduction_length")) is not None else "",
            f"as in {number(sites - 1)} more site{'' if sites == 2 else 's'}" if sites is not None and sites > 1 else "",
        )
        text = f"{place(fault)} sums {fmt(fault)}{passing(fault)} in {plan} on {target}, which is too little for these values"
        return sentence(f"{text} ({numbers})" if numbers else text)

    @classmethod
    def advice(cls, fault: Fault) -> str:
        return accumulation_repair(fault)


def _outputs(fault: Fault, name: str, verb: str) -> str:
    count, total = measured(fault, name), measured(fault, "trial_outputs")
    if not count or total is None:
        return ""
    return f"{number(count)} of {number(total)} outputs tried {verb}"
