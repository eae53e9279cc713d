"""``./dev bench course [--check]``: writes docs/course and docs/scenarios.md, or says which are out of date.

The lessons are written in docs/course/source; there ``{name.number:.2f}`` stands for a number of a scenario, as the last full check
recorded it, ``{scenario name}`` for its title and its one sentence, ``{quiz name}`` for its questions, and ``{formats}`` for a table of
formats. Nothing else is replaced.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from pathlib import Path

from precisionlab.formats import BF16, FP16, FP32
from precisionlab.scenarios import Scenario, all_scenarios, get
from precisionlab.scenarios.catalogue import recorded_numbers
from precisionlab.scenarios.listing import as_markdown, is_silent

DOCS = Path(__file__).parents[1] / "docs"
COURSE = DOCS / "course"
_FIELD = re.compile(r"\{(scenario |quiz |)([a-z0-9-]+)(?:\.(\w+):([^{}]+))?\}")
_OVERVIEW = """# The scenarios

{count} programs, {silent} of them with a fault of which a plain run shows nothing. `precisionlab scenarios run NAME` shows each happen,
named and repaired; `precisionlab scenarios show NAME` is its lesson. Written by `./dev bench course` from the library and its last check.

"""


def rendered(source: str) -> str:
    """The lesson with its fields filled in. Raises ``ScenarioError`` for a scenario that does not exist, KeyError for such a number."""

    def fill(match: re.Match[str]) -> str:
        kind, name, number, form = match.groups()
        if name == "formats":
            return _formats()
        scenario = get(name)
        if kind == "scenario ":
            return _introduced(scenario)
        if kind == "quiz ":
            return _asked(scenario)
        return format(recorded_numbers(scenario)[number], form)

    return _FIELD.sub(fill, source)


def _introduced(scenario: Scenario) -> str:
    facts = [scenario.dtype, *(scenario.codes or (("healthy",) if scenario.healthy else ("not named",)))]
    silent = ", a plain run shows nothing" if is_silent(scenario) else ""
    return f"**{scenario.title}** (`{scenario.name}`; {', '.join(facts)}{silent}). {scenario.said(recorded_numbers(scenario))}"


def _asked(scenario: Scenario) -> str:
    """An item of a numbered list."""
    lines = [f"`precisionlab scenarios quiz {scenario.name}`"]
    for question in scenario.questions:
        lines += ["", f"   {question.text}", "", *(f"   - {choice}" for choice, _ in question.choices)]
    return "\n".join(lines)


def _formats() -> str:
    """The defining numbers of three formats."""
    lines = ["| | largest | smallest normal | smallest | spacing after 1 | unit roundoff u |", "|---|---|---|---|---|---|"]
    for fmt in (FP16, BF16, FP32):
        sizes = [f"{_power(value)} = {value:.1e}" for value in (fmt.min_normal, fmt.min_subnormal)]
        largest = f"{fmt.max:.0f}" if fmt.max < 1e6 else f"{fmt.max:.1e}"
        lines.append(f"| {fmt} | {largest} | {' | '.join(sizes)} | {_power(2 * fmt.u)} | {_power(fmt.u)} |")
    return "\n".join(lines)


def _power(value: float) -> str:
    return f"2^{math.frexp(value)[1] - 1}"


def pages() -> dict[Path, str]:
    """Path -> text of everything that is generated."""
    found = {COURSE / path.name: rendered(path.read_text(encoding="utf-8")) for path in sorted((COURSE / "source").glob("*.md"))}
    every = all_scenarios()
    overview = _OVERVIEW.format(count=len(every), silent=sum(map(is_silent, every)))
    return {**found, DOCS / "scenarios.md": f"{overview}{as_markdown(every)}\n"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a page is out of date")
    check = parser.parse_args().check
    stale = {path: text for path, text in pages().items() if not path.exists() or path.read_text(encoding="utf-8") != text}
    for path, text in stale.items():
        print(f"{'out of date' if check else 'written'}: {path.relative_to(DOCS.parent)}")
        if not check:
            path.write_text(text, encoding="utf-8")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
