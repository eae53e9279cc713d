"""What the numbers of an op say of a dtype plan: storage, compute and accumulation, each safe, risky or broken. No torch.

A pure function of a record and the thresholds, for the plan that ran and for plans that did not. It judges numbers, not consequences: a
mask that overflows to -inf is broken storage here and no fault of the run, whose verdict comes from what reaches its sinks
(``report.judge``). What was not measured is unknown, and is never called safe.

Of two plans, the wider is never judged worse. Each column follows from one of two kinds of evidence. Ranges are computed: the largest and
the typical magnitude of the exact results against those of the format. Errors carry over: what was safe in a format is safe in every one
that holds its numbers; a format that holds none of those tried is at least as bad as the worst of them, and no better than unknown.

Source of the rules: Higham 2002, chapters 2 to 4, for ranges and bounds; their limits are in ``thresholds``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from precisionlab.errors import SettingsError
from precisionlab.formats import BF16, FP16, FP32, Format, Overflow, Specials, get_format
from precisionlab.plans.plan import DtypePlan, holds
from precisionlab.records import Evidence, OpRecord, Phase, TrialRecord, TrialRole, Verdict
from precisionlab.thresholds import Thresholds

SUMMING = frozenset(("dot", "convolution", "reduction", "softmax", "normalisation", "scan", "attention", "indexing", "loss"))
"""Families whose arithmetic is a sum: what is measured of it concerns what the sum is kept in."""
_SCALED = frozenset((Phase.BACKWARD, Phase.CLIP, Phase.SCALER))
"""Phases in which values carry a loss scale, which a scaler moves to where they fit: their magnitude says nothing of the program."""


@dataclass(frozen=True)
class Judged:
    """One column of a plan: the verdict, and the numbers it rests on."""

    verdict: Verdict
    evidence: Evidence


@dataclass(frozen=True)
class Columns:
    """The three columns of one plan of one op."""

    storage: Judged
    compute: Judged
    accumulation: Judged

    @property
    def verdict(self) -> Verdict:
        """The worst of the three."""
        return Verdict.worst((self.storage.verdict, self.compute.verdict, self.accumulation.verdict))


def classify(op: OpRecord, limits: Thresholds, plan: DtypePlan | None = None) -> Columns:
    """The columns of ``plan`` for what ``op`` was seen to compute; of the op as it runs where that is None.

    A plan says in which format sums are kept and not in which order: one after the other is assumed, which loses most. An op as it runs
    is judged in its own order, on the target machine if there is one. Everything is unknown for results that are no real floating-point
    numbers, and for an op without a twin.
    """
    ran = plan_of(op)
    if ran is None or not op.shadowed:
        return Columns(*(Judged(Verdict.UNKNOWN, evidence) for evidence in (_range_evidence(op), _error_evidence(op), _sum_evidence(op))))
    sums = _sums_as_they_run(op, limits) if plan is None else _sums_in(op, limits, ran, plan.accumulation)
    return Columns(_storage(op, limits, ran, (plan or ran).storage), _compute(op, limits, ran, (plan or ran).compute), sums)


def matrix(op: OpRecord, limits: Thresholds | None = None, plans: Iterable[DtypePlan] | None = None) -> dict[DtypePlan, Verdict]:
    """Plan -> verdict, in the order of ``plans``; None: what mixed precision can choose from, and the formats of the plan that ran.

    Empty for an op whose results are no real floating-point numbers.
    """
    ran = plan_of(op)
    if ran is None:
        return {}
    limits = limits or Thresholds()
    chosen = dict.fromkeys((*usual_plans(), ran) if plans is None else plans)
    return {plan: classify(op, limits, plan).verdict for plan in chosen}


def usual_plans() -> tuple[DtypePlan, ...]:
    """fp32, and each half with its arithmetic and sums in fp32, its sums in itself, and everything in itself."""
    halves = [plan for half in (BF16, FP16) for plan in (DtypePlan(half, FP32, FP32), DtypePlan(half, FP32, half), DtypePlan.uniform(half))]
    return DtypePlan.uniform(FP32), *halves


def plan_of(op: OpRecord) -> DtypePlan | None:
    """The plan of a record as formats; None for complex numbers, integers and what else has no format."""
    try:
        return DtypePlan(*(format_of(name) for name in (op.plan.storage, op.plan.compute, op.plan.accumulation)))
    except SettingsError:
        return None


def format_of(name: str) -> Format:
    """``fp16``; ``14-bit`` and ``e8m13`` for an accumulator with that many digits and the exponents of fp32. Raises: SettingsError."""
    digits, _, rest = name.partition("-bit")
    if digits.isdigit() and not rest and name != digits:
        return _accumulator(int(digits))
    if name.startswith("e8m") and name[3:].isdigit():
        return _accumulator(int(name[3:]) + 1)
    return get_format(name)


def _accumulator(precision: int) -> Format:
    return Format(f"e8m{precision - 1}", precision, 8, 127, Specials.IEEE, Overflow.INFINITY)


# Storage: ranges.


def _storage(op: OpRecord, limits: Thresholds, ran: DtypePlan, fmt: Format) -> Judged:
    evidence = _range_evidence(op)
    if op.site.phase in _SCALED or not op.true_max_abs > 0.0:
        return Judged(Verdict.SAFE if holds(fmt, ran.storage) else Verdict.UNKNOWN, evidence)
    share, flushed = _flushed(op, limits, ran.storage, fmt)
    headroom = math.log2(fmt.max) - math.log2(op.true_max_abs)
    over = Verdict.BROKEN if headroom < 0.0 else Verdict.RISKY if headroom < limits.headroom_log2 else Verdict.SAFE
    return Judged(Verdict.worst((flushed, over)), evidence | {"flushed_energy_share": share, "headroom_log2": headroom})


def _range_evidence(op: OpRecord) -> Evidence:
    return {"max_abs": op.max_abs, "flushed_energy_share": op.flushed_energy_share, "introduced_nonfinite": op.introduced_nonfinite}


def _flushed(op: OpRecord, limits: Thresholds, ran: Format, fmt: Format) -> tuple[float, Verdict]:
    """Share of the energy of a result that ``fmt`` turns into zero, and what that means.

    No more than (threshold / rms)^2 can be lost, since only what lies below the threshold is; everything is where the largest does. A
    finer format flushes no more than the one that ran, a coarser one no less.
    """
    measured = op.flushed_energy_share
    if fmt.min_subnormal == ran.min_subnormal:
        return measured, _flush_verdict(measured, limits)
    threshold, largest = fmt.flush_threshold, op.true_max_abs
    bound = min(1.0, (threshold / op.true_rms) ** 2) if op.true_rms > 0.0 else 0.0
    if fmt.min_subnormal < ran.min_subnormal:
        share = min(measured, bound) if op.true_rms > 0.0 else measured
        return share, _flush_verdict(share, limits)
    share = 1.0 if 0.0 < largest <= threshold else measured
    verdict = _flush_verdict(share, limits)
    if verdict is Verdict.SAFE and bound > limits.flush_share_risky:
        return share, Verdict.UNKNOWN
    return share, verdict


def _flush_verdict(share: float, limits: Thresholds) -> Verdict:
    if share > limits.flush_share:
        return Verdict.BROKEN
    return Verdict.RISKY if share > limits.flush_share_risky else Verdict.SAFE


# Compute and accumulation: errors.


def _compute(op: OpRecord, limits: Thresholds, ran: DtypePlan, fmt: Format) -> Judged:
    """For ops that sum, the error of their arithmetic belongs to the accumulation."""
    measured = Verdict.SAFE if op.family in SUMMING else _measured(op, limits)
    return Judged(_carried({ran.compute: measured}, fmt), _error_evidence(op))


def _error_evidence(op: OpRecord) -> Evidence:
    return {"gain": op.gain_max, "local_error_u": op.local_error_u, "local_checks": op.local_checks}


def _sums_as_they_run(op: OpRecord, limits: Thresholds) -> Judged:
    target = [trial for trial in op.trials if trial.role is TrialRole.TARGET]
    trials = target or [trial for trial in op.trials if trial.role is TrialRole.EXECUTED]
    measured = Verdict.SAFE if target or op.family not in SUMMING else _measured(op, limits)
    worst = max(trials, key=lambda trial: (trial_verdict(trial, limits).severity, trial.error_u), default=None)
    evidence = _sum_evidence(op) | (trial_evidence(worst) if worst is not None else {})
    return Judged(Verdict.worst([measured, *(trial_verdict(trial, limits) for trial in trials)]), evidence)


def _sums_in(op: OpRecord, limits: Thresholds, ran: DtypePlan, fmt: Format) -> Judged:
    if op.family not in SUMMING or (op.family == "indexing" and not op.trials and not op.trials_skipped):
        return Judged(Verdict.SAFE, _sum_evidence(op))  # it sums nothing
    in_order = [trial for trial in op.trials if trial.order == "sequential"]
    known: dict[Format, Verdict] = {}
    for trial in in_order:
        tried = format_of(trial.accumulation)
        known[tried] = Verdict.worst([trial_verdict(trial, limits), known.get(tried, Verdict.SAFE)])
    if not any(trial.role is TrialRole.TARGET for trial in op.trials):
        own = _measured(op, limits)
        if own is not Verdict.SAFE or ran.accumulation not in known:
            known[ran.accumulation] = Verdict.worst([own, known.get(ran.accumulation, Verdict.SAFE)])
    shown = next((trial for trial in in_order if trial.accumulation == fmt.name), None)
    return Judged(_carried(known, fmt), _sum_evidence(op) | (trial_evidence(shown) if shown is not None else {}))


def _sum_evidence(op: OpRecord) -> Evidence:
    evidence: Evidence = {"rho_max": op.rho_max, "rho_p99": op.rho_p99, "reduction_length": op.reduction_length}
    return evidence | {"trials": f"none: {op.trials_skipped}"} if op.trials_skipped else evidence


def _carried(known: dict[Format, Verdict], fmt: Format) -> Verdict:
    """The verdict for ``fmt`` from those of other formats.

    The best of the formats it holds, if that is safe or ``fmt`` is one of them. If it is wider than any of those and none was safe, nobody
    knows, but it is no better than a tried format that is wider still. If it holds none, it is as bad as the worst, at least unknown.
    """
    best = {tried: _best(known[other] for other in known if holds(tried, other)) for tried in known}
    below = [known[other] for other in known if holds(fmt, other)]
    if not below:
        return Verdict.worst([Verdict.UNKNOWN, *known.values()])
    if fmt in known or _best(below) is Verdict.SAFE:
        return _best(below)
    return Verdict.worst([Verdict.UNKNOWN, *(best[wider] for wider in known if holds(wider, fmt))])


def _best(verdicts: Iterable[Verdict]) -> Verdict:
    return min(verdicts, key=lambda verdict: verdict.severity)


def _measured(op: OpRecord, limits: Thresholds) -> Verdict:
    """What the local errors of the op itself say; safe where none was suspicious enough to be measured."""
    return _error_verdict(op.rho_max, op.rho_p99, op.local_error_u, limits)


def _error_verdict(rho_max: float, rho_p99: float, error_u: float, limits: Thresholds) -> Verdict:
    """Broken where the error exceeds its bound by much and the whole result by several roundings; risky where single elements do."""
    if (rho_max > limits.rho or rho_p99 > limits.rho) and error_u > limits.rho_local_u:
        return Verdict.BROKEN
    return Verdict.RISKY if rho_max > limits.rho_risky else Verdict.SAFE


def trial_verdict(trial: TrialRecord, limits: Thresholds) -> Verdict:
    """Broken where partial sums overflow, or stall and cost more than ``rho_local_u``, or err as ``_error_verdict`` has it."""
    if trial.overflows or (trial.stalls and trial.error_u > limits.rho_local_u):
        return Verdict.BROKEN
    return _error_verdict(trial.rho_max, trial.rho_p99, trial.error_u, limits)


def trial_evidence(trial: TrialRecord) -> Evidence:
    """The numbers of a trial, with their units in the names."""
    return {
        "trial": trial.plan,
        "trial_error_u": trial.error_u,
        "trial_error_max_u": trial.error_max_u,
        "trial_rho_max": trial.rho_max,
        "trial_outputs": trial.outputs + trial.largest,
        "stagnated_outputs": trial.stagnated + trial.largest_stagnated,
        "stagnated_share_high": trial.stagnated_high,
        "overflowed_outputs": trial.overflowed + trial.largest_overflowed,
        "overflowed_share_high": trial.overflowed_high,
    }


def on_target(op: OpRecord, limits: Thresholds) -> tuple[Verdict, TrialRecord | None, TrialRecord | None]:
    """Whether the sums of ``op`` are safe on the target machine: the verdict, the worst trial there, and that of the machine that ran it.

    Safe without a target, and where this machine does no better. Broken where partial sums stall or overflow and the result is wrong by
    more than ``rho_local_u``; risky where it is so wrong for another reason.
    """
    there = max(
        (trial for trial in op.trials if trial.role is TrialRole.TARGET),
        key=lambda trial: (trial_verdict(trial, limits).severity, trial.error_u),
        default=None,
    )
    here = next((trial for trial in op.trials if trial.role is TrialRole.EXECUTED), None)
    here = here or next((trial for trial in op.trials if trial.order == "sequential" and trial.accumulation == FP32.name), None)
    if there is None or trial_verdict(there, limits) is not Verdict.BROKEN:
        return Verdict.SAFE, there, here
    if here is not None and trial_verdict(here, limits) is Verdict.BROKEN:
        return Verdict.SAFE, there, here
    error_u = there.error_max_u if there.overflows else there.error_u
    if not error_u > limits.rho_local_u:
        return Verdict.SAFE, there, here
    return Verdict.BROKEN if there.stalls or there.overflows else Verdict.RISKY, there, here
