"""From events and sinks to findings, on records made by hand."""

from __future__ import annotations

from precisionlab.records import EventKind, EventRecord, Phase, RunRecord, SinkKind, SinkRecord, Site, Verdict
from precisionlab.report.judge import judge
from precisionlab.report.model import Finding
from precisionlab.thresholds import Thresholds

FLUSHED = {"flushed": 9, "elements": 10, "flushed_energy_share": 0.9, "dtype": "fp16"}


def event(number: int, kind: EventKind, op: str, parents: set[int], phase: Phase = Phase.BACKWARD) -> EventRecord:
    evidence = {"gain": 20.0, "dtype": "fp16"} if kind is EventKind.GAIN else dict(FLUSHED)
    return EventRecord(
        number, kind, Site("net", op, phase, f"train.py:{number}", "x @ w", "f"), frozenset(parents), 1, 0, evidence, "result"
    )


def lost(name: str, events: set[int]) -> SinkRecord:
    evidence = {"efficiency": 0.1, "parameter": name}
    return SinkRecord(
        SinkKind.GRADIENT,
        name,
        None,
        frozenset(events),
        Verdict.BROKEN,
        f"only 10% of the gradient of {name} survives",
        evidence,
        1,
        0,
        True,
    )


def broken(events: list[EventRecord], sinks: list[SinkRecord]) -> list[Finding]:
    record = RunRecord(events=events, sinks=sinks, optimizer_steps=3, backwards=3)
    record.coverage.ops = record.coverage.shadowed = 10
    return [f for f in judge(record, Thresholds()).findings if f.verdict is Verdict.BROKEN]


def test_amplified_noise_in_front_of_a_flush_does_not_excuse_it():
    found = broken([event(0, EventKind.GAIN, "aten._to_copy", set()), event(1, EventKind.FLUSH, "aten.mm", {0})], [lost("w", {0, 1})])
    assert [(f.code, f.op) for f in found] == [("PL201", "aten.mm")]


def test_amplified_noise_alone_convicts_no_gradient():
    assert broken([event(0, EventKind.GAIN, "aten._to_copy", set())], [lost("w", {0})]) == []


def test_gradients_flushed_behind_one_another_are_one_fault_at_the_op_nearest_to_the_loss():
    events = [event(0, EventKind.FLUSH, "aten.mm", set()), event(1, EventKind.FLUSH, "aten.gelu_backward", {0})]
    events.append(event(2, EventKind.FLUSH, "aten.bmm", {1}))
    for sinks in ([{0, 1, 2}, {1, 2}, {2}], [{2}, {1, 2}, {0, 1, 2}]):
        found = broken(events, [lost(f"w{i}", s) for i, s in enumerate(sinks)])
        assert [(f.code, f.op) for f in found] == [("PL201", "aten.mm")]


def test_two_branches_that_flush_for_themselves_are_two_faults():
    events = [event(0, EventKind.FLUSH, "aten.mm", set()), event(1, EventKind.FLUSH, "aten.bmm", set())]
    assert {f.op for f in broken(events, [lost("a", {0}), lost("b", {1})])} == {"aten.mm", "aten.bmm"}


def test_flushed_activations_in_front_of_a_flushed_gradient_stay_two_faults():
    events = [event(0, EventKind.FLUSH, "aten.exp", set(), Phase.FORWARD), event(1, EventKind.FLUSH, "aten.mm", {0})]
    assert {f.op for f in broken(events, [lost("a", {0}), lost("b", {1})])} == {"aten.exp", "aten.mm"}
