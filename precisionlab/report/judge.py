"""From events and sinks to findings: a fault is judged by what becomes of it. A pure function of the record and the thresholds.

1. Every sink whose real value differs materially names the events that flowed into it. The *root* is the event that no other event of
   the same sink precedes, the most damaging kind first.
2. Sinks with one root make one finding, at the root's op, with the worst sink as its consequence.
3. Hierarchy: once an optimizer step was taken, weights and optimizer state are the judges; outputs, losses and values read on the way
   are risky at most.
4. Events that reach no sink materially are counted, not reported.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from typing import Any

from precisionlab.checks.base import Check, Fault, check_for
from precisionlab.records import (
    EventKind,
    EventRecord,
    Phase,
    RunRecord,
    SinkKind,
    SinkRecord,
    Site,
    Verdict,
)
from precisionlab.report.model import Finding, Report
from precisionlab.report.op_verdicts import op_verdict
from precisionlab.report.scale_advice import with_scale
from precisionlab.report.targets import target_faults
from precisionlab.thresholds import Thresholds

_RANK = {
    EventKind.PROTOCOL: 0,
    EventKind.OVERFLOW: 1,
    EventKind.DOMAIN: 1,
    EventKind.CAST: 1,
    EventKind.CONSTANT: 1,
    EventKind.FLUSH: 2,
    EventKind.RHO: 3,
    EventKind.LOST: 3,
    EventKind.GAIN: 4,
    EventKind.TIE: 5,
    EventKind.FLIP: 6,
    EventKind.GROWTH: 7,
}
"""Which of several unrelated roots is blamed: the more damaging and the more specific first."""

_NONFINITE_ROOTS = frozenset(
    (EventKind.PROTOCOL, EventKind.OVERFLOW, EventKind.DOMAIN, EventKind.CAST, EventKind.CONSTANT, EventKind.FLUSH, EventKind.GAIN)
)
_RANGE = frozenset((EventKind.OVERFLOW, EventKind.DOMAIN, EventKind.CAST, EventKind.CONSTANT, EventKind.FLUSH))
_WEIGHT_SINKS = frozenset((SinkKind.GRADIENT, SinkKind.UPDATE, SinkKind.STATE, SinkKind.ACCUMULATOR))
_NO_GAIN = frozenset((SinkKind.GRADIENT, SinkKind.UPDATE, SinkKind.ITEM, SinkKind.EXIT, SinkKind.STATE, SinkKind.LOSS))
"""Sinks at which amplification alone convicts nobody: gradients and residuals near convergence, key biases and
differences are noise by nature."""


def judge(record: RunRecord, thresholds: Thresholds) -> Report:
    """Findings, op verdicts and the verdict of the run."""
    import precisionlab.checks.catalogue  # noqa: F401  registers the checks

    events = {e.id: e for e in record.events}
    groups: dict[int | None, list[tuple[SinkRecord, Verdict]]] = defaultdict(list)
    for sink in record.sinks:
        root = _root(sink, events)
        verdict = _weigh(sink, root, record, thresholds)
        if verdict is Verdict.SAFE:
            continue
        groups[root.id if root is not None else None].append((sink, verdict))
    faults: list[Fault] = []
    for root_id, arrived in groups.items():
        if root_id is None:
            faults.extend(Fault(None, sink, verdict, (sink,)) for sink, verdict in _worst_per_kind(arrived))
            continue
        arrived.sort(key=lambda pair: (-pair[1].severity, _SINK_ORDER[pair[0].kind]))
        faults.append(Fault(events[root_id], arrived[0][0], arrived[0][1], tuple(sink for sink, _ in arrived)))
    faults = _merge(faults)
    near = _near_overflow(record, thresholds)
    if near is not None and not any(f.event is not None and f.event.kind is EventKind.OVERFLOW for f in faults):
        faults.append(near)
    told = {f.event.site for f in faults if f.event is not None and f.event.kind is EventKind.RHO}
    faults.extend(f for f in target_faults(record, thresholds) if f.event is None or f.event.site not in told)
    findings = [with_scale(f, record.scaler) for f in (finding_of(fault) for fault in faults) if f is not None]
    findings.sort(key=lambda f: (-f.verdict.severity, f.first_step, f.code, f.module, f.op, f.source))
    reported = {(f.module, f.op, f.source) for f in findings}
    shares = _loss_shares(record)
    ops = [op_verdict(op, findings, thresholds, shares.get(op.site)) for op in record.ops]
    ops.sort(key=lambda o: (-o.verdict.severity, -o.drift_u))
    quiet = sum(e.count for e in record.events if (e.site.module, e.site.op, e.site.source) not in reported)
    return Report(_overall(findings, record), findings, ops, record, _inherited(record), quiet, list(record.notes))


_WORST_FIRST = (
    SinkKind.UPDATE,
    SinkKind.STATE,
    SinkKind.ACCUMULATOR,
    SinkKind.GRADIENT,
    SinkKind.OUTPUT,
    SinkKind.LOSS,
    SinkKind.DECISION,
    SinkKind.EXIT,
    SinkKind.ITEM,
)
_SINK_ORDER = {kind: i for i, kind in enumerate(_WORST_FIRST)}


def _root(sink: SinkRecord, events: dict[int, EventRecord]) -> EventRecord | None:
    present = [events[i] for i in sink.events if i in events]
    if sink.evidence.get("nonfinite"):
        present = [e for e in present if e.kind in _NONFINITE_ROOTS]
    ancestors = {e.id for e in present if e.kind is not EventKind.LOST}
    # amplified noise cannot convict at these sinks, and it explains no zeros or infinities: it is no alibi for those that lost the range
    excused = {e.id for e in present if e.kind is EventKind.GAIN} if sink.kind in _NO_GAIN else frozenset[int]()
    roots = [e for e in present if not ((e.parents & (ancestors - excused if e.kind in _RANGE else ancestors)) - {e.id})]
    return min(roots or present, key=lambda e: (_RANK[e.kind], e.id), default=None)


def _weigh(sink: SinkRecord, root: EventRecord | None, record: RunRecord, limits: Thresholds) -> Verdict:
    """How bad it is that ``root`` reached this sink."""
    verdict = sink.verdict
    nonfinite = bool(sink.evidence.get("nonfinite"))
    if root is None:
        if sink.needs_event:
            verdict = min(verdict, Verdict.RISKY, key=lambda v: v.severity)
            if sink.kind in (SinkKind.ITEM, SinkKind.EXIT) or sink.kind in _WEIGHT_SINKS:
                return Verdict.SAFE
        return verdict
    if root.kind is EventKind.GAIN and not nonfinite and sink.kind is not SinkKind.DECISION:
        plain_function = not record.module_outputs and not record.backwards
        if sink.kind in _NO_GAIN and not (sink.kind is SinkKind.EXIT and plain_function):
            return Verdict.SAFE
        if _is_structural_zero(sink, root, limits):
            return Verdict.SAFE
    stepped = record.optimizer_steps > 0 or record.skipped_steps > 0
    if sink.evidence.get("python") and record.backwards:
        # a check that guards the step: it does its work unless it never lets one through
        return verdict if record.optimizer_steps == 0 and sink.evidence.get("share") == 1.0 else Verdict.SAFE
    if sink.kind is SinkKind.ITEM and nonfinite and not sink.evidence.get("requires_grad") and not record.skipped_steps:
        return verdict if root.site.phase not in (Phase.BACKWARD, Phase.CLIP) else Verdict.RISKY
    on_the_way = sink.kind in (SinkKind.LOSS, SinkKind.ITEM) or (
        sink.kind in (SinkKind.OUTPUT, SinkKind.EXIT) and bool(sink.evidence.get("requires_grad"))
    )
    if stepped and on_the_way and root.kind is not EventKind.PROTOCOL:
        if nonfinite and record.skipped_steps:
            # no loss scale cures a forward pass; an overflow of scaled gradients is how a scaler finds its scale
            never = root.site.phase is Phase.FORWARD and record.optimizer_steps == 0
            return verdict if never else Verdict.RISKY if root.site.phase is Phase.FORWARD else Verdict.SAFE
        return min(verdict, Verdict.RISKY, key=lambda v: v.severity)
    if (
        stepped
        and nonfinite
        and sink.kind is SinkKind.EXIT
        and root.site.phase is not Phase.FORWARD
        and root.kind is not EventKind.PROTOCOL
    ):
        # a norm or a gradient that the program kept: of a skipped step it is what it should be, else the weights have told
        return Verdict.SAFE if record.skipped_steps else min(verdict, Verdict.RISKY, key=lambda v: v.severity)
    if stepped and nonfinite and sink.kind is SinkKind.GRADIENT and not sink.evidence.get("used") and root.kind is not EventKind.PROTOCOL:
        if root.site.phase is not Phase.FORWARD:
            return Verdict.SAFE  # no step used it: the scale calibrates, as it should
        return verdict if record.optimizer_steps == 0 else Verdict.RISKY
    return verdict


def _near_overflow(record: RunRecord, limits: Thresholds) -> Fault | None:
    """The forward product or sum that came closest to the end of its format, when that is closer than ``headroom_log2`` binades.

    Gradients are left out: a dynamic loss scaler brings them to the end of the range on purpose.
    """
    closest: tuple[float, Any] | None = None
    for op in record.ops:
        if op.family not in _GROWING or op.site.phase is not Phase.FORWARD or op.introduced_nonfinite or not op.max_abs > 0:
            continue
        largest = _largest(op.plan.storage)
        if largest is None:
            continue
        headroom = math.log2(largest / op.max_abs)
        if headroom < limits.headroom_log2 and (closest is None or headroom < closest[0]):
            closest = (headroom, op)
    if closest is None:
        return None
    headroom, op = closest
    evidence: dict[str, float | int | str | bool] = {
        "headroom_log2": headroom,
        "max_abs": op.max_abs,
        "format_max": _largest(op.plan.storage) or 0.0,
        "dtype": op.plan.storage,
    }
    event = EventRecord(-1, EventKind.OVERFLOW, op.site, frozenset(), op.count, 0, evidence, "headroom")
    return Fault(event, None, Verdict.RISKY)


_GROWING = frozenset(("dot", "convolution", "reduction", "scan", "attention"))


def _largest(storage: str) -> float | None:
    from precisionlab.formats import get_format

    return float(get_format(storage).max) if storage in ("fp16", "bf16", "fp8_e5m2", "fp8_e4m3fn") else None


def _is_structural_zero(sink: SinkRecord, root: EventRecord, limits: Thresholds) -> bool:
    """More noise than signal because the exact value is all but zero beside the operands (KL of equal distributions, a centred mean)."""
    return (
        _number(sink.evidence.get("drift")) > 1.0
        and _number(root.evidence.get("error_over_operands_u")) <= limits.output_drift_u
        and _number(root.evidence.get("result_over_operands_u")) < limits.structural_zero_u
    )


def _worst_per_kind(arrived: list[tuple[SinkRecord, Verdict]]) -> list[tuple[SinkRecord, Verdict]]:
    """Unexplained differences: one per kind of sink, the worst."""
    best: dict[SinkKind, tuple[SinkRecord, Verdict]] = {}
    for sink, verdict in arrived:
        known = best.get(sink.kind)
        if known is None or (verdict.severity, _number(sink.evidence.get("drift"))) > (
            known[1].severity,
            _number(known[0].evidence.get("drift")),
        ):
            best[sink.kind] = (sink, verdict)
    return list(best.values())


def _merge(faults: list[Fault]) -> list[Fault]:
    """One fault gives one finding: the same kind of event in the same function with the same op is one."""
    merged: dict[Any, Fault] = {}
    for fault in faults:
        event = fault.event
        key: Any = id(fault) if event is None else (event.kind, event.site.op, event.site.source, event.site.phase, event.detail)
        known = merged.get(key)
        if known is None or fault.verdict.severity > known.verdict.severity:
            merged[key] = fault
    merged = _one_per_scale(merged)
    anything_broken = any(f.verdict is Verdict.BROKEN for f in merged.values())
    broken_consequences = {
        (s.kind, s.name) for f in merged.values() if f.verdict is Verdict.BROKEN and f.event is not None for s in f.sinks
    }
    return [
        f
        for f in merged.values()
        if f.event is not None
        or f.sink is None
        or ((f.sink.kind, f.sink.name) not in broken_consequences and not (anything_broken and f.sink.evidence.get("nonfinite")))
    ]


def _one_per_scale(faults: dict[Any, Fault]) -> dict[Any, Fault]:
    """Gradients share one scale: an op that flushes them behind another that does is no second fault.

    In a step in which the first op stays just above the range, the next is the root of what is lost; they are one fault all the same, at
    the op nearest to the loss, with the consequences of both.
    """
    roots = {
        f.event.id: key
        for key, f in faults.items()
        if f.event is not None and f.event.kind is EventKind.FLUSH and f.event.site.phase is Phase.BACKWARD and f.verdict is Verdict.BROKEN
    }
    out = dict(faults)
    joined: dict[Any, Any] = {}
    for key in roots.values():
        event = faults[key].event
        before = sorted((event.parents & roots.keys()) - {event.id}) if event is not None else []
        for first in (roots[i] for i in before):
            while first in joined:
                first = joined[first]
            if first != key:
                behind, kept = out.pop(key), out[first]
                joined[key] = first
                out[first] = Fault(kept.event, kept.sink, kept.verdict, (*kept.sinks, *behind.sinks))
                break
    return out


def finding_of(fault: Fault) -> Finding | None:
    """The finding that a fault makes, in the words of its check; None where no check claims it."""
    check: type[Check] | None = check_for(fault)
    if check is None:
        return None
    event, sink = fault.event, fault.sink
    site = event.site if event is not None else sink.site if sink is not None else None
    parameter = next((str(s.evidence["parameter"]) for s in fault.sinks if "parameter" in s.evidence), None)
    message = check.message(fault)
    if sink is not None and sink.reason:
        message = f"{message.rstrip()} Consequence: {sink.reason}."
    module, op, phase, source = (site.module, site.op, site.phase, site.source) if site is not None else ("", "", Phase.OTHER, "")
    evidence = {**(sink.evidence if sink is not None else {}), **(event.evidence if event is not None else {})}
    text = site.line_text if site is not None else ""
    mark = hashlib.sha256("\0".join((check.code, module, op, str(phase), text)).encode()).hexdigest()[:16]
    count = event.count if event is not None else sink.count if sink is not None else 0
    first = event.first_step if event is not None else sink.first_step if sink is not None else 0
    return Finding(
        check.code,
        check.kind,
        fault.verdict,
        phase,
        module,
        op,
        source,
        parameter,
        message,
        evidence,
        check.advice(fault),
        count,
        first,
        mark,
    )


def _loss_shares(record: RunRecord) -> dict[Site, float]:
    """Op site -> its share of the expected loss error (root sum of squares), where the ledger explains enough to rank."""
    if record.ledger is None or not record.ledger.ranks:
        return {}
    energies: dict[Site, float] = defaultdict(float)
    for share in record.ledger.shares:
        if share.op is not None:
            energies[share.op] += share.rss_share**2
    return {site: math.sqrt(energy) for site, energy in energies.items()}


def _overall(findings: list[Finding], record: RunRecord) -> Verdict:
    if record.coverage.ops == 0 or record.coverage.shadowed == 0:
        return Verdict.UNKNOWN
    return Verdict.worst([f.verdict for f in findings])


def _inherited(record: RunRecord) -> int:
    origins = {e.site for e in record.events}
    return sum(1 for op in record.ops if op.introduced_nonfinite and op.site not in origins)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0
