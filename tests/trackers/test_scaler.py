"""The loss scaler: its faults are named, its calibration is not, and its window is measured."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

import precisionlab as pl
import precisionlab.report
from precisionlab.records import Verdict

from .scaler_loops import BROKEN, LEAKING, RISKY, SOUND, equal_distributions, halve_and_double, hand_loop, scaler_loop, small_loss

CODES = {"PL401", "PL409"}


def audited(program: object) -> pl.Report:
    with pl.audit() as audit:
        program()  # type: ignore[operator]
    return audit.report


def said(report: pl.Report) -> list[tuple[str, str, str]]:
    return [(f.code, str(f.verdict), f.message) for f in report.findings]


@pytest.mark.parametrize("name", BROKEN)
def test_a_scale_that_cannot_work_is_broken(name: str) -> None:
    program, words = BROKEN[name]
    report = audited(program)
    assert any(f.code in CODES and f.verdict is Verdict.BROKEN and words in f.message for f in report.findings), said(report)


@pytest.mark.parametrize("name", RISKY)
def test_a_scale_that_loses_steps_or_gradients_is_risky(name: str) -> None:
    program, words = RISKY[name]
    report = audited(program)
    assert any(f.code in CODES and f.verdict is Verdict.RISKY and words in f.message for f in report.findings), said(report)


@pytest.mark.parametrize("name", SOUND)
def test_calibration_and_bad_batches_are_quiet(name: str) -> None:
    report = audited(SOUND[name])
    assert not [f for f in report.findings if f.code in CODES or f.verdict is Verdict.BROKEN], said(report)


def test_one_finite_check_for_two_optimizers_lets_an_overflow_into_the_weights() -> None:
    report = audited(LEAKING)
    assert report.verdict is Verdict.BROKEN
    assert any(f.evidence.get("used") or "after the step" in f.message for f in report.findings), said(report)


def test_skips_that_an_overflow_in_the_forward_pass_explains_are_no_second_finding() -> None:
    def overflow(loop: object) -> None:
        loop.x = loop.x * 60000.0  # type: ignore[attr-defined]

    report = audited(scaler_loop(4, overflow))
    assert report.verdict is Verdict.BROKEN
    assert not [f for f in report.findings if f.code in CODES], said(report)


def test_window_agrees_with_what_the_scaler_finds_by_trying() -> None:
    """Backing off from far above, the scaler stops at the largest power of two that does not overflow: the upper end of the window."""
    report = audited(scaler_loop(16, init_scale=2.0**24))
    scaler = report.record.scaler
    assert scaler is not None
    assert scaler["kind"] == "GradScaler"
    assert scaler["skips"] > 0
    assert math.log2(scaler["scale"]) == scaler["window"]["upper_log2"]
    assert scaler["window"]["headroom_binades"] == 0


@pytest.mark.parametrize("scale_log2", [0, 4, 12])
def test_window_does_not_depend_on_the_scale_in_force(scale_log2: int) -> None:
    windows = []
    for program in (hand_loop(lambda scale, fine: scale, 3, 2.0**scale_log2), scaler_loop(3, init_scale=2.0**10)):
        scaler = audited(program).record.scaler
        assert scaler is not None
        windows.append(scaler["window"])
    for end in ("lower_log2", "lower_normal_log2", "upper_log2", "results"):
        assert windows[0][end] == windows[1][end]


def test_a_scale_by_hand_is_followed() -> None:
    scaler = audited(hand_loop(halve_and_double, 12, 2.0**16)).record.scaler
    assert scaler is not None
    assert scaler["kind"] == "by hand"
    assert scaler["skips"] == sum(row["skipped"] for row in scaler["timeline"]) > 0
    for row in scaler["timeline"][:-1]:  # the last iteration is over, the next has not begun
        assert row["next_scale"] == row["scale"] * (0.5 if row["skipped"] else 2.0)
    overflowing = {row["scale"] for row in scaler["timeline"] if row["skipped"]}
    assert min(map(math.log2, overflowing)) == scaler["window"]["upper_log2"] + 1


def test_next_growth_is_told_with_what_it_will_do() -> None:
    scaler = audited(scaler_loop(16, init_scale=2.0**24)).record.scaler
    assert scaler is not None
    clean = next(i for i, row in enumerate(reversed(scaler["timeline"])) if row["skipped"])
    assert scaler["next"] == {"steps": 2000 - clean, "scale": 2.0 * scaler["scale"], "fits": False}


def test_flushed_gradients_are_given_a_scale_that_saves_them() -> None:
    report = audited(small_loss(1.0))
    flushed = [f for f in report.findings if f.code == "PL201"]
    assert flushed, said(report)
    scaler = report.record.scaler
    assert scaler is not None
    assert scaler["kind"] is None
    window = scaler["window"]
    assert window["flushed_energy_share"] > window["tolerated_energy_share"]
    assert f"scale the loss by 2^{window['advised_log2']}," in flushed[0].advice
    assert "start at 2^" in str(report)
    repaired = audited(small_loss(2.0 ** window["advised_log2"]))
    assert repaired.verdict is Verdict.SAFE, said(repaired)
    found = repaired.record.scaler
    assert found is not None
    assert found["window"]["flushed_energy_share"] <= window["tolerated_energy_share"]


def test_exact_zeros_that_rounding_fills_do_not_widen_the_window() -> None:
    """A bias in front of a batch norm has a gradient of exactly zero; fp64 has 2^-50 in its place."""
    torch.manual_seed(0)
    windows = []
    for bias in (False, True):
        net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, bias=bias), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Conv2d(8, 2, 3))
        x = torch.randn(4, 3, 8, 8)
        with pl.audit() as audit:
            for _ in range(2):
                with torch.amp.autocast("cpu", dtype=torch.float16):
                    loss = net(x).float().square().mean()
                (loss * 1024.0).backward()
        assert audit.report.record.scaler is not None
        windows.append(audit.report.record.scaler["window"])
    assert abs(windows[0]["lower_log2"] - windows[1]["lower_log2"]) <= 2
    assert max(row[0] for row in windows[1]["exponents"]) - min(row[0] for row in windows[1]["exponents"]) < 40


def test_gradients_that_are_exactly_zero_need_no_scale() -> None:
    assert "PL409" not in {f.code for f in audited(equal_distributions).findings}


def test_bf16_needs_no_window() -> None:
    net = torch.nn.Linear(4, 4, dtype=torch.bfloat16)
    with pl.audit() as audit:
        net(torch.ones(2, 4, dtype=torch.bfloat16)).sum().backward()
    assert audit.report.record.scaler is None


@pytest.mark.parametrize("name", ["NaN weights", "falls below 1 by hand", "grows past fp32 by hand"])
def test_reports_of_scalers_obey_the_shipped_schema(name: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(Path(precisionlab.report.__file__).with_name("schema.json").read_text())
    for program in (BROKEN[name][0], scaler_loop(3, init_scale=2.0**14), small_loss(1.0)):
        report = audited(program)
        assert report.record.scaler is not None
        jsonschema.validate(report.to_dict(), schema, jsonschema.Draft202012Validator)


def test_steps_hold_loss_norm_scale_and_skips() -> None:
    from .loops import Loop

    report = audited(scaler_loop(10, init_scale=2.0**22))
    rows = report.record.steps
    plain = Loop(lr=1e-3)
    loss = plain.loss()
    loss.backward()
    norm = math.sqrt(sum(float(p.grad.double().square().sum()) for p in plain.params))
    taken = [row for row in rows if not row.skipped]
    assert [row.index for row in taken] == list(range(len(taken)))
    assert sum(row.skipped for row in rows) == report.record.skipped_steps > 0
    assert rows[0].loss == pytest.approx(loss.item(), rel=1e-6)
    assert rows[0].loss_hi == pytest.approx(loss.item(), rel=1e-3)
    assert rows[0].scale == 2.0**22
    assert taken[0].gradient_norm == pytest.approx(norm, rel=1e-2)
    assert all(row.gradient_norm is None for row in rows if row.skipped)
