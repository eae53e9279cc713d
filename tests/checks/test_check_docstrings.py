"""The docstring of a check is its explain text and its docs page: complete, with numbers that hold, and a program that runs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys

import pytest

from precisionlab.checks import catalogue
from precisionlab.checks.base import Check
from precisionlab.checks.sections import HEADINGS, sections, snippet, summary
from precisionlab.records import Kind
from precisionlab.thresholds import Thresholds

CHECKS = list(catalogue.all_checks().values())
every_check = pytest.mark.parametrize("check", CHECKS, ids=[c.code for c in CHECKS])


@every_check
def test_every_heading_is_there_in_order_and_says_something(check: type[Check]) -> None:
    found = sections(check)
    assert tuple(found) == HEADINGS
    for heading, text in found.items():
        assert len(text) > 15, heading
    assert summary(check).endswith(".")
    assert isinstance(check.kind, Kind)
    assert check.title and not check.title.endswith(".")


@every_check
def test_thresholds_are_named_and_their_defaults_are_right(check: type[Check]) -> None:
    text = sections(check)["How it is measured"]
    defaults = {name: default for name, default, _ in Thresholds.describe()}
    quoted = re.findall(r"`(\w+)`\s+\(([0-9.e-]+)(?: u)?\)", text)
    assert quoted or re.search(r"[Nn]o(\s+rounding\s+and\s+no)?\s+threshold|above", text), text
    for name, value in quoted:
        assert defaults[name] == float(value), name
    for name in re.findall(r"`([a-z]+_[a-z0-9_]+)`", text):
        assert name in defaults, name
    assert "Source:" in text


@every_check
def test_the_smallest_example_is_a_short_program(check: type[Check]) -> None:
    program = snippet(check)
    statements = ast.parse(program).body
    assert 4 <= len([line for line in program.splitlines() if line.strip()]) <= 13
    assert any(isinstance(node, ast.Assert) for node in ast.walk(ast.Module(statements, []))), "it proves what it shows"


@every_check
def test_the_smallest_example_holds(check: type[Check]) -> None:
    pytest.importorskip("torch")
    exec(compile(snippet(check), check.code, "exec"), {})


def test_the_checks_start_without_torch_and_numpy() -> None:
    program = (
        "import sys, precisionlab.checks.catalogue as c; from precisionlab.checks.sections import sections; [sections(k) for k in "
        "c.all_checks().values()]; sys.exit(any(m in sys.modules for m in ('torch', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
