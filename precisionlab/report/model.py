"""``Report``, ``Finding`` and ``OpVerdict``: what the judge concluded, ready to render. No torch in here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from precisionlab.records import Evidence, Kind, Phase, Plan, RunRecord, Verdict


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault, at the op that introduced it, with its consequence and its repair."""

    code: str
    kind: Kind
    verdict: Verdict
    phase: Phase
    module: str
    op: str
    source: str
    parameter: str | None
    message: str
    evidence: Evidence
    advice: str
    count: int
    first_step: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Column:
    """One of the three parts of a dtype plan, judged."""

    verdict: Verdict
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class OpVerdict:
    """The verdict on one (module, op, phase, source line)."""

    module: str
    op: str
    phase: Phase
    source: str
    count: int
    plan: Plan
    verdict: Verdict
    storage: Column
    compute: Column
    accumulation: Column
    drift_u: float
    rho_p99: float
    rho_max: float
    gain: float
    loss_share: float | None = None
    trials: tuple[dict[str, Any], ...] = ()


@dataclass(slots=True)
class Report:
    """The result of an audit. ``findings`` and ``ops`` are worst first."""

    verdict: Verdict
    findings: list[Finding]
    ops: list[OpVerdict]
    record: RunRecord
    inherited: int = 0
    """Op sites that only inherited the damage of the findings."""
    quiet_events: int = 0
    """Event occurrences that reached no sink materially."""
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The JSON report (``schema_version`` 1) as plain Python values; NaN and infinities as strings."""
        from precisionlab.report.to_json import report_to_dict

        return report_to_dict(self)

    def __repr__(self) -> str:
        worst = f", worst {self.findings[0].code} at {self.findings[0].op}" if self.findings else ""
        return f"<Report {self.verdict}: {len(self.findings)} findings{worst}, {len(self.ops)} op sites>"

    def __str__(self) -> str:
        from precisionlab.report.table import render_table

        return render_table(self)

    def _repr_html_(self) -> str:
        from precisionlab.report.fragment import render_fragment

        return render_fragment(self)
