"""The library of scenarios: where its files are, in a checkout and in an installed wheel, and what was recorded of the last full check."""

from __future__ import annotations

import difflib
import functools
import json
from pathlib import Path
from typing import Any

from precisionlab.scenarios.model import Level, Scenario, ScenarioError, read

RECORD = "recorded.json"
"""Beside the scenarios: the numbers, verdicts and what a plain run shows, as ``precisionlab scenarios check --record`` measured them."""


def folder() -> Path:
    """The folder of the files: ``scenarios/`` beside the package in a checkout, ``precisionlab/scenarios/library`` in a wheel.

    Raises ``ScenarioError`` if neither is there.
    """
    here = Path(__file__).resolve().parent
    root = here.parent.parent
    for place in (root / "scenarios" if (root / "pyproject.toml").exists() else here / "library", here / "library"):
        if place.is_dir():
            return place
    raise ScenarioError("the library of scenarios is not installed", hint="install precisionlab from its wheel, or run it in a checkout")


@functools.cache
def all_scenarios() -> tuple[Scenario, ...]:
    """Every scenario, by topic and name. Raises ``ScenarioError`` for a file that does not keep to the format."""
    return tuple(read(path) for path in sorted(folder().glob("*/*.py")) if not path.stem.startswith("_"))


def names() -> list[str]:
    """The names of all scenarios, in their order."""
    return [scenario.name for scenario in all_scenarios()]


def get(name: str) -> Scenario:
    """The scenario called ``name``, with hyphens or underscores; for a finding code the easiest one in which it is found.

    Raises ``ScenarioError`` with the nearest names if there is none.
    """
    wanted = name.strip().lower().replace("_", "-")
    known = {scenario.name: scenario for scenario in all_scenarios()}
    if wanted in known:
        return known[wanted]
    with_code = [scenario for scenario in known.values() if wanted.upper() in scenario.codes]
    if with_code:
        levels = list(Level)
        return min(with_code, key=lambda scenario: levels.index(scenario.level))
    near = difflib.get_close_matches(wanted, known, n=3, cutoff=0.4)
    near += [other for other in known if wanted in other and other not in near][:3]
    hint = " or ".join(near) if near else "precisionlab scenarios list"
    raise ScenarioError(f"there is no scenario {name!r}", hint=hint)


@functools.cache
def recorded() -> dict[str, dict[str, Any]]:
    """What the last full check recorded, by name: ``numbers``, ``silent``, ``shows``, ``findings``. Empty when nothing was."""
    path = folder() / RECORD
    if not path.exists():
        return {}
    found: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["scenarios"]
    return found


def recorded_numbers(scenario: Scenario) -> dict[str, float]:
    """The recorded numbers of a scenario. Raises ``ScenarioError`` where there are none."""
    entry = recorded().get(scenario.name)
    if entry is None:
        raise ScenarioError(f"no numbers are recorded for {scenario.name}", hint="precisionlab scenarios check --record")
    return {name: float(value) for name, value in entry["numbers"].items()}
