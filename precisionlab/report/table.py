"""The report as text. Its first screen answers: is it safe, what breaks first and where, what to change.

A verdict is always a word, never a colour alone.
"""

from __future__ import annotations

import math

from precisionlab.records import Coverage, Verdict
from precisionlab.report.lines import INDENT, Line, labelled, percent_down, plural, table, wrap
from precisionlab.report.model import Column, Finding, OpVerdict, Report
from precisionlab.report.table_ledger import ledger_lines
from precisionlab.report.table_parameters import parameter_lines
from precisionlab.report.table_steps import scaler_lines, step_lines
from precisionlab.report.table_trials import trial_lines, trial_sentence
from precisionlab.report.to_json import all_notes

MAX_FINDINGS = 5
"""Findings printed without ``all_ops``."""
MAX_OPS = 8
"""Op rows printed without ``all_ops``."""
MAX_NAMES = 4
"""Unshadowed ops named without ``all_ops``."""

_MARKS = {Verdict.SAFE: "", Verdict.UNKNOWN: " ?", Verdict.RISKY: " !", Verdict.BROKEN: " !!"}
_STYLES = {Verdict.SAFE: "bold green", Verdict.UNKNOWN: "bold magenta", Verdict.RISKY: "bold yellow", Verdict.BROKEN: "bold red"}
_HEADERS = ("verdict", "op", "module", "source", "n", "storage", "compute", "accum.", "drift")


def render_table(report: Report, all_ops: bool = False, color: bool = False, width: int = 80) -> str:
    """The whole text, without a newline at its end. ``all_ops`` shows every finding, op site and unshadowed op."""
    blocks = [
        _heading(report, width),
        _verdict(report, width),
        *_findings(report, all_ops, width),
        _ops(report, all_ops, width),
        trial_lines(report, all_ops, width),
        step_lines(report, all_ops, width),
        parameter_lines(report, all_ops, width),
        scaler_lines(report, all_ops, width),
        ledger_lines(report, all_ops, width),
        _coverage(report, all_ops, width),
        _read_on(report, width),
    ]
    text = [[_paint(line, color) for line in block] for block in blocks if block]
    return "\n\n".join("\n".join(block) for block in text)


def _heading(report: Report, width: int) -> list[Line]:
    settings = report.record.settings
    if "dtype" not in settings:
        return []
    parts = [f"{settings['dtype']} {settings.get('mode', '')}".strip()]
    parts += [f"{name} {settings[name]}" for name in ("steps", "kernels", "seed", "optimizer") if name in settings]
    return wrap(f"{settings.get('subject') or 'audit'}: {', '.join(parts)}", width)


def _verdict(report: Report, width: int) -> list[Line]:
    word = str(report.verdict).upper()
    lines = wrap(f"{word}: {_sentence(report)}", width, style=_STYLES[report.verdict])
    if report.record.error:
        lines += wrap(f"INCOMPLETE: the subject raised in {report.record.error}", width, style=_STYLES[Verdict.UNKNOWN])
    return lines


def _sentence(report: Report) -> str:
    dtype = report.record.settings.get("dtype", "low precision")
    if report.verdict is Verdict.UNKNOWN:
        return "the audit cannot answer; the notes below say why."
    if not report.findings:
        if report.verdict is Verdict.SAFE:
            sites = f"{len(report.ops)} op site{plural(len(report.ops))}"
            return f"{dtype} changes nothing that matters here ({sites}, {report.record.coverage.ops} ops, none at fault)."
        return "no single op is at fault; the notes below say why."
    broken = sum(f.verdict is Verdict.BROKEN for f in report.findings)
    risky = sum(f.verdict is Verdict.RISKY for f in report.findings)
    counts = " and ".join(
        part for part in (f"{broken} fault{plural(broken)}" if broken else "", f"{risky} risk{plural(risky)}" if risky else "") if part
    )
    first = report.findings[0]
    what = f"breaks in {dtype}" if broken else f"works in {dtype}, with a thin margin"
    return f"it {what}: {counts or 'notes only'}. First: {first.kind} in {first.op} at {_place(first)}."


def _findings(report: Report, all_ops: bool, width: int) -> list[list[Line]]:
    shown = report.findings if all_ops else report.findings[:MAX_FINDINGS]
    blocks = [_finding(position, finding, report, width) for position, finding in enumerate(shown, 1)]
    hidden = len(report.findings) - len(shown)
    return [*blocks, [Line(f"... and {hidden} finding{plural(hidden)} more (--all)")]] if hidden else blocks


def _finding(position: int, finding: Finding, report: Report, width: int) -> list[Line]:
    title = f"{position}. {str(finding.verdict).upper()} {finding.code} {finding.kind} in {finding.op}"
    often = f"{finding.count} time{plural(finding.count)}, first in step {finding.first_step + 1}"
    where = f"{_place(finding)}, {finding.phase}, {often}"
    rows = [("where", where)]
    if finding.parameter:
        rows.append(("weight", finding.parameter))
    rows.append(("what", finding.message))
    tried = trial_sentence(finding, report)
    if tried:
        rows.append(("trials", tried))
    rows.append(("repair", finding.advice))
    lines = wrap(title, width, style=_STYLES[finding.verdict])
    for label, text in rows:
        lines += wrap(text, width, first=f"   {label:<7}", rest=INDENT)
    return lines


def _ops(report: Report, all_ops: bool, width: int) -> list[Line]:
    total = len(report.ops)
    if not total:
        return []
    shown = report.ops if all_ops else [op for op in report.ops if op.verdict is not Verdict.SAFE][:MAX_OPS]
    if not shown:
        return []
    title = f"all {total} op sites" if len(shown) == total else f"ops that matter ({len(shown)} of {total} op sites; --all shows every one)"
    rows = table(_HEADERS, [_op_row(op) for op in shown], width, flexible=(1, 2, 3), right=(4, 8))
    legend = "!! broken, ! risky, ? not judged; drift = error in rounding units of the storage"
    return [*wrap(title, width, style="bold"), *rows, *wrap(legend, width)]


def _op_row(op: OpVerdict) -> list[str]:
    plan = op.plan
    columns = [
        f"{dtype}{_mark(column)}"
        for dtype, column in ((plan.storage, op.storage), (plan.compute, op.compute), (plan.accumulation, op.accumulation))
    ]
    return [str(op.verdict).upper(), _short_op(op.op), op.module or "-", op.source or "-", str(op.count), *columns, _units(op.drift_u)]


def _coverage(report: Report, all_ops: bool, width: int) -> list[Line]:
    coverage = report.record.coverage
    lines = labelled("coverage", _coverage_text(coverage, all_ops), width)
    if report.inherited or report.quiet_events:
        text = f"{report.inherited} op sites only inherited the damage; {report.quiet_events} rounding events had no effect"
        lines += labelled("quiet", text, width)
    for note in all_notes(report):
        lines += labelled("note", note, width)
    return lines


def _coverage_text(coverage: Coverage, all_ops: bool) -> str:
    if not coverage.ops:
        return "no op ran"
    text = f"{coverage.shadowed} of {coverage.ops} ops shadowed ({percent_down(coverage.share)})"
    if coverage.unshadowed:
        names = sorted(coverage.unshadowed, key=lambda name: (-coverage.unshadowed[name], name))
        shown = names if all_ops else names[:MAX_NAMES]
        said = [
            f"{name} x{coverage.unshadowed[name]}" + (f" ({coverage.reasons[name]})" if name in coverage.reasons else "") for name in shown
        ]
        more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
        text += f"; not: {', '.join(said)}{more}"
    resyncs = sum(coverage.resyncs.values())
    if resyncs:
        text += f"; {resyncs} twin{plural(resyncs)} restarted from real values"
    if coverage.evicted_bytes:
        text += f"; {coverage.evicted_bytes / 1e6:.3g} MB of twins dropped under the cap"
    return text


def _read_on(report: Report, width: int) -> list[Line]:
    if not report.findings:
        return []
    text = f"precisionlab explain {report.findings[0].code} tells what it means and how to repair it"
    return labelled("read on", text, width)


def _place(finding: Finding) -> str:
    where = finding.source or "an unknown line"
    return f"{where} ({finding.module})" if finding.module else where


def _short_op(op: str) -> str:
    return op.removeprefix("aten.")


def _mark(column: Column) -> str:
    return _MARKS[column.verdict]


def _units(drift_u: float) -> str:
    if not math.isfinite(drift_u):
        return "nan" if math.isnan(drift_u) else "inf"
    return f"{drift_u:.1e}" if drift_u >= 1e4 else f"{drift_u:.2g}" if drift_u < 100 else f"{drift_u:.0f}"


def _paint(line: Line, color: bool) -> str:
    if not color or not line.style:
        return line.text
    from rich.color import ColorSystem
    from rich.style import Style

    return Style.parse(line.style).render(line.text, color_system=ColorSystem.STANDARD)
