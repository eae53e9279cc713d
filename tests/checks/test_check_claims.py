"""Which check describes which fault: always one, always the same, and the intended one."""

from __future__ import annotations

import pytest
from check_faults import DETAILS, event, every_fault, fault, sink

from precisionlab.checks import catalogue
from precisionlab.checks.base import Fault, all_checks, check_for
from precisionlab.checks.protocol import protocol_codes
from precisionlab.records import EventKind, Phase, SinkKind


def test_every_kind_of_event_is_listed_here() -> None:
    assert set(DETAILS) == set(EventKind)


def test_every_fault_has_exactly_one_first_claimant() -> None:
    for one in every_fault():
        claimants = [c for c in all_checks().values() if c.claims(one)]
        assert claimants, one
        first = min(c.order for c in claimants)
        assert sum(c.order == first for c in claimants) == 1, (one, [(c.code, c.order) for c in claimants])
        assert check_for(one) is min(claimants, key=lambda c: c.order)


def test_every_check_that_judges_faults_wins_one() -> None:
    winners = {check.code for one in every_fault() if (check := check_for(one)) is not None}
    documentation = {"PL901", "PL902", "PL903"}
    assert winners == set(all_checks()) - documentation


def test_the_catalogue_is_complete_and_named_after_its_files() -> None:
    expected = (
        "PL101 PL102 PL103 PL104 PL105 PL106 PL107 PL108 PL109 PL201 PL202 PL203 PL301 PL302 PL303 PL304 PL401 PL402 PL403 PL404 PL405 "
        "PL406 PL407 PL408 PL409 PL501 PL502 PL503 PL504 PL505 PL506 PL507 PL508 PL509 PL510 PL511 PL601 PL901 PL902 PL903"
    )
    assert list(all_checks()) == expected.split()
    assert catalogue.all_checks is all_checks
    for code, check in all_checks().items():
        assert check.__module__ == f"precisionlab.checks.{code.lower()}"


E_ = EventKind
CASES: list[tuple[str, Fault]] = [
    ("PL101", fault(event(E_.OVERFLOW, "result"), sink(SinkKind.OUTPUT))),
    ("PL101", fault(event(E_.OVERFLOW, "result"), sink(SinkKind.GRADIENT))),
    ("PL101", fault(event(E_.OVERFLOW, "result", op="aten.pow", phase=Phase.CLIP), sink(SinkKind.UPDATE))),
    ("PL102", fault(event(E_.OVERFLOW, "accumulator", op="aten.sum"), sink(SinkKind.LOSS))),
    ("PL102", fault(event(E_.OVERFLOW, "accumulator", op="aten._foreach_norm", phase=Phase.CLIP), sink(SinkKind.UPDATE))),
    ("PL103", fault(event(E_.OVERFLOW, "cast"), sink(SinkKind.OUTPUT))),
    ("PL103", fault(event(E_.OVERFLOW, "constant"), None)),
    ("PL103", fault(event(E_.CONSTANT, "rounds to infinity", phase=Phase.OPTIMIZER), sink(SinkKind.UPDATE))),
    ("PL104", fault(event(E_.OVERFLOW, "headroom", phase=Phase.BACKWARD), None)),
    ("PL105", fault(event(E_.FLUSH, "result"), sink(SinkKind.GRADIENT))),
    ("PL105", fault(event(E_.FLUSH, "result", phase=Phase.BACKWARD), sink(SinkKind.EXIT))),
    ("PL106", fault(event(E_.CAST, "integer to float"), sink(SinkKind.DECISION))),
    ("PL106", fault(event(E_.OVERFLOW, "integer"), sink(SinkKind.OUTPUT))),
    ("PL107", fault(event(E_.FLUSH, "constant"), sink(SinkKind.OUTPUT))),
    ("PL107", fault(event(E_.CONSTANT, "rounds to 1"), sink(SinkKind.EXIT))),
    ("PL108", fault(event(E_.DOMAIN, "acos"), sink(SinkKind.OUTPUT))),
    ("PL109", fault(None, sink(SinkKind.OUTPUT, nonfinite=3))),
    ("PL109", fault(None, sink(SinkKind.GRADIENT, nonfinite=3))),
    ("PL201", fault(event(E_.FLUSH, "result", phase=Phase.BACKWARD), sink(SinkKind.GRADIENT))),
    ("PL201", fault(event(E_.FLUSH, "result", phase=Phase.BACKWARD), sink(SinkKind.UPDATE))),
    ("PL202", fault(event(E_.OVERFLOW, "cast", phase=Phase.BACKWARD), sink(SinkKind.UPDATE))),
    ("PL202", fault(event(E_.OVERFLOW, "accumulator", phase=Phase.BACKWARD), sink(SinkKind.GRADIENT))),
    ("PL202", fault(event(E_.OVERFLOW, "result", op="c10d.allreduce_", phase=Phase.OTHER), sink(SinkKind.GRADIENT))),
    ("PL203", fault(event(E_.LOST, "accumulate", phase=Phase.BACKWARD), sink(SinkKind.GRADIENT))),
    ("PL301", fault(event(E_.LOST, "add", phase=Phase.OPTIMIZER), sink(SinkKind.UPDATE))),
    ("PL301", fault(None, sink(SinkKind.UPDATE))),
    ("PL302", fault(event(E_.LOST, "accumulate", phase=Phase.OPTIMIZER), sink(SinkKind.ACCUMULATOR))),
    ("PL302", fault(event(E_.LOST, "add", phase=Phase.OTHER), sink(SinkKind.ACCUMULATOR))),
    ("PL303", fault(event(E_.FLUSH, "cast", phase=Phase.OTHER), sink(SinkKind.STATE))),
    ("PL303", fault(event(E_.CONSTANT, "rounds to 1", phase=Phase.OPTIMIZER), sink(SinkKind.UPDATE))),
    ("PL303", fault(event(E_.FLUSH, "constant", phase=Phase.OPTIMIZER), sink(SinkKind.UPDATE))),
    ("PL501", fault(event(E_.GAIN, phase=Phase.OPTIMIZER), sink(SinkKind.UPDATE))),
    ("PL502", fault(event(E_.RHO, phase=Phase.BACKWARD), sink(SinkKind.GRADIENT))),
    ("PL503", fault(event(E_.LOST, "add"), sink(SinkKind.UPDATE))),
    ("PL503", fault(event(E_.LOST, "write-back"), sink(SinkKind.OUTPUT))),
    ("PL504", fault(event(E_.CAST, "narrowing"), sink(SinkKind.OUTPUT))),
    ("PL505", fault(event(E_.TIE), sink(SinkKind.DECISION))),
    ("PL506", fault(event(E_.FLIP), sink(SinkKind.DECISION))),
    ("PL507", fault(None, sink(SinkKind.OUTPUT))),
    ("PL509", fault(event(E_.GROWTH, "exponential"), None)),
    ("PL510", fault(event(E_.GROWTH, "crossing"), None)),
    ("PL511", fault(event(E_.GROWTH, "partial sums", phase=Phase.BACKWARD), None)),
]


@pytest.mark.parametrize(("code", "one"), CASES, ids=[f"{code}-{i}" for i, (code, _) in enumerate(CASES)])
def test_a_typical_fault_is_described_by_its_check(code: str, one: Fault) -> None:
    check = check_for(one)
    assert check is not None
    assert check.code == code


@pytest.mark.parametrize(("name", "code"), protocol_codes().items())
def test_each_protocol_fault_has_its_check(name: str, code: str) -> None:
    check = check_for(fault(event(E_.PROTOCOL, name, op="clip_grad_norm_", phase=Phase.CLIP), sink(SinkKind.UPDATE)))
    assert check is not None
    assert check.code == code
