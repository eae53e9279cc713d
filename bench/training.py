"""Whole trainings, 50 steps each, under ``pl.audit()``: sound ones must stay quiet, wrong ones must be named as soon as they go wrong.

    ./dev bench training [--steps N] [--only NAME] [--json FILE] [--events]

Data: handwritten digits (scikit-learn) and the standard library's own source. Sound rows: op instances; findings that are broken and
risky; risky per 1000 op instances; audited over plain CPU time; whether the losses are bit-identical to the plain run. Wrong rows: the
first step (from 0) at which the numbers show the fault, measured without the audit as the surviving share of what should have happened
(see ``bench.models.wrong``), with the share there and at the end; the finding with its step; and in how many steps of training after
the numbers first show it a report names it (1: a report made at the end of that very step).

Exit 1 when a sound training is called broken, has more than 5 risky findings per 1000 op instances or other losses than the plain run,
and when a wrong one is not named, not within three steps, or before its numbers show anything.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

import precisionlab as pl
from bench.healthy import Row, chosen, measure, print_evidence
from bench.models import PLANS, PROGRAMS, Plan, Program
from bench.models.wrong import WRONG, Probe, Wrong
from precisionlab.records import Verdict

FP16_AMP, FP16_PURE, BF16_AMP, BF16_PURE = PLANS
STEPS = 50
PROMPT = 3
"""Steps within which a fault must be named, counted from the first that shows it."""

SOUND: dict[str, tuple[str, Plan]] = {
    "GPT, bf16 autocast": ("gpt-bytes", BF16_AMP),
    "GPT, fp16 autocast, scaler": ("gpt-bytes", FP16_AMP),
    "GPT, bf16, fp32 masters": ("gpt-bytes", BF16_PURE),
    "CNN, fp16 autocast, scaler": ("digits-cnn", FP16_AMP),
    "LSTM, bf16 autocast": ("lstm", BF16_AMP),
    "GRU, bf16 autocast": ("gru", BF16_AMP),
    "8 micro-batches, fp16, scaler": ("accumulation-8", FP16_AMP),
    "8 micro-batches, bf16, masters": ("accumulation-8", BF16_PURE),
    "fp32 EMA, bf16 autocast": ("ema-fp32", BF16_AMP),
    "fp32 EMA of bf16 weights": ("ema-fp32", BF16_PURE),
    "warm-up from lr 0, bf16": ("gpt-warm-up", BF16_AMP),
    "warm-up from lr 0, fp16": ("gpt-warm-up", FP16_AMP),
}
"""Title -> a program of ``bench.models`` and its plan. The GPT of "bf16, fp32 masters" steps fp32 copies of bf16 weights."""


@dataclass
class Named:
    """How a wrong training was named."""

    name: str
    shows: int | None
    """First step whose numbers show the fault."""
    share: float = 1.0
    """Surviving share at that step, and at the last."""
    last_share: float = 1.0
    code: str = ""
    op: str = ""
    source: str = ""
    first_step: int | None = None
    """Of the finding in the report of the whole run."""
    within: int | None = None
    """Steps, counted from ``shows``, after which a report has the finding; None when no report has it within three."""
    early: bool = False
    """A report that ends before the fault shows has the finding."""
    ops: int = 0
    others: list[str] = field(default_factory=list)
    """Further broken findings."""

    @property
    def good(self) -> bool:
        """Whether the fault is real and was named in time, and not before."""
        return self.shows is not None and self.code != "" and self.within is not None and not self.early


def names(wrong: Wrong, finding: pl.Finding) -> bool:
    """Whether ``finding`` is the fault of ``wrong``: broken, of its code and kind, at an op it may be found at."""
    right = finding.code in wrong.codes and str(finding.kind) == wrong.kind and finding.op.endswith(wrong.ops)
    return finding.verdict is Verdict.BROKEN and right


def audited(wrong: Wrong, steps: int, **settings: Any) -> pl.Report:
    """The report of the first ``steps`` steps."""
    torch.manual_seed(0)
    step = wrong.build(None)
    torch.manual_seed(1)
    with pl.audit(**settings) as audit:
        for i in range(steps):
            step(i)
    return audit.report


def numbers_of(wrong: Wrong, steps: int) -> Probe:
    """The surviving share of each step, without an audit."""
    probe = Probe()
    torch.manual_seed(0)
    step = wrong.build(probe)
    torch.manual_seed(1)
    for i in range(steps):
        step(i)
    return probe


def name_fault(wrong: Wrong, steps: int, *, show_events: bool = False) -> Named:
    """Measure the fault, audit the whole run, and runs that end just before the fault shows and one, two and three steps later."""
    probe = numbers_of(wrong, steps)
    row = Named(wrong.name, probe.shows)
    if probe.shows is None:
        return row
    row.share, row.last_share = probe.surviving[probe.shows], probe.surviving[-1]
    report = audited(wrong, steps)
    row.ops = report.record.coverage.ops
    broken = [f for f in report.findings if f.verdict is Verdict.BROKEN]
    found = next((f for f in broken if names(wrong, f)), None)
    row.others = [f"{f.code} {f.op} {f.source}" for f in broken if f is not found]
    if found is not None:
        row.code, row.op, row.source, row.first_step = found.code, found.op, found.source, found.first_step
    if probe.shows:
        row.early = any(names(wrong, f) for f in audited(wrong, probe.shows).findings)
    for within in range(1, PROMPT + 1):
        if any(names(wrong, f) for f in audited(wrong, probe.shows + within).findings):
            row.within = within
            break
    if show_events:
        print_evidence(report)
    return row


def sound_program(title: str, steps: int) -> tuple[Program, Plan]:
    """The program of a sound row, with as many steps."""
    name, plan = SOUND[title]
    return replace(PROGRAMS[name], steps=steps), plan


SOUND_HEAD = f"{'sound training':32}{'ops':>8}{'broken':>8}{'risky':>7}{'/1000':>7}{'unshadowed':>12}{'plain s':>9}{'ratio':>7}  notes"
WRONG_HEAD = f"{'wrong training':24}{'shows':>6}{'share':>8}{'at end':>8}  {'named':44}{'first':>6}{'within':>8}  other broken findings"


def sound_line(title: str, row: Row) -> str:
    """One line of the first table."""
    if row.state != "ok":
        return f"{title:32}{row.state}: {row.note}"
    notes = [] if row.identical else ["NOT IDENTICAL"]
    notes += sorted({f"{f['code']} {f['verdict']} {f['op']} {f['source']}" for f in row.findings})
    return (
        f"{title:32}{row.ops:8}{row.broken:8}{row.risky:7}{row.risky_per_1000:7.2f}{sum(row.unshadowed.values()):12}"
        f"{row.plain_s:9.2f}{row.ratio:7.1f}  {'; '.join(notes)}"
    )


def wrong_line(row: Named) -> str:
    """One line of the second table."""
    if row.shows is None:
        return f"{row.name:24} the numbers show no fault"
    said = f"{row.code} {row.op} {row.source}" if row.code else "NOT NAMED"
    first = "-" if row.first_step is None else str(row.first_step)
    within = "EARLY" if row.early else "late" if row.within is None else str(row.within)
    others = "; ".join(row.others) or "none"
    return f"{row.name:24}{row.shows:6}{row.share:8.2g}{row.last_share:8.2g}  {said:44}{first:>6}{within:>8}  {others}"


def main(words: list[str] | None = None) -> int:
    """See the module docstring."""
    parser = argparse.ArgumentParser(prog="bench.training", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of each training")
    parser.add_argument("--only", action="append", default=[], help="trainings: a glob or a piece of the name; may be repeated")
    parser.add_argument("--json", type=Path, help="also write every number and finding to this file")
    parser.add_argument("--events", action="store_true", help="print the events and sinks of each row")
    options = parser.parse_args(words)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    with pl.audit():  # compile and import what the first audit of a process needs
        torch.nn.functional.linear(torch.ones(4, 4).half(), torch.ones(4, 4).half()).sum().item()
    begin = time.perf_counter()
    print(SOUND_HEAD, flush=True)
    sound = {}
    for title in [t for t in SOUND if chosen(t, options.only)]:
        sound[title] = measure(*sound_program(title, options.steps), show_events=options.events)
        print(sound_line(title, sound[title]), flush=True)
    print(f"\n{WRONG_HEAD}", flush=True)
    named = []
    for wrong in [w for w in WRONG.values() if chosen(w.name, options.only)]:
        named.append(name_fault(wrong, options.steps, show_events=options.events))
        print(wrong_line(named[-1]), flush=True)
    if options.json:
        options.json.write_text(
            json.dumps({"sound": {t: asdict(r) for t, r in sound.items()}, "wrong": [asdict(n) for n in named]}, indent=1)
        )
    failed = [t for t, r in sound.items() if r.alarm or r.state != "ok"] + [n.name for n in named if not n.good]
    ops, risky = sum(r.ops for r in sound.values()), sum(r.risky for r in sound.values())
    print(
        f"\n{options.steps} steps each, {time.perf_counter() - begin:.0f} s: {len(sound)} sound trainings with {ops} op instances, "
        f"{sum(r.broken for r in sound.values())} broken and {risky} risky findings; {sum(n.good for n in named)} of {len(named)} "
        f"wrong ones named within {PROMPT} steps. Fails: {', '.join(failed) or 'none'}"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
