"""Steps, scaler and parameters in the printed report, and the measured scale in the advice."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from sample_reports import make_finding, make_scaler

from precisionlab.records import Kind, Phase, StepRecord
from precisionlab.report.model import Report
from precisionlab.report.scale_advice import with_scale
from precisionlab.report.table import render_table
from precisionlab.report.table_steps import MAX_STEPS, chosen, start_with


def words(report: Report, **options: object) -> str:
    return " ".join(render_table(report, **options).split())  # type: ignore[arg-type]


def steps(n: int, skipped: set[int]) -> list[StepRecord]:
    return [StepRecord(i, ops=1, loss=float(i), skipped=i in skipped) for i in range(n)]


@pytest.mark.parametrize("n", [1, 2, 9, 10, 11, 500])
@pytest.mark.parametrize("skipped", [set(), {3}, set(range(2, 8)), set(range(400))])
def test_at_most_ten_steps_with_first_last_and_skips(n: int, skipped: set[int]) -> None:
    skipped = {i for i in skipped if i < n}
    rows = steps(n, skipped)
    shown = chosen(rows)
    assert len(shown) == min(n, MAX_STEPS)
    assert shown == sorted(shown, key=lambda row: row.index)
    assert len({row.index for row in shown}) == len(shown)
    assert shown[0] is rows[0]
    assert shown[-1] is rows[-1]
    assert sum(row.skipped for row in shown) >= min(len(skipped), MAX_STEPS // 2 - 2)


def test_chosen_steps_are_spread_evenly() -> None:
    indices = [row.index for row in chosen(steps(1000, set()))]
    gaps = [b - a for a, b in itertools.pairwise(indices)]
    assert max(gaps) < 2.1 * 1000 / MAX_STEPS


def test_a_single_step_needs_no_table(safe: Report) -> None:
    assert "fp64 loss" not in render_table(safe)
    assert "fp64 loss" in render_table(safe, all_ops=True)


def test_unscaled_steps_have_no_scale_column(safe: Report) -> None:
    safe.record.steps = steps(3, set())
    text = render_table(safe)
    assert "fp64 loss" in text
    assert "scale" not in text


def test_scaler_says_where_the_scale_stands_in_its_window(safe: Report) -> None:
    safe.record.scaler = make_scaler(skips=0)
    assert "fp16 gradients fit at scales from 2^3 to 2^15; now 0 binades of headroom, 0 % of their energy is flushed" in words(safe)
    assert "after 1999 more clean steps it grows to 2^16, which overflows" in words(safe)
    assert "start at" not in words(safe)


def test_a_start_is_advised_where_the_scaler_had_to_skip(safe: Report) -> None:
    safe.record.scaler = make_scaler()
    assert "start at 2^13: 0.02 % of the gradient energy lost, 2 binades of headroom" in words(safe)


def test_a_start_is_advised_where_the_scale_is_too_low_or_too_high() -> None:
    assert start_with(make_scaler(kind="by hand", skips=0, scale_log2=1.0)).startswith("2^13")
    assert start_with(make_scaler(kind="by hand", skips=0, scale_log2=17.0)).startswith("2^13")
    assert start_with(make_scaler(kind="by hand", skips=0, scale_log2=9.9)) == ""


def test_an_empty_window_is_said(safe: Report) -> None:
    safe.record.scaler = make_scaler(lower_log2=20)
    assert "no scale fits the fp16 gradients (the small need 2^20, the large allow 2^15)" in words(safe)


def test_without_a_scaler_the_window_is_told_only_where_gradients_are_flushed(safe: Report) -> None:
    scaler = make_scaler(kind=None, scale=None, skips=0, next=None, timeline=[], scale_log2=0.0)
    safe.record.scaler = scaler
    assert "scaler" not in render_table(safe)
    assert "none: the loss is not scaled" in words(safe, all_ops=True)
    scaler["window"]["flushed_energy_share"] = 0.3  # type: ignore[index]
    assert "unscaled, 30 % of their energy is flushed to zero start at 2^13" in words(safe)


def test_a_scaler_without_fp16_gradients_is_told_to_be_needless(safe: Report) -> None:
    safe.record.scaler = make_scaler(window=None)
    assert "no finite gradient was seen in fp16" not in words(safe)
    assert "the range of fp32 needs no loss scale" in words(safe)
    safe.ops = [replace(op, phase=Phase.BACKWARD) for op in safe.ops]
    assert "no finite gradient was seen in fp16" in words(safe)


def test_parameters_are_shown_only_when_a_finding_is_about_them(broken: Report) -> None:
    broken.findings = broken.findings[:1]
    assert "swamped" not in render_table(broken)
    assert "embed.weight" in render_table(broken, all_ops=True)
    broken.findings = [make_finding(code="PL201")]
    assert "blocks.0.norm1.weight" in render_table(broken)
    assert "embed.weight" not in render_table(broken)


@pytest.mark.parametrize("width", [50, 60, 80])
def test_parameter_names_stay_readable_on_narrow_screens(broken: Report, width: int) -> None:
    assert "blocks.0.norm1.weight" in render_table(broken, all_ops=True, width=width)


def test_flushed_gradients_are_told_the_measured_scale() -> None:
    finding = make_finding(code="PL201", kind=Kind.UNDERFLOW, phase=Phase.BACKWARD, advice="Scale the loss.")
    scaler = make_scaler(scale_log2=0.0, flushed_energy_share=0.4)
    assert with_scale(finding, scaler).advice == (
        "Scale the loss. Measured here: scale the loss by 2^13, which loses 0.02 % of the gradient energy (now 40 %) and leaves"
        " 2 binades of headroom."
    )
    assert with_scale(finding, make_scaler(scale_log2=13.0)) == finding
    assert with_scale(finding, None) == finding
    none = make_scaler(scale_log2=0.0, flushed_energy_share=0.4, advised_flushed_energy_share=0.2)
    assert "still flushes 20 % of the gradient energy (now 40 %); none saves it all" in with_scale(finding, none).advice


def test_overflowing_gradients_are_told_the_largest_scale() -> None:
    finding = make_finding(code="PL202", phase=Phase.BACKWARD, advice="Lower it.")
    assert with_scale(finding, make_scaler(kind="by hand", scale_log2=20.0)).advice == (
        "Lower it. Measured here: nothing overflows up to 2^15; start at 2^13."
    )
    assert with_scale(finding, make_scaler(kind=None, scale_log2=20.0)) == finding
    assert with_scale(make_finding(phase=Phase.FORWARD), make_scaler(scale_log2=20.0)).advice == make_finding().advice
