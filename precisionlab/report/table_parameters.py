"""The parameters in the printed report: what reached them of their gradients and updates."""

from __future__ import annotations

import math

from precisionlab.checks.wording import percent
from precisionlab.records import ParameterRecord
from precisionlab.report.lines import Line, short, table, wrap
from precisionlab.report.model import Report

MAX_PARAMETERS = 8
"""Parameter rows printed without ``all_ops``."""
MAX_STATE = 2
"""Notes on the optimizer state printed per parameter."""

_HEADERS = ("parameter", "dtype", "gradient", "cosine", "arrives", "flushed", "update", "swamped", "state")
_FLEXIBLE = {"parameter": 24, "state": 12}
"""Columns that give way where the width is short, and how far before others are given up."""
_LEAST = ("cosine", "dtype", "flushed", "state", "gradient")
"""Columns given up first where the width is short."""
_CONCERNED = ("PL2", "PL3")
"""Codes of findings about gradients, updates and optimizer state."""


def parameter_lines(report: Report, all_ops: bool, width: int) -> list[Line]:
    """The worst parameters, when a finding is about one of them; all of them with ``all_ops``."""
    parameters = report.record.parameters
    named = {finding.parameter for finding in report.findings if finding.parameter}
    concerned = named or any(finding.code.startswith(_CONCERNED) for finding in report.findings)
    if not parameters or not (concerned or all_ops):
        return []
    ranked = sorted(parameters, key=lambda p: (p.name not in named, -damage(p), p.name))
    shown = ranked if all_ops else [p for p in ranked if p.name in named or damage(p) > 0][:MAX_PARAMETERS]
    if not shown:
        return []
    rows = [_row(parameter) for parameter in shown]
    headers = list(_HEADERS)
    for name in _HEADERS[1:]:
        if all(row[headers.index(name)] in ("", "-") for row in rows):
            _drop(name, headers, rows)
    for name in _LEAST:
        if name in headers and sum(_least_width(headers, rows)) + 2 * (len(headers) - 1) > width:
            _drop(name, headers, rows)
    count = f"{len(shown)} of {len(parameters)}; --all shows every one"
    title = f"all {len(parameters)} parameters" if len(shown) == len(parameters) else f"parameters ({count})"
    right = [i for i, name in enumerate(headers) if name not in ("parameter", "dtype", "state")]
    flexible = [i for i, name in enumerate(headers) if name in _FLEXIBLE]
    legend = (
        "arrives, update: share of the exact gradient and of the exact update that took place; swamped: weights that should move and do not"
    )
    return [*wrap(title, width, style="bold"), *table(headers, rows, width, flexible=flexible, right=right), *wrap(legend, width)]


def _drop(name: str, headers: list[str], rows: list[list[str]]) -> None:
    column = headers.index(name)
    headers.pop(column)
    for row in rows:
        row.pop(column)


def _least_width(headers: list[str], rows: list[list[str]]) -> list[int]:
    """Widths of the columns once those that give way have done so."""
    widths = [max(len(name), *(len(row[i]) for row in rows)) for i, name in enumerate(headers)]
    return [min(width, _FLEXIBLE.get(name, width)) for name, width in zip(headers, widths, strict=True)]


def damage(parameter: ParameterRecord) -> float:
    """How much was lost on the way to a parameter: the largest share of its gradient or update, 0 when nothing is missing."""
    arrived = (parameter.gradient_efficiency, parameter.update_efficiency)
    lost = [abs(1.0 - share) for share in arrived if share is not None and math.isfinite(share)]
    return max([*lost, parameter.flushed_energy_share or 0.0, parameter.swamped_share or 0.0], default=0.0)


def _row(parameter: ParameterRecord) -> list[str]:
    state = ", ".join(f"{name.replace('_', ' ')} {_value(value)}" for name, value in sorted(parameter.state.items())[:MAX_STATE])
    return [
        parameter.name,
        parameter.dtype,
        short(parameter.gradient_norm, 3),
        short(parameter.gradient_cosine, 3),
        _share(parameter.gradient_efficiency),
        _share(parameter.flushed_share),
        _share(parameter.update_efficiency),
        _share(parameter.swamped_share),
        state,
    ]


def _share(share: float | None) -> str:
    if share is None:
        return "-"
    return percent(share) if 0.0 <= share <= 1.0 else f"{100.0 * share:.3g} %" if abs(share) > 1e-4 else "0 %"


def _value(value: float | int | str | bool) -> str:
    return short(value, 3) if isinstance(value, float) else str(value)
