"""Faults that this machine does not have and the target of the audit would: sums kept in less than they were here."""

from __future__ import annotations

from typing import Any

from precisionlab.checks.base import Fault
from precisionlab.plans.classify import on_target, trial_evidence
from precisionlab.records import EventKind, EventRecord, RunRecord, Verdict
from precisionlab.thresholds import Thresholds

TARGET = "target"
"""Detail of the event, which no op of this run raised."""


def target_faults(record: RunRecord, limits: Thresholds) -> list[Fault]:
    """One fault for each op and source line whose sums are safe here and not on the target; the worst site of a line speaks for it."""
    worst: dict[Any, tuple[Fault, float, int]] = {}
    for op in record.ops:
        verdict, there, here = on_target(op, limits)
        if verdict is Verdict.SAFE or there is None:
            continue
        evidence = {
            "dtype": op.plan.storage,
            "target": str(record.settings.get("target", "the target")),
            "accumulation": there.accumulation,
            "reduction_length": op.reduction_length,
            **trial_evidence(there),
        }
        if here is not None:
            evidence |= {"executed": here.plan, "executed_error_u": here.error_u}
        event = EventRecord(-1, EventKind.RHO, op.site, frozenset(), op.count, 0, evidence, TARGET)
        key = (op.site.op, op.site.source, op.site.phase)
        known = worst.get(key)
        sites = 1 + (known[2] if known is not None else 0)
        if known is None or (verdict.severity, there.error_u) > (known[0].verdict.severity, known[1]):
            worst[key] = (Fault(event, None, verdict), there.error_u, sites)
        else:
            worst[key] = (known[0], known[1], sites)
    for fault, _, sites in worst.values():
        if fault.event is not None:
            fault.event.evidence["sites"] = sites
    return [fault for fault, _, _ in worst.values()]
