"""The report as text. Its first screen answers: is it safe, what breaks first and where, what to change.

A verdict is always a word, never a colour alone.
"""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass

from tabulate import tabulate

from precisionlab.records import Coverage, Verdict
from precisionlab.report.model import Column, Finding, OpVerdict, Report
from precisionlab.report.to_json import all_notes

MAX_FINDINGS = 5
"""Findings printed without ``all_ops``."""
MAX_OPS = 8
"""Op rows printed without ``all_ops``."""
MAX_NAMES = 4
"""Unshadowed ops named without ``all_ops``."""
MIN_CELL = 4
"""Cells are not cut below this many characters, whatever the width."""

_MARKS = {Verdict.SAFE: "", Verdict.UNKNOWN: " ?", Verdict.RISKY: " !", Verdict.BROKEN: " !!"}
_STYLES = {Verdict.SAFE: "bold green", Verdict.UNKNOWN: "bold magenta", Verdict.RISKY: "bold yellow", Verdict.BROKEN: "bold red"}
_HEADERS = ("verdict", "op", "module", "source", "n", "storage", "compute", "accum.", "drift")


@dataclass(frozen=True)
class _Line:
    text: str
    style: str = ""


def render_table(report: Report, all_ops: bool = False, color: bool = False, width: int = 80) -> str:
    """The whole text, without a newline at its end. ``all_ops`` shows every finding, op site and unshadowed op."""
    blocks = [
        _heading(report, width),
        _verdict(report, width),
        *_findings(report, all_ops, width),
        _ops(report, all_ops, width),
        _coverage(report, all_ops, width),
        _read_on(report, width),
    ]
    text = [[_paint(line, color) for line in block] for block in blocks if block]
    return "\n\n".join("\n".join(block) for block in text)


def _heading(report: Report, width: int) -> list[_Line]:
    settings = report.record.settings
    if "dtype" not in settings:
        return []
    parts = [f"{settings['dtype']} {settings.get('mode', '')}".strip()]
    parts += [f"{name} {settings[name]}" for name in ("steps", "kernels", "seed", "optimizer") if name in settings]
    return _wrap(f"{settings.get('subject') or 'audit'}: {', '.join(parts)}", width)


def _verdict(report: Report, width: int) -> list[_Line]:
    word = str(report.verdict).upper()
    lines = _wrap(f"{word}: {_sentence(report)}", width, style=_STYLES[report.verdict])
    if report.record.error:
        lines += _wrap(f"INCOMPLETE: the subject raised in {report.record.error}", width, style=_STYLES[Verdict.UNKNOWN])
    return lines


def _sentence(report: Report) -> str:
    dtype = report.record.settings.get("dtype", "low precision")
    if report.verdict is Verdict.UNKNOWN:
        return "the audit cannot answer; the notes below say why."
    if not report.findings:
        if report.verdict is Verdict.SAFE:
            sites = f"{len(report.ops)} op site{_s(len(report.ops))}"
            return f"{dtype} changes nothing that matters here ({sites}, {report.record.coverage.ops} ops, none at fault)."
        return "no single op is at fault; the notes below say why."
    broken = sum(f.verdict is Verdict.BROKEN for f in report.findings)
    risky = sum(f.verdict is Verdict.RISKY for f in report.findings)
    counts = " and ".join(
        part for part in (f"{broken} fault{_s(broken)}" if broken else "", f"{risky} risk{_s(risky)}" if risky else "") if part
    )
    first = report.findings[0]
    what = f"breaks in {dtype}" if broken else f"works in {dtype}, with a thin margin"
    return f"it {what}: {counts or 'notes only'}. First: {first.kind} in {first.op} at {_place(first)}."


def _findings(report: Report, all_ops: bool, width: int) -> list[list[_Line]]:
    shown = report.findings if all_ops else report.findings[:MAX_FINDINGS]
    blocks = [_finding(position, finding, width) for position, finding in enumerate(shown, 1)]
    hidden = len(report.findings) - len(shown)
    return [*blocks, [_Line(f"... and {hidden} finding{_s(hidden)} more (--all)")]] if hidden else blocks


def _finding(position: int, finding: Finding, width: int) -> list[_Line]:
    title = f"{position}. {str(finding.verdict).upper()} {finding.code} {finding.kind} in {finding.op}"
    often = f"{finding.count} time{_s(finding.count)}, first in step {finding.first_step + 1}"
    where = f"{_place(finding)}, {finding.phase}, {often}"
    rows = [("where", where)]
    if finding.parameter:
        rows.append(("weight", finding.parameter))
    rows += [("what", finding.message), ("repair", finding.advice)]
    lines = _wrap(title, width, style=_STYLES[finding.verdict])
    for label, text in rows:
        lines += _wrap(text, width, first=f"   {label:<7}", rest=" " * 10)
    return lines


def _ops(report: Report, all_ops: bool, width: int) -> list[_Line]:
    total = len(report.ops)
    if not total:
        return []
    shown = report.ops if all_ops else [op for op in report.ops if op.verdict is not Verdict.SAFE][:MAX_OPS]
    if not shown:
        return []
    title = f"all {total} op sites" if len(shown) == total else f"ops that matter ({len(shown)} of {total} op sites; --all shows every one)"
    table = [_Line(line) for line in _fit([_op_row(op) for op in shown], width)]
    legend = "!! broken, ! risky, ? not judged; drift = error in rounding units of the storage"
    return [*_wrap(title, width, style="bold"), *table, *_wrap(legend, width)]


def _op_row(op: OpVerdict) -> list[str]:
    plan = op.plan
    columns = [
        f"{dtype}{_mark(column)}"
        for dtype, column in ((plan.storage, op.storage), (plan.compute, op.compute), (plan.accumulation, op.accumulation))
    ]
    return [str(op.verdict).upper(), _short_op(op.op), op.module or "-", op.source or "-", str(op.count), *columns, _units(op.drift_u)]


def _fit(rows: list[list[str]], width: int) -> list[str]:
    """The table, header first, in at most ``width`` columns: module, source and op give way, keeping their ends."""
    flexible = (1, 2, 3)
    table = [list(_HEADERS), *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(_HEADERS))]
    room = width - sum(widths[i] for i in range(len(widths)) if i not in flexible) - 2 * (len(widths) - 1)
    while sum(widths[i] for i in flexible) > room and max(widths[i] for i in flexible) > MIN_CELL:
        widest = max(flexible, key=lambda i: widths[i])
        widths[widest] -= 1
    cut = [[_keep_end(cell, widths[i]) if i in flexible else cell for i, cell in enumerate(row)] for row in table]
    # The header goes in as a row: tabulate pads real headers by two columns.
    align = ("left", "left", "left", "left", "right", "left", "left", "left", "right")
    text: str = tabulate(cut, tablefmt="plain", disable_numparse=True, colalign=align)
    header, *body = text.splitlines()
    return [header, "-" * max(len(line) for line in (header, *body)), *(line.rstrip() for line in body)]


def _coverage(report: Report, all_ops: bool, width: int) -> list[_Line]:
    coverage = report.record.coverage
    lines = _wrap(_coverage_text(coverage, all_ops), width, first="coverage  ", rest=" " * 10)
    if report.inherited or report.quiet_events:
        text = f"{report.inherited} op sites only inherited the damage; {report.quiet_events} rounding events had no effect"
        lines += _wrap(text, width, first="quiet     ", rest=" " * 10)
    for note in all_notes(report):
        lines += _wrap(note, width, first="note      ", rest=" " * 10)
    return lines


def _coverage_text(coverage: Coverage, all_ops: bool) -> str:
    if not coverage.ops:
        return "no op ran"
    text = f"{coverage.shadowed} of {coverage.ops} ops shadowed ({_percent(coverage.share)})"
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
        text += f"; {resyncs} twin{_s(resyncs)} restarted from real values"
    if coverage.evicted_bytes:
        text += f"; {coverage.evicted_bytes / 1e6:.3g} MB of twins dropped under the cap"
    return text


def _read_on(report: Report, width: int) -> list[_Line]:
    if not report.findings:
        return []
    text = f"precisionlab explain {report.findings[0].code} tells what it means and how to repair it"
    return _wrap(text, width, first="read on   ", rest=" " * 10)


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


def _percent(share: float) -> str:
    """Rounded down, so that 100 % means all."""
    return f"{math.floor(share * 1000) / 10:.1f} %"


def _keep_end(text: str, width: int) -> str:
    return text if len(text) <= width else f"..{text[len(text) - width + 2 :]}"


def _s(count: int) -> str:
    return "" if count == 1 else "s"


def _wrap(text: str, width: int, first: str = "", rest: str = "", style: str = "") -> list[_Line]:
    lines = textwrap.wrap(" ".join(text.split()), width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
    return [_Line(line, style) for line in lines or [first.rstrip()]]


def _paint(line: _Line, color: bool) -> str:
    if not color or not line.style:
        return line.text
    from rich.color import ColorSystem
    from rich.style import Style

    return Style.parse(line.style).render(line.text, color_system=ColorSystem.STANDARD)
