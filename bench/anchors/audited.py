"""Small programs under ``pl.audit``, and what their reports say: here the tool itself is the instrument."""

from __future__ import annotations

from collections.abc import Callable

import torch

import precisionlab as pl
from precisionlab.records import EventKind, EventRecord, OpRecord, ParameterRecord

AUDIT = "audit"


def stepped(
    values: torch.Tensor, gradient: torch.Tensor, optimizer: Callable[[list[torch.Tensor]], torch.optim.Optimizer], steps: int = 1
) -> tuple[pl.Report, torch.nn.Parameter]:
    """One parameter that starts at ``values`` and takes ``steps`` optimizer steps with the same ``gradient``; report and parameter."""
    w = torch.nn.Parameter(values.clone())
    chosen = optimizer([w])
    with pl.audit() as audit:
        for _ in range(steps):
            w.grad = gradient.clone()
            chosen.step()
    return audit.report, w


def parameter(report: pl.Report) -> ParameterRecord:
    """The one parameter of a report."""
    (only,) = report.record.parameters
    return only


def op(report: pl.Report, name: str) -> OpRecord:
    """The last site of an op, ``aten.mm``."""
    return [record for record in report.record.ops if record.site.op == name][-1]


def event(report: pl.Report, kind: EventKind, name: str = "") -> EventRecord | None:
    """The first event of a kind, at an op if one is named; None if there is none."""
    found = (e for e in report.record.events if e.kind is kind and name in ("", e.site.op))
    return next(found, None)


def evidence(report: pl.Report, kind: EventKind, key: str, name: str = "") -> float:
    """A number of the first such event; 0 where there is no event, as no such thing happened then."""
    found = event(report, kind, name)
    return 0.0 if found is None else float(found.evidence[key])


def has_finding(report: pl.Report, op_name: str) -> float:
    """1 if a finding names the op, else 0."""
    return float(any(finding.op == op_name for finding in report.findings))
