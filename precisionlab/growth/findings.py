"""Findings about growth, in the words of their checks, and the report of a sweep. No torch in here."""

from __future__ import annotations

import math
import re

from precisionlab.checks.base import Fault
from precisionlab.growth.analysis import AxisGrowth, Trend, is_growing
from precisionlab.growth.fits import Fit, Law
from precisionlab.growth.measurement import Quantity
from precisionlab.growth.words import PARTIAL_SUMS, name_of
from precisionlab.records import EventKind, EventRecord, Evidence, Phase, Site, Verdict
from precisionlab.report.judge import finding_of
from precisionlab.report.model import Finding, Report

_PLACE = re.compile(r"(\S+) \((.+)\)")


def add_findings(report: Report, found: list[AxisGrowth], targets: dict[str, float]) -> None:
    """Adds what growth tells to the report of the largest run, and worsens its verdict accordingly."""
    import precisionlab.checks.catalogue  # noqa: F401  registers the checks

    new = [finding for growth in found for trend in growth.trends for finding in _findings(trend, targets.get(trend.axis))]
    report.findings = sorted([*report.findings, *new], key=lambda f: -f.verdict.severity)
    report.verdict = Verdict.worst([report.verdict, *(f.verdict for f in new)])


def _findings(trend: Trend, target: float | None) -> list[Finding]:
    faults = [_exponential(trend), _partial_sums(trend), _crossing(trend, target)]
    found = [finding_of(fault) for fault in faults if fault is not None]
    return [finding for finding in found if finding is not None]


def _exponential(trend: Trend) -> Fault | None:
    law = trend.law
    errors = trend.quantity in (Quantity.DRIFT, Quantity.GRADIENT)
    if not errors or not isinstance(law, Fit) or law.law is not Law.EXPONENTIAL or not is_growing(law):
        return None
    return _fault(trend, "exponential", Verdict.RISKY, {"rate": law.exponent, "doubling": math.log(2) / law.exponent, "r2": law.r2})


def _partial_sums(trend: Trend) -> Fault | None:
    law = trend.law
    if trend.axis not in PARTIAL_SUMS or trend.quantity is not Quantity.GRADIENT or not isinstance(law, Fit) or not is_growing(law):
        return None
    return _fault(trend, "partial sums", Verdict.RISKY, {"exponent": law.exponent, "last_u": trend.values[-1]})


def _crossing(trend: Trend, target: float | None) -> Fault | None:
    forecast = trend.forecast
    if forecast is None or target is None or forecast.low > target:
        return None
    verdict = Verdict.BROKEN if forecast.high <= target else Verdict.RISKY
    size, low, high = (_rounded(n) for n in (forecast.size, forecast.low, forecast.high))
    numbers: Evidence = {"size": size, "low": low, "high": high, "target": target, "limit": forecast.limit}
    return _fault(trend, "crossing", verdict, numbers)


def _rounded(size: float) -> float:
    """Three significant digits."""
    return float(f"{size:.3g}")


def _fault(trend: Trend, detail: str, verdict: Verdict, numbers: Evidence) -> Fault:
    gradients = trend.quantity is Quantity.GRADIENT
    match = _PLACE.fullmatch(trend.place)
    op, source = (match.group(1), match.group(2)) if match else ("gradients" if gradients else "module outputs", "")
    site = Site("", op, Phase.BACKWARD if gradients else Phase.FORWARD, source)
    evidence: Evidence = {"axis": trend.axis, "quantity": name_of(trend.quantity), "dtype": trend.dtype, **numbers}
    return Fault(EventRecord(-1, EventKind.GROWTH, site, frozenset(), 1, 0, evidence, detail), None, verdict)
