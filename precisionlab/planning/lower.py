"""The reverse of a repair: starting from fp32, how much of a model may run in a lower format, and what has to stay."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from precisionlab import session
from precisionlab.planning.apply import PlanMode
from precisionlab.planning.cost import Meter
from precisionlab.planning.emulate import Emulated
from precisionlab.planning.render import to_dict
from precisionlab.planning.search import MAX_AUDITS, Proposal, search
from precisionlab.planning.subject import Unwatched, within
from precisionlab.plans.change import Change, Where
from precisionlab.report.lines import table, wrap
from precisionlab.report.model import Report
from precisionlab.subjects.run import run_subject
from precisionlab.subjects.subject import Subject

FORMATS: tuple[tuple[str, str, str], ...] = (
    ("tf32", "fp32", "tf32"),
    ("bf16", "bf16", ""),
    ("fp16", "fp16", ""),
    ("fp8 e4m3/e5m2", "bf16", "fp8"),
)
"""Name, dtype of autocast, and what is emulated at the operands of matrix products."""


@dataclass
class Lowered:
    """One format: the proposal that makes it safe, and the share of the forward FLOPs that then run in it."""

    format: str
    proposal: Proposal
    share: float

    @property
    def repaired(self) -> bool:
        """Whether the model is safe in this format, with what stays in fp32."""
        return self.proposal.repaired


def lower_subject(
    subject: Subject, steps: int, seed: int, progress: Callable[[str], None] | None = None, max_audits: int = MAX_AUDITS, **settings: Any
) -> list[Lowered]:
    """One row for each format of ``FORMATS``, under autocast."""
    rows = []
    for name, dtype, emulated in FORMATS:
        if progress is not None:
            progress(f"lowering to {name}")
        rows.append(_lowered(subject, name, dtype, emulated, steps, seed, max_audits, settings))
    return rows


def _lowered(
    subject: Subject, name: str, dtype: str, emulated: str, steps: int, seed: int, max_audits: int, settings: dict[str, Any]
) -> Lowered:
    def run(changes: Sequence[Change], watch: Callable[..., Any], plan: PlanMode, *modes: Any, **more: Any) -> Report:
        scale = next((c.scale for c in changes if c.where is Where.SCALE), None)
        rounding = [Emulated(emulated, lambda: plan.inside is not None)] if emulated else []
        watcher = within([*rounding, plan, *modes], watch)
        return run_subject(subject, dtype, "amp", steps, seed, watch=watcher, init_scale=scale, **more).report

    proposal = search(lambda changes: run(changes, session.audit, PlanMode(changes), **settings), "amp", budget=max_audits)
    if proposal.changes:
        meter = Meter(proposal.changes)
        run(proposal.changes, Unwatched, meter.plan, meter)
        proposal.cost = meter.shares()
    return Lowered(name, proposal, 1.0 - proposal.cost.get("flops", 0.0) if proposal.repaired else 0.0)


def lowered_to_text(rows: list[Lowered], width: int = 80) -> str:
    """A table: format, share of the forward FLOPs that may run in it, what stays in fp32."""
    cells = [
        [
            row.format,
            f"{row.share:.1%}" if row.repaired else "none",
            "; ".join(change.place for change in row.proposal.changes) or "-",
            str(row.proposal.after.verdict),
        ]
        for row in rows
    ]
    lines = table(("format", "FLOPs", "kept in fp32", "audit"), cells, width, flexible=(2,), right=(1,))
    lines += wrap("FLOPs = share of the forward pass that may run in the format; audit = verdict with what is kept", width)
    return "\n".join(line.text for line in lines) + "\n"


def lowered_to_json(rows: list[Lowered]) -> str:
    """The same as a JSON list."""
    return json.dumps([{"format": row.format, "share": round(row.share, 6), **to_dict(row.proposal)} for row in rows], indent=2) + "\n"
