"""Trials as text: what other accumulations would have done to the sums of an op."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from precisionlab.report.lines import Line, table, wrap
from precisionlab.report.model import Finding, OpVerdict, Report

_TRIED = ("PL502", "PL503", "PL601")
"""Findings about sums, beside which their trials stand."""
_MARKS = {"safe": "", "unknown": " ?", "risky": " !", "broken": " !!"}
_Trial = dict[str, Any]


def trial_sentence(finding: Finding, report: Report) -> str:
    """``in sequential fp16 124 u; sequential fp32 0.4 u`` for a finding about a sum, worst first; empty where nothing was tried."""
    if finding.code not in _TRIED:
        return ""
    here = (finding.module, finding.op, finding.source, finding.phase)
    op = next((op for op in report.ops if (op.module, op.op, op.source, op.phase) == here and op.trials), None)
    if op is None:
        return ""
    ordered = sorted(op.trials, key=lambda trial: -_error(trial))
    return "in " + "; ".join(f"{trial['plan']} {_units(_error(trial))}" for trial in ordered)


def trial_lines(report: Report, all_ops: bool, width: int) -> list[Line]:
    """The section of the report that ``--all`` adds; empty where nothing was tried."""
    tried = [op for op in report.ops if op.trials]
    if not all_ops or not tried:
        return []
    shown = [(head, pick) for head, pick in _COLUMNS if any(pick(op) for op in tried)]
    heads = ("op", "module", "source", "stored", "terms", *(head for head, _ in shown))
    rows = [
        [
            op.op.removeprefix("aten."),
            op.module or "-",
            op.source or "-",
            op.plan.storage,
            str(max(trial["terms"] for trial in op.trials)),
            *(_cell(pick(op)) for _, pick in shown),
        ]
        for op in tried
    ]
    legend = (
        "error in rounding units of the storage, of the results as stored; here = as this machine sums, itself = in the format of the"
        " storage, one term after the other; !! broken, ! risky"
    )
    title = f"other accumulations, on a sample of the outputs of {len(tried)} op site{'' if len(tried) == 1 else 's'}"
    right = tuple(range(4, len(heads)))
    return [*wrap(title, width, style="bold"), *table(heads, rows, width, flexible=(0, 1, 2), right=right), *wrap(legend, width)]


def _first(wanted: Callable[[OpVerdict, _Trial], bool]) -> Callable[[OpVerdict], _Trial | None]:
    """The worst of the trials of an op that are ``wanted``."""

    def pick(op: OpVerdict) -> _Trial | None:
        return max((trial for trial in op.trials if wanted(op, trial)), key=_error, default=None)

    return pick


_COLUMNS: tuple[tuple[str, Callable[[OpVerdict], _Trial | None]], ...] = (
    ("here", _first(lambda op, trial: trial["role"] == "executed")),
    ("target", _first(lambda op, trial: trial["role"] == "target")),
    ("fp32", _first(lambda op, trial: trial["plan"] == "sequential fp32")),
    ("blocks", _first(lambda op, trial: trial["plan"] == f"blocks of 128 in {op.plan.storage}, outer fp32")),
    ("splits", _first(lambda op, trial: " splits in fp32" in trial["plan"])),
    ("itself", _first(lambda op, trial: trial["plan"] == f"sequential {op.plan.storage}")),
)


def _cell(trial: _Trial | None) -> str:
    return "-" if trial is None else f"{_short(_error(trial))}{_MARKS[trial['verdict']]}"


def _error(trial: _Trial) -> float:
    error: float = trial["error_u"]
    return math.inf if math.isnan(error) else error


def _units(error: float) -> str:
    return "overflows" if math.isinf(error) else f"{_short(error)} u"


def _short(error: float) -> str:
    return "inf" if math.isinf(error) else f"{error:.1e}" if error >= 1e4 else f"{error:.2g}" if error < 100 else f"{error:.0f}"
