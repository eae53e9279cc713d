"""The report as a small HTML fragment for notebooks: no scripts, styles inside the elements, everything escaped, under 50 kB."""

from __future__ import annotations

from html import escape

from precisionlab.records import Verdict
from precisionlab.report.model import Finding, Report
from precisionlab.report.to_json import all_notes

MAX_BYTES = 50_000
MAX_FINDINGS = 10
MAX_NOTES = 10
MAX_CHARACTERS = 400
"""Longest text of one cell; the rest is in ``report.findings``."""

_COLOURS = {Verdict.SAFE: "#1a7f37", Verdict.RISKY: "#9a6700", Verdict.BROKEN: "#cf222e", Verdict.UNKNOWN: "#8250df"}
_CELL = 'style="text-align:left;vertical-align:top;padding:2px 10px 2px 0"'


def render_fragment(report: Report) -> str:
    """One ``<div>``: verdict, as many of the worst findings as fit, coverage, notes."""
    for shown in range(MAX_FINDINGS, 0, -1):
        fragment = _render(report, shown)
        if len(fragment.encode()) < MAX_BYTES:
            return fragment
    return _render(report, 0)


def _render(report: Report, shown: int) -> str:
    coverage = report.record.coverage
    parts = [
        '<div class="precisionlab" style="font-family:sans-serif;max-width:60em">',
        f"<p>{_badge(report.verdict)} {len(report.findings)} findings, {len(report.ops)} op sites, "
        f"{coverage.shadowed} of {coverage.ops} ops shadowed</p>",
    ]
    if report.record.error:
        parts.append(f"<p><b>INCOMPLETE</b>: {_text(report.record.error)}</p>")
    if report.findings[:shown]:
        parts.append(_findings_table(report.findings[:shown]))
    hidden = len(report.findings) - shown
    if hidden > 0:
        parts.append(f"<p>and {hidden} more in <code>report.findings</code></p>")
    notes = all_notes(report)[:MAX_NOTES]
    if notes:
        parts.append(f"<ul>{''.join(f'<li>{_text(note)}</li>' for note in notes)}</ul>")
    return "\n".join([*parts, "</div>"])


def _findings_table(findings: list[Finding]) -> str:
    head = "".join(f"<th {_CELL}>{name}</th>" for name in ("verdict", "code", "where", "what", "repair"))
    return f'<table style="border-collapse:collapse"><tr>{head}</tr>{"".join(_row(finding) for finding in findings)}</table>'


def _row(finding: Finding) -> str:
    where = "<br>".join(_text(part) for part in (finding.op, finding.module, finding.source) if part)
    cells = (
        _badge(finding.verdict),
        f"{_text(finding.code)}<br>{_text(finding.kind)}",
        where,
        _text(finding.message),
        _text(finding.advice),
    )
    return f"<tr>{''.join(f'<td {_CELL}>{cell}</td>' for cell in cells)}</tr>"


def _badge(verdict: Verdict) -> str:
    return f'<b style="color:{_COLOURS[verdict]}">{escape(str(verdict).upper())}</b>'


def _text(text: str) -> str:
    plain = str(text)
    return escape(plain if len(plain) <= MAX_CHARACTERS else f"{plain[:MAX_CHARACTERS]}...")
