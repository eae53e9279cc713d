"""Building faults for the tests, from the few facts that a test is about."""

from __future__ import annotations

from itertools import product

from precisionlab.checks.base import Fault
from precisionlab.checks.protocol import protocol_codes
from precisionlab.records import EventKind, EventRecord, Phase, SinkKind, SinkRecord, Site, Verdict


def event(
    kind: EventKind,
    detail: str = "",
    *,
    op: str = "aten.exp",
    module: str = "blocks.3.attn",
    phase: Phase = Phase.FORWARD,
    line: str = "",
    function: str = "forward",
    **evidence: float | int | str | bool,
) -> EventRecord:
    site = Site(module, op, phase, "model.py:41", line, function)
    return EventRecord(1, kind, site, frozenset(), 1, 0, dict(evidence), detail)


def sink(kind: SinkKind, name: str = "logits", **evidence: float | int | str | bool) -> SinkRecord:
    return SinkRecord(kind, name, None, frozenset({1}), Verdict.BROKEN, "32 of 64 logits are NaN", dict(evidence), 1, 0)


def fault(root: EventRecord | None, reached: SinkRecord | None = None) -> Fault:
    return Fault(root, reached, Verdict.BROKEN, (reached,) if reached is not None else ())


DETAILS: dict[EventKind, tuple[str, ...]] = {
    EventKind.OVERFLOW: ("", "result", "accumulator", "constant", "cast", "integer", "headroom"),
    EventKind.DOMAIN: ("", "log", "acos", "div", "sqrt", "softmax"),
    EventKind.FLUSH: ("", "result", "cast", "constant", "subnormal"),
    EventKind.LOST: ("", "add", "write-back", "accumulate"),
    EventKind.CAST: ("", "integer to float", "float to integer", "narrowing"),
    EventKind.CONSTANT: ("", "rounds to 1", "rounds to 0", "rounds to infinity", "rounds"),
    EventKind.RHO: ("", "target"),
    EventKind.GAIN: ("",),
    EventKind.FLIP: ("",),
    EventKind.TIE: ("",),
    EventKind.GROWTH: ("", "exponential", "crossing", "partial sums"),
    EventKind.PROTOCOL: ("", "a-name-nobody-knows", *protocol_codes()),
}
OPS = ("aten.exp", "aten.add_", "c10d.allreduce_")
SINKS = (None, *(sink(kind) for kind in SinkKind), sink(SinkKind.GRADIENT, flushed_share=0.5), sink(SinkKind.OUTPUT, nonfinite=3))


def every_fault() -> list[Fault]:
    """Every event kind, detail, phase, kind of op and sink that there is, combined; and every sink without an event."""
    caused = [
        fault(event(kind, detail, op=op, phase=phase), reached)
        for kind, details in DETAILS.items()
        for detail, phase, op, reached in product(details, Phase, OPS, SINKS)
    ]
    return caused + [fault(None, reached) for reached in SINKS]
