"""What an audit has collected so far: op sites, events, sinks. Numbers only, never tensors."""

from __future__ import annotations

import linecache
import math
from collections.abc import Callable
from typing import Any

from precisionlab.records import EventKind, EventRecord, Evidence, OpRecord, Phase, Plan, SinkKind, SinkRecord, Site, Verdict
from precisionlab.shadow.sites import Place, short_path

MAX_INFLUENCES = 24
"""Events one twin carries at most; the oldest sites stay (they are the likelier roots)."""

_WORSE_BY = ("lost_share", "gain", "rho_max", "nonfinite", "flushed_energy_share", "ties", "flips", "inexact")


class RunLog:
    """Aggregates by site. ``step`` is the index of the running training step."""

    def __init__(self) -> None:
        self.step = 0
        self.ops: dict[tuple[Any, ...], OpRecord] = {}
        self.events: list[EventRecord] = []
        self.sinks: dict[tuple[Any, ...], SinkRecord] = {}
        self._event_ids: dict[tuple[EventKind, Site, str], int] = {}
        self._sites: dict[tuple[Any, ...], Site] = {}

    def site(self, module: str, op: str, phase: Phase, place: Place) -> Site:
        """The one ``Site`` object of a place in the program."""
        key = (module, op, phase, place)
        found = self._sites.get(key)
        if found is None:
            source = f"{short_path(place.path)}:{place.line}" if place.path else ""
            text = linecache.getline(place.path, place.line).strip() if place.path else ""
            found = self._sites[key] = Site(module, op, phase, source, text, place.function)
        return found

    def op(self, module: str, op: str, phase: Phase, place: Place, describe: Callable[[], tuple[str, Plan]]) -> OpRecord:
        """The record of a site, made at its first execution, when ``describe`` gives its family and plan."""
        key = (module, op, phase, place)
        record = self.ops.get(key)
        if record is None:
            family, plan = describe()
            record = self.ops[key] = OpRecord(self.site(module, op, phase, place), plan, family)
        return record

    def event(self, kind: EventKind, site: Site, parents: frozenset[int], evidence: Evidence, detail: str = "") -> int:
        """Raise an event: one id per (kind, site, detail), counted; the evidence of the worst occurrence is kept."""
        key = (kind, site, detail)
        known = self._event_ids.get(key)
        if known is None:
            known = self._event_ids[key] = len(self.events)
            self.events.append(EventRecord(known, kind, site, parents, 1, self.step, evidence, detail))
            return known
        record = self.events[known]
        record.count += 1
        for name in _WORSE_BY:
            if name in evidence:
                if _number(evidence[name]) > _number(record.evidence.get(name, 0.0)):
                    record.evidence = evidence
                break
        return known

    def sink(
        self,
        kind: SinkKind,
        name: str,
        site: Site | None,
        events: frozenset[int],
        verdict: Verdict,
        reason: str,
        evidence: Evidence,
        *,
        needs_event: bool = True,
    ) -> None:
        """Record what arrived at a sink. The worst observation of each (sink, events) is kept, all are counted."""
        key = (kind, name, site, events, verdict)
        record = self.sinks.get(key)
        if record is None:
            self.sinks[key] = SinkRecord(kind, name, site, events, verdict, reason, evidence, 1, self.step, needs_event)
            return
        record.count += 1
        if _number(evidence.get("drift", 0.0)) > _number(record.evidence.get("drift", 0.0)):
            record.evidence, record.reason = evidence, reason


def join_events(sets: list[frozenset[int]]) -> frozenset[int]:
    """Union of influence sets, capped at ``MAX_INFLUENCES``."""
    first = sets[0]
    out = first
    for other in sets[1:]:
        if other and other is not first:
            out = out | other if out else other
    return frozenset(sorted(out)[:MAX_INFLUENCES]) if len(out) > MAX_INFLUENCES else out


def _number(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return 0.0
    return math.inf if math.isnan(number) else number
