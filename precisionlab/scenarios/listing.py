"""The list of scenarios: chosen by topic, level, code and format; as a table, as JSON, and as the table by fundamental of the docs."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from typing import Any

from precisionlab.scenarios.catalogue import all_scenarios, recorded
from precisionlab.scenarios.columns import WIDTH
from precisionlab.scenarios.fundamentals import FUNDAMENTALS
from precisionlab.scenarios.model import Level, Scenario, ScenarioError
from precisionlab.subjects.words import parse_dtype


def choose(
    topic: str | None = None, level: str | None = None, code: str | None = None, dtype: str | None = None, silent: bool = False
) -> list[Scenario]:
    """The scenarios that fit everything given.

    Raises ``ScenarioError`` where nothing fits a topic, level or code, with what there is, and ``SettingsError`` for an unknown dtype.
    """
    chosen = list(all_scenarios())
    if topic is not None:
        words = topic.lower().replace("-", " ").replace("_", " ")
        chosen = _some([s for s in chosen if words in s.topic or any(words in c.lower() for c in s.covers)], "topic", topic, _topics())
    if level is not None:
        chosen = _some([s for s in chosen if str(s.level).startswith(level.lower())], "level", level, [str(one) for one in Level])
    if code is not None:
        codes = sorted({c for s in all_scenarios() for c in s.codes})
        chosen = _some([s for s in chosen if any(c.startswith(code.upper()) for c in s.codes)], "code", code, codes)
    if dtype is not None:
        wanted = str(parse_dtype(dtype))
        chosen = [s for s in chosen if s.dtype == wanted]
    return [s for s in chosen if is_silent(s)] if silent else chosen


def _some(chosen: list[Scenario], kind: str, wanted: str, known: Sequence[str]) -> list[Scenario]:
    if chosen:
        return chosen
    near = difflib.get_close_matches(wanted.lower(), [name.lower() for name in known], n=1, cutoff=0.5)
    raise ScenarioError(
        f"no scenario has the {kind} {wanted!r}", hint=near[0].upper() if near and kind == "code" else ", ".join(near or known)
    )


def _topics() -> list[str]:
    return list(dict.fromkeys(scenario.topic for scenario in all_scenarios()))


def is_silent(scenario: Scenario) -> bool:
    """Whether a plain run of it showed nothing when it was last recorded."""
    return bool(recorded().get(scenario.name, {}).get("silent", False)) and not scenario.healthy


def as_table(chosen: Sequence[Scenario]) -> str:
    """By topic: name, format, level, codes, and an s where a plain run shows nothing."""
    width = max((len(scenario.name) for scenario in chosen), default=0)
    lines: list[str] = []
    for topic in dict.fromkeys(scenario.topic for scenario in chosen):
        lines += ["", topic] if lines else [topic]
        for s in (s for s in chosen if s.topic == topic):
            mark = "s" if is_silent(s) else " "
            codes = " ".join(s.codes) if s.codes else "healthy" if s.healthy else "not named"
            lines.append(f"  {mark} {s.name:<{width}}  {s.dtype}  {s.level!s:<12}  {codes}"[:WIDTH].rstrip())
    silent = sum(is_silent(scenario) for scenario in chosen)
    noun = "scenario" if len(chosen) == 1 else "scenarios"
    return "\n".join([*lines, "", f"{len(chosen)} {noun}; s: a plain run shows nothing, neither inf, NaN nor a warning ({silent} of them)"])


def as_json(chosen: Sequence[Scenario]) -> str:
    """A list of objects."""
    return json.dumps([as_dict(scenario) for scenario in chosen], indent=2, ensure_ascii=False)


def as_dict(scenario: Scenario) -> dict[str, Any]:
    """One scenario as plain data."""
    return {
        "name": scenario.name,
        "title": scenario.title,
        "topic": scenario.topic,
        "dtype": scenario.dtype,
        "level": str(scenario.level),
        "covers": list(scenario.covers),
        "expect": [{"code": expected.code, "culprit": expected.culprit} for expected in scenario.expect],
        "verdict": scenario.verdict,
        "healthy": scenario.healthy,
        "silent": is_silent(scenario),
    }


def as_markdown(chosen: Sequence[Scenario]) -> str:
    """The table scenario by fundamental."""
    lines = ["| fundamental | scenarios |", "|---|---|"]
    for part, fundamentals in FUNDAMENTALS.items():
        lines.append(f"| **{part}** | |")
        for key, sentence in fundamentals.items():
            teaching = ", ".join(f"`{scenario.name}`" for scenario in chosen if key in scenario.covers)
            lines.append(f"| {sentence} | {teaching or '-'} |")
    lines += ["", "| scenario | format | level | named as | a plain run shows |", "|---|---|---|---|---|"]
    for s in chosen:
        shows = str(recorded().get(s.name, {}).get("shows", "not recorded")).replace("|", "\\|")
        codes = ", ".join(f"{expected.code} at `{expected.culprit}`" for expected in s.expect) or ("healthy" if s.healthy else "not named")
        lines.append(f"| `{s.name}`: {s.title} | {s.dtype} | {s.level} | {codes} | {shows} |")
    return "\n".join(lines)
