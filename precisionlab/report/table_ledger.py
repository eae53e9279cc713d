"""The ledger as text: how much of the loss error it explains, and which calls made the most of it."""

from __future__ import annotations

from precisionlab.records import LedgerRecord
from precisionlab.report.lines import Line, labelled, table, wrap
from precisionlab.report.model import Report

MAX_SHARES = 6
"""Calls printed without ``--all``."""
_HEADERS = ("call", "module", "source", "n", "size", "of all", "this run")


def ledger_lines(report: Report, all_rows: bool, width: int) -> list[Line]:
    """The section of the report; empty where no ledger was kept (presets below full)."""
    ledger = report.record.ledger
    if ledger is None:
        return []
    if ledger.undefined:
        return labelled("loss error", f"not attributed: {ledger.undefined}", width)
    lines = wrap(_title(ledger), width, style="bold")
    if not ledger.ranks:
        return [*lines, *wrap("too little is explained to rank the calls" + _missing(ledger), width)]
    shown = ledger.shares if all_rows else ledger.shares[:MAX_SHARES]
    rows = [
        [
            share.site.op.removeprefix("torch.").removeprefix("nn.functional."),
            share.site.module or "-",
            share.site.source or "-",
            str(share.calls),
            f"{share.rss:.2g}",
            f"{share.rss_share:.1%}",
            f"{share.share:+.1%}" if share.share is not None else "-",
        ]
        for share in shown
    ]
    legend = (
        "size = error of the loss to expect from this call's rounding (root sum of squares), of all = beside all calls, this run = signed"
        " share of the actual error"
    )
    return [*lines, *table(_HEADERS, rows, width, flexible=(0, 1, 2), right=(3, 4, 5, 6)), *wrap(legend + _missing(ledger), width)]


def _title(ledger: LedgerRecord) -> str:
    share = f"{ledger.explained:.1%}" if ledger.explained is not None else "nothing"
    return f"the loss is off by {ledger.loss_error:+.3g}; local errors explain {share} of it"


def _missing(ledger: LedgerRecord) -> str:
    if not ledger.missing:
        return ""
    names = ", ".join(f"{name.rpartition('.')[2]} x{count}" for name, count in ledger.missing.items())
    return f"; not repeatable in fp64: {names}"
