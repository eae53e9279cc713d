"""A proposal as text, as JSON, and as Python to paste. The JSON is a plan file too: ``pl.apply_plan(model, "plan.json")`` reads it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from precisionlab.planning.search import Proposal
from precisionlab.plans.change import PLAN_VERSION, Change, Where
from precisionlab.records import Verdict
from precisionlab.report.lines import labelled, plural, table, wrap
from precisionlab.report.model import Report
from precisionlab.report.to_json import number

_HEADERS = ("change", "in", "predicted", "measured", "because")


def to_dict(proposal: Proposal, model: str = "", dtype: str = "") -> dict[str, Any]:
    """``{before, after, changes, audits, cost}`` as plain values, with the head of a plan file."""
    return {
        "plan_version": PLAN_VERSION,
        "model": model,
        "dtype": dtype,
        "before": _summary(proposal.before),
        "after": _summary(proposal.after),
        "changes": [_change(change) for change in proposal.changes],
        "audits": proposal.audits,
        "cost": {name: number(share) for name, share in proposal.cost.items()},
    }


def to_json(proposal: Proposal, model: str = "", dtype: str = "") -> str:
    """``to_dict`` as text."""
    return json.dumps(to_dict(proposal, model, dtype), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def to_text(proposal: Proposal, width: int = 80) -> str:
    """What is wrong before, what to change, and what the audit of the changed program says."""
    lines = wrap(_title(proposal), width)
    if proposal.changes:
        rows = [[c.place, c.plan.compute, _error(c.predicted_error), _error(c.measured_error), c.reason] for c in proposal.changes]
        lines += [*wrap("", width), *table(_HEADERS, rows, width, flexible=(0, 4), right=(2, 3))]
        lines += wrap("predicted and measured: relative error of what the region computes", width)
    lines += wrap("", width)
    lines += labelled("before", _sentence(proposal.before), width)
    lines += labelled("after", _sentence(proposal.after), width)
    if proposal.cost:
        lines += labelled("cost", _cost(proposal), width)
    for finding in proposal.unrepaired:
        lines += labelled("left", f"{finding.code} {finding.kind} in {finding.op} at {finding.source}: {finding.advice}", width)
    text = "\n".join(line.text for line in lines) + "\n"
    return text + ("\n" + snippet(proposal.changes) if proposal.changes else "")


def snippet(changes: list[Change]) -> str:
    """Python that applies the changes."""
    lines = []
    if any(change.is_region for change in changes):
        lines += [
            "import precisionlab as pl",
            "",
            'with pl.apply_plan(model, "plan.json"):  # precisionlab plan ... -o plan.json',
            "    ...  # your steps",
        ]
    for change in changes:
        if change.where is Where.SCALE:
            lines.append(f"scaler = torch.amp.GradScaler(init_scale={change.scale:g})")
        elif change.where is Where.DTYPE:
            lines.append(f"dtype = torch.{'bfloat16' if change.plan.storage == 'bf16' else 'float16'}")
        elif change.where is Where.MASTERS:
            lines.append("masters = [p.detach().float().requires_grad_() for p in model.parameters()]  # for the optimizer")
    return "\n".join(lines) + "\n"


def _title(proposal: Proposal) -> str:
    n = len(proposal.changes)
    runs = f"{proposal.audits} audit{plural(proposal.audits)}"
    if not n and not proposal.unrepaired:
        return f"Nothing to change: the audit finds nothing broken ({runs})."
    if proposal.repaired:
        return f"{n} change{plural(n)} make{'' if n > 1 else 's'} it work ({runs}, the last one of the changed program)."
    return f"No plan repairs all of it: {len(proposal.unrepaired)} broken finding{plural(len(proposal.unrepaired))} left after {runs}."


def _cost(proposal: Proposal) -> str:
    shares = ", ".join(f"{share:.1%} of the {name}" for name, share in proposal.cost.items())
    return f"{shares.replace('flops', 'FLOPs')} of the forward pass leave the low precision"


def _sentence(report: Report) -> str:
    broken = [f for f in report.findings if f.verdict is Verdict.BROKEN]
    first = f", first {broken[0].code} in {broken[0].op} at {broken[0].source}" if broken else ""
    risky = sum(f.verdict is Verdict.RISKY for f in report.findings)
    raised = f"; raised: {report.record.error}" if report.record.error else ""
    return f"{report.verdict}: {len(broken)} broken, {risky} risky{first}{raised}"


def _error(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}"


def _summary(report: Report) -> dict[str, Any]:
    return {
        "verdict": str(report.verdict),
        "broken": sum(f.verdict is Verdict.BROKEN for f in report.findings),
        "risky": sum(f.verdict is Verdict.RISKY for f in report.findings),
        "findings": [f.fingerprint for f in report.findings],
    }


def _change(change: Change) -> dict[str, Any]:
    row = {**asdict(change), "where": str(change.where)}
    for key in ("predicted_error", "measured_error", "scale"):
        row[key] = number(row[key])
    return row
