"""What ``precisionlab plan`` does."""

from __future__ import annotations

from collections.abc import Sequence

from precisionlab.cli.guard import say
from precisionlab.cli.options import AuditOptions
from precisionlab.planning.lower import lower_subject, lowered_to_json, lowered_to_text
from precisionlab.planning.render import to_json, to_text
from precisionlab.planning.subject import plan_subject
from precisionlab.plans.change import Change
from precisionlab.subjects.loader import load_subject


def proposed(target: str, options: AuditOptions, budget: float, max_audits: int, quiet: bool, *, as_json: bool) -> tuple[str, bool]:
    """The proposal as text, and whether it repairs everything."""
    subject = load_subject(target, seed=options.seed)

    def progress(audit: int, changes: Sequence[Change]) -> None:
        if not quiet:
            say(f"audit {audit}: {'; '.join(change.place for change in changes) or 'as it is'}")

    proposal = plan_subject(
        subject,
        options.dtype,
        str(options.mode),
        options.steps,
        options.seed,
        budget=budget,
        max_audits=max_audits,
        progress=progress,
        kernels=options.kernels,
        **options.engine_settings(),
    )
    text = to_json(proposal, subject.name, str(options.dtype)) if as_json else to_text(proposal)
    return text, proposal.repaired


def lowered(target: str, options: AuditOptions, quiet: bool, *, as_json: bool) -> tuple[str, bool]:
    """How much of the model may run in each lower format, and whether any may."""
    subject = load_subject(target, seed=options.seed)
    rows = lower_subject(
        subject,
        options.steps,
        options.seed,
        progress=None if quiet else say,
        kernels=options.kernels,
        **options.engine_settings(),
    )
    return (lowered_to_json(rows) if as_json else lowered_to_text(rows)), any(row.repaired for row in rows)
