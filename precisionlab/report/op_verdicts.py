"""The row of one op: its three columns, from the findings at it, the numbers measured of it, and its trials."""

from __future__ import annotations

from typing import Any

from precisionlab.plans.classify import classify, on_target, trial_verdict
from precisionlab.records import OpRecord, TrialRecord, TrialRole, Verdict
from precisionlab.report.model import Column, Finding, OpVerdict
from precisionlab.thresholds import Thresholds


def op_verdict(op: OpRecord, findings: list[Finding], limits: Thresholds, loss_share: float | None) -> OpVerdict:
    """Verdicts of what ran come from findings: numbers alone are no fault. Of sums, trials warn besides, and convict for a target."""
    site = op.site
    mine = [f for f in findings if (f.module, f.op, f.source, f.phase) == (site.module, site.op, site.source, site.phase)]
    in_storage = [f for f in mine if f.code.startswith("PL1") or f.code.startswith("PL2")]
    in_sums = [f for f in mine if f.code in ("PL102", "PL502", "PL503", "PL601", "PL203", "PL301", "PL302")]
    in_compute = [f for f in mine if f not in in_storage and f not in in_sums]
    numbers = classify(op, limits)
    accumulation = Verdict.worst([*(f.verdict for f in in_sums), _tried(op, limits)])
    return OpVerdict(
        site.module,
        site.op,
        site.phase,
        site.source,
        op.count,
        op.plan,
        Verdict.worst([accumulation, *(f.verdict for f in mine)]) if op.shadowed else Verdict.UNKNOWN,
        Column(Verdict.worst([f.verdict for f in in_storage if f not in in_sums]), numbers.storage.evidence),
        Column(Verdict.worst([f.verdict for f in in_compute]), numbers.compute.evidence),
        Column(accumulation, numbers.accumulation.evidence),
        op.drift_u,
        op.rho_p99,
        op.rho_max,
        op.gain_max,
        loss_share,
        tuple(_trial(trial, limits) for trial in op.trials),
    )


def _tried(op: OpRecord, limits: Thresholds) -> Verdict:
    """What trials say of the sums of an op: risky at most where they ran, since no sink was reached; anything on a target."""
    if any(trial.role is TrialRole.TARGET for trial in op.trials):
        return on_target(op, limits)[0]
    broken = any(trial.role is TrialRole.EXECUTED and trial_verdict(trial, limits) is Verdict.BROKEN for trial in op.trials)
    return Verdict.RISKY if broken else Verdict.SAFE


def _trial(trial: TrialRecord, limits: Thresholds) -> dict[str, Any]:
    return {
        "plan": trial.plan,
        "role": str(trial.role),
        "verdict": str(trial_verdict(trial, limits)),
        "error_u": trial.error_u,
        "error_max_u": trial.error_max_u,
        "rho_max": trial.rho_max,
        "rho_p99": trial.rho_p99,
        "emulated": trial.emulated,
        "terms": trial.terms,
        "outputs": trial.outputs,
        "largest_outputs": trial.largest,
        "stagnated_terms_share": trial.stagnated_terms,
        "stagnated_outputs": trial.stagnated + trial.largest_stagnated,
        "stagnated_interval": [trial.stagnated_low, trial.stagnated_high],
        "overflowed_outputs": trial.overflowed + trial.largest_overflowed,
        "overflowed_interval": [trial.overflowed_low, trial.overflowed_high],
    }
