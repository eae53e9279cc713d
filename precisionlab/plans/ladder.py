"""From a finding to the changes that may repair it, cheapest first. A pure function of the report.

Each rung lifts a wider region around the op at fault: its line, its function, its module, the modules around it, everything. Which rung
comes first follows from the kind of fault: a result that its format cannot hold does not survive the way out of a region of one line, and
a difference that cancels has lost its digits before the line begins.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from precisionlab.formats import BF16, FP32
from precisionlab.formats.catalogue import FORMATS
from precisionlab.plans.change import Change, Where
from precisionlab.records import Kind, Phase, Plan, RunRecord, Site

if TYPE_CHECKING:
    from precisionlab.report.model import Finding, Report

_ONE_LINE = frozenset((Kind.ACCUMULATION, Kind.SWAMPING, Kind.RANGE_CAST, Kind.DOMAIN, Kind.DISCRETE_FLIP))
"""Faults whose exact result the format can hold: one line in fp32 may do."""
_RANGE = frozenset((Kind.OVERFLOW, Kind.UNDERFLOW, Kind.RANGE_CAST))
"""Faults of the range: bf16 has that of fp32."""


def rungs(finding: Finding, report: Report, mode: str) -> Iterator[Change]:
    """Changes that may repair ``finding``, cheapest first. ``mode``: amp, pure, master, or empty for a program that trains by itself."""
    if finding.code.startswith("PL4"):
        return  # the order of calls is wrong: no format repairs it
    if finding.phase is Phase.OPTIMIZER or finding.code in ("PL301", "PL302", "PL303"):
        if mode == "pure":
            yield Change(Where.MASTERS, reason=_reason(finding), predicted_error=FP32.u)
        if finding.phase is Phase.OPTIMIZER:
            return
    if finding.phase is Phase.BACKWARD and finding.kind is Kind.UNDERFLOW and mode in ("amp", "master"):
        scale = _measured_scale(report.record)
        if scale is not None:
            yield Change(Where.SCALE, scale=scale, reason=_reason(finding), predicted_error=_error_of(report, finding))
    yield from _regions(finding, report, mode)


def _regions(finding: Finding, report: Report, mode: str) -> Iterator[Change]:
    site = _site(finding, report)
    file, line = _file_and_line(finding.source)
    error = _error_of(report, finding)
    reason = _reason(finding)
    if file and finding.kind in _ONE_LINE and _fits(finding):
        yield Change(Where.LINE, finding.module, file, site.function if site else "", line, reason=reason, predicted_error=error)
    function = site.function if site is not None else ""
    repeated = len({op.module for op in report.ops if op.source == finding.source}) > 1
    own = bool(finding.module) and function.endswith(".forward") and not repeated  # one module: its path says it better
    if file and function and function != "<module>" and not own:
        yield Change(Where.FUNCTION, finding.module, file, function, reason=reason, predicted_error=error)
    path = finding.module
    while path:
        yield Change(Where.MODULE, path, reason=reason, predicted_error=error)
        path = path.rpartition(".")[0]
    if mode and finding.kind in _RANGE and finding.evidence.get("dtype") == "fp16":
        yield Change(Where.DTYPE, plan=Plan("bf16", "bf16", "fp32"), reason=reason, predicted_error=BF16.u)
    yield Change(Where.PROGRAM, reason=reason, predicted_error=error)


def _site(finding: Finding, report: Report) -> Site | None:
    wanted = (finding.module, finding.op, finding.source, finding.phase)
    for event in report.record.events:
        if (event.site.module, event.site.op, event.site.source, event.site.phase) == wanted:
            return event.site
    for op in report.record.ops:
        if (op.site.module, op.site.op, op.site.source, op.site.phase) == wanted:
            return op.site
    return None


def _file_and_line(source: str) -> tuple[str, int]:
    match = re.fullmatch(r"(.+):(\d+)", source)
    return (match[1], int(match[2])) if match else ("", 0)


def _fits(finding: Finding) -> bool:
    """Whether the exact result is within the range of the format it is stored in."""
    largest, limit = finding.evidence.get("true_max_abs"), finding.evidence.get("format_max")
    if isinstance(largest, (int, float)) and isinstance(limit, (int, float)):
        return math.isfinite(float(largest)) and float(largest) <= float(limit)
    return True


def _error_of(report: Report, finding: Finding) -> float | None:
    """One rounding to the format in which the result leaves the region."""
    stored = (op.plan.storage for op in report.ops if (op.module, op.op, op.source) == (finding.module, finding.op, finding.source))
    return unit_roundoff(next(stored, str(finding.evidence.get("dtype", ""))))


def unit_roundoff(name: str) -> float | None:
    """u of a format by its name; None for what is no format (integers)."""
    return next((fmt.u for fmt in FORMATS if fmt.name == name), None)


def _measured_scale(record: RunRecord) -> float | None:
    window = (record.scaler or {}).get("window")
    advised = window.get("advised_log2") if isinstance(window, dict) else None
    return 2.0 ** float(advised) if isinstance(advised, (int, float)) else None


def _reason(finding: Finding) -> str:
    return f"{finding.code} {finding.kind} in {finding.op} at {finding.source or 'an unknown line'}"
