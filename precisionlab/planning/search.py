"""The fewest changes that make a program safe: attributed faults first, each proposal applied and audited again.

No bisection by re-running: which op to change follows from the findings, ordered worst first, and from the ledger; turning single ops to
fp32 and comparing losses would measure the rounding noise of the rest (correlation 0.2 with an op's real share).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from precisionlab.plans.change import Change, Where
from precisionlab.plans.ladder import rungs, unit_roundoff
from precisionlab.records import Verdict
from precisionlab.report.model import Finding, OpVerdict, Report

MAX_AUDITS = 12
"""Audits that a search may run, the first one included."""

Audit = Callable[[Sequence[Change]], Report]
"""Runs the program with these changes and reports."""


@dataclass
class Proposal:
    """What a search found."""

    before: Report
    after: Report
    changes: list[Change]
    audits: int
    unrepaired: list[Finding] = field(default_factory=list)
    """Broken findings for which no change helped."""
    cost: dict[str, float] = field(default_factory=dict)
    """Shares of FLOPs, bytes and parameters that leave the low precision."""

    @property
    def repaired(self) -> bool:
        """Whether the changed program has no broken finding left."""
        return self.after.verdict is not Verdict.BROKEN and not _broken(self.after)


def search(audit: Audit, mode: str = "", *, budget: int = MAX_AUDITS, allow: Callable[[Change], bool] = lambda change: True) -> Proposal:
    """Lift what the findings name, until no broken finding is left, the budget of audits is used up, or nothing helps.

    ``mode`` as in ``plans.ladder.rungs``. ``allow`` says which changes are permitted.
    """
    before = current = audit(())
    audits = 1
    changes: list[Change] = []
    given_up: set[tuple[Any, ...]] = set()
    while audits < budget:
        finding = next((f for f in _broken(current) if _key(f) not in given_up), None)
        if finding is None:
            break
        helped = False
        for rung in rungs(finding, current, mode):
            if audits >= budget:
                break
            if not allow(rung) or any(rung.same_region(change) for change in changes):
                continue
            tried = [*(c for c in changes if not _covers(rung, c)), rung]
            report = audit(tried)
            audits += 1
            if _better(finding, current, report):
                changes, current, helped = tried, report, True
                break
        if not helped:
            given_up.add(_key(finding))
    changes, current, more = _pruned(audit, changes, current, budget - audits)
    measured = [replace(change, measured_error=_measured(change, current)) for change in changes]
    return Proposal(before, current, measured, audits + more, _broken(current))


def _broken(report: Report) -> list[Finding]:
    return [f for f in report.findings if f.verdict is Verdict.BROKEN]


def _key(finding: Finding) -> tuple[Any, ...]:
    return (finding.code, finding.module, finding.op, finding.source, finding.phase)


def _better(finding: Finding, before: Report, after: Report) -> bool:
    """The finding is gone, nothing raised, and no more is broken than before."""
    if after.record.error is not None and before.record.error is None:
        return False
    left = {_key(f) for f in _broken(after)}
    same_line = {(f.source, f.kind) for f in _broken(after)}
    return _key(finding) not in left and (finding.source, finding.kind) not in same_line and len(left) <= len(_broken(before))


def _covers(wide: Change, narrow: Change) -> bool:
    """Whether one region holds the other."""
    if not (wide.is_region and narrow.is_region):
        return wide.where is narrow.where
    if wide.where is Where.PROGRAM:
        return True
    if wide.where is Where.MODULE:
        return narrow.module == wide.module or narrow.module.startswith(f"{wide.module}.")
    if wide.where is Where.FUNCTION:
        return narrow.where is Where.LINE and (narrow.file, narrow.function) == (wide.file, wide.function)
    return False


def _pruned(audit: Audit, changes: list[Change], report: Report, budget: int) -> tuple[list[Change], Report, int]:
    """Without the changes that later ones made superfluous."""
    used = 0
    if len(changes) < 2 or _broken(report):
        return changes, report, used
    for change in list(changes[:-1]):
        if used >= budget:
            break
        fewer = [c for c in changes if c is not change]
        again = audit(fewer)
        used += 1
        if not _broken(again) and again.record.error is None:
            changes, report = fewer, again
    return changes, report, used


def _measured(change: Change, report: Report) -> float | None:
    """Largest mean drift of the ops in a region, relative: what the last audit found there."""
    if not change.is_region:
        return None
    return max((op.drift_u * (unit_roundoff(op.plan.storage) or 0.0) for op in report.ops if _inside(op, change)), default=None)


def _inside(op: OpVerdict, change: Change) -> bool:
    if change.where is Where.LINE:
        return op.source == f"{change.file}:{change.line}"
    if change.where is Where.FUNCTION:
        return op.source.startswith(f"{change.file}:") and (op.module == change.module or not change.module)
    return change.where is Where.PROGRAM or op.module == change.module or op.module.startswith(f"{change.module}.")
