"""Laws in words, pictures and JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from synthetic import noisy

import precisionlab.report
from precisionlab.growth.analysis import AxisGrowth, analysed
from precisionlab.growth.document import growth_document
from precisionlab.growth.findings import add_findings
from precisionlab.growth.fits import Form
from precisionlab.growth.measurement import Measurement, Quantity, Sweep
from precisionlab.growth.picture import write_picture
from precisionlab.growth.plot import HEIGHT, plot
from precisionlab.growth.words import law_words, size_words, text
from precisionlab.records import RunRecord, Verdict
from precisionlab.report.model import Report
from precisionlab.report.to_json import plain

SIZES = [128.0, 256.0, 512.0, 1024.0, 2048.0]


def swept(axis: str = "seq_len", **series: list[list[float]]) -> AxisGrowth:
    """A sweep in fp16 with these values; ``peak`` at one place."""
    sweep = Sweep(axis, "fp16")
    for i, size in enumerate(SIZES):
        for seed in range(2):
            found = {Quantity(name): rows[i][seed] for name, rows in series.items()}
            places = {q: {"aten.bmm (model.py:41)": v} for q, v in found.items() if q in (Quantity.PEAK, Quantity.LOST)}
            sweep.measurements.append(Measurement(size, seed, {q: v for q, v in found.items() if q not in places}, places))
    return analysed(sweep)


def rows(form: Form, *p: float, noise: float = 0.02) -> list[list[float]]:
    return noisy(form, p, SIZES, noise, 2, np.random.default_rng(5))


@pytest.fixture
def linear_peak() -> AxisGrowth:
    return swept(drift_u=rows(Form.POWER, -2.0, 0.5), peak=rows(Form.POWER, 2.5, 1.0))


def test_the_law_and_the_forecast_are_said_with_their_intervals(linear_peak: AxisGrowth) -> None:
    said = text(linear_peak, [])
    assert "output drift: grows like seq_len^0.5" in said
    assert "headroom at aten.bmm (model.py:41) reaches 0 at seq_len 5" in said
    assert "(Higham & Mary 2019, 2020)" in said
    assert "along seq_len in fp16: 128, 256, 512, 1024, 2048 (2 seeds each)" in said
    assert re.search(r"headroom in fp16: 5\.[345]\d* binades at 128, 1\.[345]\d* at 2048", said)


def test_each_law_has_its_words() -> None:
    cases = {
        "does not grow": rows(Form.FLAT, 0.0),
        "grows exponentially, rate 0.003": rows(Form.EXPONENTIAL, 0.0, 0.003),
        "saturates at": rows(Form.CONTRACTED, 0.0, 5.5, noise=0.005),
        "shrinks like seq_len^-": rows(Form.POWER, 9.0, -1.0),
        "no law: no law describes the 5 sizes": [[1.0, 1.0], [40.0, 40.0], [2.0, 2.0], [70.0, 70.0], [1.0, 1.0]],
    }
    for words, series in cases.items():
        trend = swept(drift_u=series).trend(Quantity.DRIFT)
        assert trend is not None and words in law_words(trend), law_words(trend)
    onset = swept(flushed_energy_share=[[0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.2, 0.3], [0.5, 0.4]]).trend(Quantity.FLUSHED)
    assert onset is not None and law_words(onset) == "0 up to seq_len 512, not from 1024 on"


@pytest.mark.parametrize(("size", "words"), [(5123.4, "5120"), (32768.0, "32800"), (12.34, "12.3"), (7.0, "7"), (float("inf"), "never")])
def test_sizes_have_three_digits(size: float, words: str) -> None:
    assert size_words(size) == words


def test_the_plot_shows_points_law_and_limit(linear_peak: AxisGrowth) -> None:
    first = linear_peak.first
    assert first is not None
    lines = plot(first).splitlines()
    assert len(lines) == HEIGHT + 3
    body = "".join(lines[1:-2])
    assert body.count("o") >= len(SIZES) - 1 and "." in body and "-" in body
    assert plot(swept(drift_u=[[0.0, 0.0]] * 5).trends[0]) == ""


def test_the_document_obeys_the_shipped_schema(linear_peak: AxisGrowth) -> None:
    schema = json.loads(Path(precisionlab.report.__file__).with_name("schema.json").read_text())
    document = plain(growth_document([linear_peak], (), []))
    jsonschema.validate(document, {"$defs": schema["$defs"], **schema["properties"]["growth"]})
    axis = document["seq_len"]
    assert axis["sizes"] == SIZES and axis["law"] == "power" and axis["exponent"] == pytest.approx(0.5, abs=0.1)
    assert axis["interval"][0] < axis["exponent"] < axis["interval"][1]
    assert axis["forecast"]["quantity"] == "peak" and axis["forecast"]["limit"] == 65504
    assert axis["forecast"]["interval"][0] < axis["forecast"]["size"] < axis["forecast"]["interval"][1]


def test_a_refused_law_is_null_in_the_document() -> None:
    document = growth_document([swept(drift_u=[[1.0, 1.0], [40.0, 40.0], [2.0, 2.0], [70.0, 70.0], [1.0, 1.0]])], (), [])
    assert (document["seq_len"]["law"], document["seq_len"]["forecast"]) == (None, None)


def codes(growth: AxisGrowth, **targets: float) -> list[tuple[str, Verdict]]:
    report = Report(Verdict.SAFE, [], [], RunRecord())
    add_findings(report, [growth], targets)
    assert report.verdict is Verdict.worst([f.verdict for f in report.findings])
    return [(f.code, f.verdict) for f in report.findings]


def test_a_limit_before_the_target_is_broken_and_one_that_may_be_before_it_is_risky(linear_peak: AxisGrowth) -> None:
    assert codes(linear_peak, seq_len=32768) == [("PL510", Verdict.BROKEN)]
    first = linear_peak.first
    assert first is not None and first.forecast is not None
    assert codes(linear_peak, seq_len=(first.forecast.low + first.forecast.size) / 2) == [("PL510", Verdict.RISKY)]
    assert codes(linear_peak, seq_len=4096) == []
    assert codes(linear_peak) == []


def test_exponential_drift_is_risky_and_an_exponential_peak_alone_is_not() -> None:
    assert codes(swept("depth", drift_u=rows(Form.EXPONENTIAL, 0.0, 0.003))) == [("PL509", Verdict.RISKY)]
    assert codes(swept("depth", peak=rows(Form.EXPONENTIAL, 0.0, 0.003))) == []


def test_gradients_that_worsen_with_micro_batches_are_found_and_with_length_are_not() -> None:
    growing = rows(Form.POWER, -2.0, 0.5)
    assert codes(swept("micro_batches", gradient_error_u=growing)) == [("PL511", Verdict.RISKY)]
    assert codes(swept("seq_len", gradient_error_u=growing)) == []
    assert codes(swept("micro_batches", gradient_error_u=rows(Form.FLAT, 0.0))) == []


@pytest.mark.parametrize("suffix", [".svg", ".png", ".html"])
def test_pictures_have_every_trend_and_the_same_bytes_each_time(suffix: str, linear_peak: AxisGrowth, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    first, second = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    write_picture(first, [linear_peak])
    write_picture(second, [linear_peak])
    data = first.read_bytes()
    assert data == second.read_bytes()
    assert data.startswith({".svg": b"<?xml", ".png": b"\x89PNG", ".html": b"<!doctype html>"}[suffix])
