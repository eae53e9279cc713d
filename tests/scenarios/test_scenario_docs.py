"""The course and the table by fundamental are what the library and its last check say."""

from __future__ import annotations

import re

from bench.course import COURSE, DOCS, pages, rendered
from precisionlab import scenarios

PAGES = pages()
LESSONS = {path.name: text for path, text in PAGES.items() if path.parent == COURSE and path.name[0].isdigit()}


def test_what_is_generated_is_up_to_date() -> None:
    stale = [path.name for path, text in PAGES.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    assert stale == [], "./dev bench course writes them"


def test_there_are_six_lessons_and_they_pass_through_every_scenario() -> None:
    assert len(LESSONS) == 6
    told = " ".join(LESSONS.values())
    assert [name for name in scenarios.names() if f"`{name}`" not in told] == []


def test_every_lesson_has_exercises_that_the_quiz_can_check() -> None:
    for name, text in LESSONS.items():
        asked = re.findall(r"scenarios quiz ([a-z0-9-]+)", text)
        assert len(asked) >= 5, name
        assert set(asked) <= set(scenarios.names())


def test_the_table_has_a_scenario_for_every_fundamental() -> None:
    rows = [row for row in PAGES[DOCS / "scenarios.md"].splitlines() if row.startswith("| ") and row.count("|") == 3]
    assert [row for row in rows if row.endswith("| - |")] == []


def test_a_field_is_a_number_of_the_run() -> None:
    assert rendered("{past-65504.exact:.0f} and {not a field}") == "75000 and {not a field}"
