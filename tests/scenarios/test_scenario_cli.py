"""``precisionlab scenarios``: what it prints, what it refuses, what it returns."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from precisionlab import scenarios
from precisionlab.cli.app import app
from precisionlab.scenarios.model import Claim


def run(*words: object, answers: str | None = None) -> Any:
    return CliRunner().invoke(app, ["scenarios", *map(str, words)], input=answers)


def test_list_names_every_scenario_and_counts_the_silent_ones() -> None:
    text = run("list").stdout
    assert all(name in text for name in scenarios.names())
    assert max(map(len, text.splitlines()[:-1])) <= 80
    assert "a plain run shows nothing" in text.splitlines()[-1]


def test_list_chooses_by_topic_level_code_and_format() -> None:
    for words, keep in (
        (["--topic", "weight updates"], lambda s: s.topic == "weight updates"),
        (["--topic", "log softmax"], lambda s: "log softmax" in s.covers),
        (["--level", "expert"], lambda s: s.level == "expert"),
        (["--code", "pl5"], lambda s: any(code.startswith("PL5") for code in s.codes)),
        (["--dtype", "half"], lambda s: s.dtype == "fp16"),
    ):
        found = [entry["name"] for entry in json.loads(run("list", "--format", "json", *words).stdout)]
        assert found == [s.name for s in scenarios.all_scenarios() if keep(s)], words


def test_list_silent_leaves_out_what_shows_and_what_is_healthy() -> None:
    found = json.loads(run("list", "--silent", "--format", "json").stdout)
    assert found and all(entry["silent"] and not entry["healthy"] for entry in found)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["show", "past-6550"], "past-65504"),
        (["run", "xyzzy"], "precisionlab scenarios list"),
        (["list", "--code", "PL999"], "PL9"),
        (["list", "--topic", "wieght updates"], "weight updates"),
        (["list", "--level", "wizard"], "expert"),
        (["list", "--dtype", "fp17"], "fp16"),
        (["list", "--format", "yaml"], "markdown"),
        (["run", "stochastic-rounding", "--dtype", "fp16"], "bf16 only"),
    ],
)
def test_wrong_words_are_2_and_say_what_there_is(words: list[str], told: str) -> None:
    done = run(*words)
    assert done.exit_code == 2
    if told != "PL9":
        assert told in done.stderr


def test_a_finding_code_shows_the_easiest_scenario_that_has_it() -> None:
    assert run("show", "pl301").stdout.splitlines()[2].startswith("bf16-weights-at-small-lr · bf16 · first steps")


def test_show_prints_the_lesson_with_its_numbers() -> None:
    text = run("show", "past-65504", "--source").stdout
    assert "the product 75000" in " ".join(text.split())
    assert "def broken(" in text and "What happens" in text


def test_run_shows_programs_audits_numbers_and_what_to_read_in_80_columns() -> None:
    text = run("run", "spacing-after-one").stdout
    for part in ("a plain run shows", "nothing (all values finite, no warning)", "PL501", "SAFE", "the numbers", "scenarios quiz"):
        assert part in text
    assert max(map(len, text.splitlines())) <= 80


def test_run_in_steps_shows_the_same_parts() -> None:
    assert "PL101" in run("run", "past-65504", "--step").stdout


def test_run_in_another_format_says_so() -> None:
    text = run("run", "past-65504", "--dtype", "bf16").stdout
    assert "Here in bf16" in text and "BROKEN" not in text


def test_html_is_one_file_without_links_and_has_everything(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    page, picture = tmp_path / "a.html", tmp_path / "a.svg"
    assert run("run", "spacing-after-one", "--html", page, "--svg", picture).exit_code == 0
    text = page.read_text()
    assert "<svg" in text and "PL501" in text and "What happens" in text and "def broken" in text
    assert 'src="' not in text and '<link rel="stylesheet"' not in text
    assert picture.read_text().startswith("<svg")


def test_the_same_run_gives_the_same_page() -> None:
    pytest.importorskip("matplotlib")
    from precisionlab.scenarios.page import page

    assert page(scenarios.run("past-65504")) == page(scenarios.run("past-65504"))


def test_without_the_plots_extra_html_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    done = run("run", "spacing-after-one", "--html", tmp_path / "a.html")
    assert done.exit_code == 2
    assert "pip install 'precisionlab[plots]'" in done.stderr


def test_check_is_0_when_all_is_well_and_1_with_the_number_that_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("check", "past-65504").exit_code == 0
    scenario = scenarios.get("past-65504")
    monkeypatch.setitem(scenario.claims, "exact", Claim(1.0, 2.0))  # type: ignore[arg-type]
    done = run("check", "past-65504")
    assert done.exit_code == 1
    assert "number exact moved out of its range: 75000, claimed 1 to 2" in done.stdout


def test_quiz_tells_right_from_wrong_by_the_run() -> None:
    question = scenarios.get("running-sum-of-ones").questions[0]
    right = next(i for i, (text, _) in enumerate(question.choices) if text == "256")
    good = run("quiz", "running-sum-of-ones", answers=f"x\n{'abcd'[right]}\n").stdout
    bad = run("quiz", "running-sum-of-ones", answers="a\n").stdout
    assert "'x' is none of the choices" in good and "1 of 1 right" in good
    assert "not so" in bad and "end = 256" in bad and "0 of 1 right" in bad


def test_quiz_without_answers_is_2() -> None:
    done = run("quiz", "running-sum-of-ones", answers="")
    assert done.exit_code == 2 and "needs answers" in done.stderr


def test_try_opens_a_prompt_with_results_and_audit() -> None:
    done = run("try", "past-65504", answers="print(report.verdict, audit.where(results['largest'])['op'])\n")
    assert "broken aten.max" in done.stdout
    from precisionlab.session import running

    assert running() is None
