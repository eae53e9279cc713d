"""What every file of the library must be, read without running it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter

import pytest

from precisionlab import scenarios
from precisionlab.checks import catalogue  # noqa: F401  (registers the checks)
from precisionlab.checks.base import all_checks
from precisionlab.scenarios.catalogue import RECORD, folder, recorded, recorded_numbers
from precisionlab.scenarios.fundamentals import FUNDAMENTALS
from precisionlab.scenarios.listing import is_silent
from precisionlab.scenarios.model import Scenario, ScenarioError, read
from precisionlab.scenarios.text import lesson

EVERY = scenarios.all_scenarios()
KEYS = {key for part in FUNDAMENTALS.values() for key in part}
WORDS_OF_A_LESSON = (90, 480)
"""A quarter of a page to a page."""

each = pytest.mark.parametrize("scenario", EVERY, ids=lambda scenario: scenario.name)


def test_there_are_at_least_45_and_eight_of_them_are_healthy() -> None:
    assert len(EVERY) >= 45
    assert sum(scenario.healthy for scenario in EVERY) >= 8


def test_names_are_unique() -> None:
    assert max(Counter(scenario.name for scenario in EVERY).values()) == 1


def test_every_fundamental_is_taught() -> None:
    assert {key for scenario in EVERY for key in scenario.covers} == KEYS


def test_a_plain_run_shows_nothing_for_at_least_ten_faults() -> None:
    assert sum(is_silent(scenario) for scenario in EVERY) >= 10


def test_what_is_recorded_is_what_exists() -> None:
    assert sorted(recorded()) == sorted(scenario.name for scenario in EVERY)


@each
def test_its_lesson_has_about_a_page_and_sources(scenario: Scenario) -> None:
    text = " ".join(body for title, body in scenario.sections.items() if title != "Sources")
    assert WORDS_OF_A_LESSON[0] <= len(text.split()) <= WORDS_OF_A_LESSON[1]
    assert re.search(r"\d{4}|issue|PyTorch|torch\.|Higham|precisionlab explain", scenario.sections["Sources"])


@each
def test_every_number_is_used_and_every_placeholder_filled(scenario: Scenario) -> None:
    numbers = recorded_numbers(scenario)
    assert numbers.keys() == scenario.claims.keys()
    told = scenario.hook + " ".join(scenario.sections.values())
    asked = " ".join(condition for question in scenario.questions for _, condition in question.choices)
    unused = [name for name in numbers if f"{{{name}" not in told and not re.search(rf"\b{name}\b", asked)]
    assert unused == []
    assert "{" not in lesson(scenario, numbers)


@each
def test_it_expects_codes_that_exist_or_says_why_there_is_none(scenario: Scenario) -> None:
    assert set(scenario.codes) <= set(all_checks())
    assert bool(scenario.expect) + scenario.healthy + bool(scenario.unnamed) == 1


@each
def test_its_words_fit_the_library(scenario: Scenario) -> None:
    assert scenario.dtype in ("fp16", "bf16", "fp32")
    assert set(scenario.covers) <= KEYS
    assert scenario.verdict in ("broken", "risky", "safe")
    assert all(claim.low <= claim.high for claim in scenario.claims.values())


@each
def test_its_text_is_at_most_80_columns_wide(scenario: Scenario) -> None:
    lines = lesson(scenario, recorded_numbers(scenario)).splitlines()
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("words", (["list"], ["list", "--format", "json"], ["show", "past-65504"]))
def test_list_and_show_import_no_torch(words: list[str]) -> None:
    code = f"""import sys
from typer.testing import CliRunner
from precisionlab.cli.app import app
done = CliRunner().invoke(app, {["scenarios", *words]!r})
print(done.exit_code, "torch" in sys.modules)"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "0 False", done.stderr


GOOD = '''"""A title.

A sentence.

What happens
    This.

How to recognise it
    So.

The repair
    That.

When it is no problem
    Never.

Sources
    None.
"""

DTYPE = "fp16"
LEVEL = "expert"
COVERS = ()
EXPECT = (("PL101", "aten.mul"),)
CLAIMS = {}
QUIZ = ()


def broken(dtype): ...
def fixed(dtype): ...
def reference(): ...
def numbers(broken, fixed, reference): ...
'''


def test_a_file_that_keeps_to_the_format_is_read(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "topic" / "a_name.py"
    path.parent.mkdir()
    path.write_text(GOOD)
    scenario = read(path)
    assert (scenario.name, scenario.title, scenario.hook, scenario.topic) == ("a-name", "A title", "A sentence.", "topic")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("def fixed(dtype): ...\n", ""), "lacks fixed"),
        (('DTYPE = "fp16"\n', ""), "lacks DTYPE"),
        (("The repair\n    That.\n\n", ""), "sections"),
        (("    This.\n", ""), "nothing under What happens"),
        (('"expert"', '"master"'), "level 'master'"),
        (("CLAIMS = {}", "CLAIMS = dict(a=1)"), "not a literal"),
        (("QUIZ = ()", "QUIZ = ("), "cannot be read"),
        (("QUIZ = ()", "QUIZ = ()\nPICTURE = ('pie', 'a', 'b')"), "kind 'pie'"),
    ],
)
def test_a_file_that_does_not_is_refused_and_said_why(tmp_path, change: tuple[str, str], told: str) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "a_name.py"
    path.write_text(GOOD.replace(*change))
    with pytest.raises(ScenarioError, match=told):
        read(path)


def test_the_record_is_strict_json() -> None:
    def refuse(word: str) -> None:
        raise AssertionError(word)

    json.loads((folder() / RECORD).read_text(), parse_constant=refuse)
