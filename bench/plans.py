"""How many broken programs a search repairs by itself, and with how many changes.

    ./dev bench plans [FILE.py ...]

Each FILE is a program with ``broken()``, ``reference()`` and ``symptom(result, reference)``. It is repaired when the changed ``broken()``
is audited without a broken finding and its symptom is gone. Without files: the scenarios that name a broken forward or backward pass;
they have no symptom, so the audit alone decides.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from tabulate import tabulate

import precisionlab as pl
from precisionlab.planning.apply import PlanMode
from precisionlab.planning.search import search
from precisionlab.plans.change import Change
from precisionlab.report.model import Report


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def repair(program: Any) -> tuple[Any, bool]:
    """The proposal for ``program.broken``, and whether the symptom is still there with it."""
    results: list[Any] = []

    def audit(changes: Sequence[Change]) -> Report:
        results.clear()
        # a change may not fit the program: the report says what it raised, and that proposal is no repair
        with contextlib.suppress(Exception), pl.audit() as watcher, PlanMode(changes):
            results.append(program.broken())
        return watcher.report

    proposal = search(audit)
    if not hasattr(program, "symptom"):
        return proposal, False
    try:
        with PlanMode(proposal.changes):
            result = program.broken()
        symptom = bool(program.symptom(result, program.reference()))
    except Exception:
        symptom = True
    return proposal, symptom


def _scenarios() -> list[tuple[str, Any]]:
    """Shipped scenarios whose fault is one of formats (the protocol of a loop is none), and not one of an optimizer's state."""
    from precisionlab.scenarios import all_scenarios
    from precisionlab.scenarios.runner import load

    chosen = [s for s in all_scenarios() if s.expect and all(e.code[2] in "125" and e.code != "PL508" for e in s.expect)]
    return [(scenario.name, load(scenario)) for scenario in chosen]


def main(arguments: list[str]) -> int:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rows, repaired, lean = [], 0, 0
    programs = [(path.stem, _load(path)) for path in map(Path, arguments)] or _scenarios()
    for name, program in programs:
        proposal, symptom = repair(program)
        done = proposal.repaired and not symptom
        repaired += done
        lean += done and len(proposal.changes) <= 1
        places = "; ".join(change.place for change in proposal.changes)
        why = "" if done else f"{'symptom left' if symptom else ''} {[(f.code, f.op) for f in proposal.unrepaired][:2]}"
        rows.append([name, "yes" if done else "NO", len(proposal.changes), proposal.audits, places[-60:], why])
    print(tabulate(rows, headers=["program", "repaired", "changes", "audits", "where", "why not"]))
    print(f"{repaired} of {len(rows)} repaired, {lean} of them with one change")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
