from __future__ import annotations

import re

import pytest
from report_gold import assert_gold
from sample_reports import make_finding, make_op

from precisionlab.records import Verdict
from precisionlab.report.model import Report
from precisionlab.report.table import MAX_FINDINGS, render_table

SCREEN = 24


@pytest.mark.parametrize("which", ["broken", "safe", "cut_short"])
def test_table_gold(which: str, request: pytest.FixtureRequest) -> None:
    assert_gold(f"{which}.txt", render_table(request.getfixturevalue(which)) + "\n")


def test_all_ops_gold(broken: Report) -> None:
    assert_gold("broken_all.txt", render_table(broken, all_ops=True, width=100) + "\n")


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_wider_than_asked(broken: Report, width: int) -> None:
    assert max(len(line) for line in render_table(broken, all_ops=True, width=width).splitlines()) <= width


def test_first_screen_says_whether_it_is_safe_what_breaks_where_and_what_to_change(broken: Report) -> None:
    screen = "\n".join(render_table(broken).splitlines()[:SCREEN])
    for said in ("BROKEN", "PL101", "aten.pow", "blocks.0.norm1", "gpt.py:41", "Square and sum in fp32"):
        assert said in screen


@pytest.mark.parametrize("verdict", list(Verdict))
def test_verdict_is_a_word_without_colour(verdict: Verdict, safe: Report) -> None:
    safe.verdict = verdict
    assert str(verdict).upper() in render_table(safe, color=False)


def test_colour_only_adds_escape_codes(broken: Report) -> None:
    coloured = render_table(broken, color=True)
    assert coloured != render_table(broken)
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == render_table(broken)


def test_only_the_worst_findings_are_shown_without_all(broken: Report) -> None:
    broken.findings = [make_finding(i) for i in range(MAX_FINDINGS + 3)]
    assert "... and 3 findings more (--all)" in render_table(broken)
    assert "more (--all)" not in render_table(broken, all_ops=True)


def test_safe_ops_are_shown_only_with_all(broken: Report) -> None:
    assert "blocks.2.norm1" not in render_table(broken)
    assert "blocks.2.norm1" in render_table(broken, all_ops=True)


def test_unshadowed_ops_are_named_with_count_and_reason(broken: Report) -> None:
    text = " ".join(render_table(broken).split())
    assert "317 of 320 ops shadowed (99.0 %); not: aten.foo x2 (no fp64 kernel), aten.bar x1" in text


def test_a_run_cut_short_says_so_beside_the_verdict(cut_short: Report) -> None:
    assert "INCOMPLETE: the subject raised in step 2 of 2: ValueError: bad batch (gpt.py:12)" in render_table(cut_short)


def test_almost_full_coverage_is_not_rounded_to_all_of_it(safe: Report) -> None:
    safe.record.coverage.ops, safe.record.coverage.shadowed = 100_000, 99_999
    assert "99.9 %" in render_table(safe)


def test_text_of_an_audit_without_settings_renders(safe: Report) -> None:
    safe.record.settings.clear()
    safe.ops = [make_op(0, Verdict.SAFE, float("nan"))]
    assert str(safe).startswith("SAFE: low precision changes nothing that matters here (1 op site")
