"""A search for a subject: its training steps are run with each proposal, in the mode and dtype that the user wants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from precisionlab import session
from precisionlab.errors import PlanError
from precisionlab.planning.apply import PlanMode
from precisionlab.planning.cost import Meter
from precisionlab.planning.search import MAX_AUDITS, Proposal, search
from precisionlab.plans.change import Change, Where
from precisionlab.records import RunRecord, Verdict
from precisionlab.report.model import Report
from precisionlab.subjects.run import run_subject
from precisionlab.subjects.subject import Subject


class Unwatched:
    """Stands in for an audit where a program is only run."""

    def __init__(self, **settings: Any) -> None:
        self.report = Report(Verdict.UNKNOWN, [], [], RunRecord())

    def __enter__(self) -> Unwatched:
        return self

    def __exit__(self, *error: Any) -> None:
        pass


def within(modes: Sequence[AbstractContextManager[Any]], watch: Callable[..., Any]) -> Callable[..., Any]:
    """An audit (made by ``watch``) whose steps, but not the building of the model, run in ``modes``, first one outermost."""

    class Within:
        def __init__(self, **settings: Any) -> None:
            self.audit = watch(**settings)
            self.stack = ExitStack()

        @property
        def report(self) -> Report:
            found: Report = self.audit.report
            return found

        def __enter__(self) -> Within:
            self.stack.enter_context(self.audit)
            for mode in modes:
                self.stack.enter_context(mode)
            return self

        def __exit__(self, *error: Any) -> None:
            self.stack.__exit__(*error)

    return Within


def plan_subject(
    subject: Subject,
    dtype: object = "fp16",
    mode: str = "amp",
    steps: int = 2,
    seed: int = 0,
    *,
    budget: float = 1.0,
    max_audits: int = MAX_AUDITS,
    progress: Callable[[int, Sequence[Change]], None] | None = None,
    allow: Callable[[Change], bool] = lambda change: True,
    **settings: Any,
) -> Proposal:
    """The cheapest changes that make the audit of ``subject`` safe, each tried by an audit of the changed program.

    ``budget``: largest share of the forward FLOPs that may leave the low precision. ``allow`` says which changes may be tried.
    ``settings`` are those of ``audit_subject``.

    Raises ``PlanError`` when a plan exists but costs more than ``budget``: the message says what comes nearest.
    """
    audits = 0

    def run(changes: Sequence[Change], watch: Callable[..., Any], *modes: Any, **more: Any) -> Report:
        scale = next((c.scale for c in changes if c.where is Where.SCALE), None)
        how = "master" if any(c.where is Where.MASTERS for c in changes) else mode
        lowered = next((c.plan.storage for c in changes if c.where is Where.DTYPE), dtype)
        watcher = within(modes, watch)
        return run_subject(subject, lowered, how, steps, seed, watch=watcher, init_scale=scale, **more).report

    def audit(changes: Sequence[Change]) -> Report:
        nonlocal audits
        audits += 1
        if progress is not None:
            progress(audits, changes)
        return run(changes, session.audit, PlanMode(changes), **settings)

    proposal = search(audit, mode, budget=max_audits, allow=allow)
    if proposal.changes:
        meter = Meter(proposal.changes)
        run(proposal.changes, Unwatched, meter.plan, meter)
        proposal.cost = meter.shares()
    if proposal.cost.get("flops", 0.0) > budget:
        places = "; ".join(change.place for change in proposal.changes)
        raise PlanError(
            f"no plan within --budget {budget:g}: the nearest moves {proposal.cost['flops']:.1%} of the forward FLOPs to fp32 ({places})",
            hint=f"--budget {min(1.0, proposal.cost['flops'] * 1.01):.2g}, or the other half format",
        )
    return proposal
