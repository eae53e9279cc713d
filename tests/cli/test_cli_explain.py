from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from precisionlab.checks.base import Check
from precisionlab.checks.sections import HEADINGS
from precisionlab.cli.app import app
from precisionlab.cli.explain import _load


def invoke(*words: str) -> Any:
    return CliRunner().invoke(app, ["explain", *words])


CHECKS: dict[str, type[Check]] = _load()


@pytest.mark.parametrize("code", sorted(CHECKS))
def test_every_code_is_explained_under_every_heading(code: str) -> None:
    result = invoke(code)
    assert result.exit_code == 0
    assert result.stdout.startswith(f"{code}  {CHECKS[code].title}")
    assert [heading for heading in HEADINGS if f"\n{heading}\n" not in result.stdout] == []


@pytest.mark.parametrize("spelling", ["PL101", "pl101", "Pl101", "101"])
def test_case_and_letters_do_not_matter(spelling: str) -> None:
    assert invoke(spelling).stdout == invoke("PL101").stdout


def test_prefix_lists_its_family() -> None:
    lines = invoke("pl1").stdout.splitlines()
    assert len(lines) > 1 and all(line.startswith("PL1") for line in lines)


def test_words_of_a_title_are_found() -> None:
    assert invoke(CHECKS["PL101"].title).stdout.startswith("PL101")


def test_kind_lists_its_codes() -> None:
    assert "PL101" in invoke("overflow").stdout


def test_unknown_code_gives_the_nearest() -> None:
    result = invoke("PL999x")
    assert result.exit_code == 2 and result.stdout == ""
    assert "there is no finding code 'PL999x'" in result.stderr and "try: PL" in result.stderr


def test_no_code_says_how_to_ask() -> None:
    assert invoke().exit_code == 2
    assert "--all" in invoke().stderr


def test_json_has_the_sections() -> None:
    data = json.loads(invoke("PL101", "--format", "json").stdout)
    assert [entry["code"] for entry in data] == ["PL101"]
    assert list(data[0]["sections"]) == list(HEADINGS)


def test_all_gives_every_code() -> None:
    assert [entry["code"] for entry in json.loads(invoke("--all", "--format", "json").stdout)] == sorted(CHECKS)
