from __future__ import annotations

import math

import pytest
from sample_reports import make_finding, make_op, make_record

from precisionlab.records import Coverage, Kind, Phase, StepRecord, Verdict
from precisionlab.report.model import Report


@pytest.fixture
def broken() -> Report:
    findings = [
        make_finding(),
        make_finding(1, Verdict.RISKY, code="PL301", kind=Kind.SWAMPING, parameter="head.weight", phase=Phase.OPTIMIZER),
    ]
    deep = make_op(11, Verdict.RISKY, 31.4159, "a/very/long/path/to/the/package/that/holds/the/model/gpt.py:41")
    ops = [make_op(0, Verdict.BROKEN, math.inf), deep, make_op(2, Verdict.SAFE, 0.52)]
    return Report(Verdict.BROKEN, findings, ops, make_record(), inherited=12, quiet_events=3, notes=["the judge says"])


@pytest.fixture
def safe() -> Report:
    record = make_record(coverage=Coverage(320, 320), notes=[], scaler=None, steps=[StepRecord(0, ops=320, loss=2.5, loss_hi=2.5)])
    return Report(Verdict.SAFE, [], [make_op(0, Verdict.SAFE, 0.5), make_op(1, Verdict.SAFE, 1.5)], record)


@pytest.fixture
def cut_short() -> Report:
    record = make_record(error="step 2 of 2: ValueError: bad batch (gpt.py:12)", notes=["cut short in step 2"], coverage=Coverage(160, 160))
    return Report(Verdict.UNKNOWN, [], [make_op(0, Verdict.SAFE, 0.5)], record)
