"""Invariant 4: on healthy networks nothing is broken, and risky findings stay under 5 per 1000 op instances.

The whole table: ``./dev bench healthy``.
"""

from __future__ import annotations

import pytest

from bench.healthy import RISKY_PER_1000, Row, measure
from bench.models import PLANS, PROGRAMS

FP16_AMP, FP16_PURE, BF16_AMP, BF16_PURE = PLANS

FAST = [
    ("digits-mlp", FP16_AMP),
    ("digits-cnn", FP16_AMP),
    ("gpt-bytes", BF16_AMP),
    ("gpt-key-bias", BF16_AMP),
    ("lstm", BF16_PURE),
    ("lstm-unrolled", BF16_AMP),
    ("scaler-calibrates", FP16_AMP),
    ("convergence", BF16_AMP),
]
"""Seconds each; the slow test runs them all."""


def assert_quiet(row: Row) -> None:
    if row.state == "skipped":
        pytest.skip(row.note)
    assert row.state == "ok", row.note
    said = "\n".join(f"{f['code']} {f['verdict']} {f['op']} {f['source']}: {f['message']}" for f in row.findings)
    assert row.identical, "the audit changed the losses"
    assert row.broken == 0, said
    assert row.risky_per_1000 <= RISKY_PER_1000, said


@pytest.mark.parametrize(("name", "plan"), FAST, ids=lambda x: str(x))
def test_a_healthy_program_is_called_neither_broken_nor_often_risky(name, plan):
    assert_quiet(measure(PROGRAMS[name], plan))


def test_every_op_of_a_healthy_gpt_is_shadowed():
    row = measure(PROGRAMS["gpt-bytes"], BF16_AMP)
    assert row.ops > 500
    assert row.unshadowed == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PROGRAMS))
@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_every_healthy_program_under_every_plan_is_quiet(name, plan):
    if plan not in PROGRAMS[name].plans:
        pytest.skip("not written for this plan")
    assert_quiet(measure(PROGRAMS[name], plan))
