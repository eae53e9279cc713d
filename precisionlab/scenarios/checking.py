"""Is a scenario what it says: the fault named where it is, the repair quiet, the numbers of the lesson those that the run gives."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from precisionlab.records import Verdict
from precisionlab.report.model import Finding, Report
from precisionlab.scenarios.catalogue import recorded
from precisionlab.scenarios.model import Claim, Expectation, Question, Scenario, ScenarioError
from precisionlab.scenarios.runner import Outcome, run

MOVED = 0.05
"""A number has moved if it differs from the recorded one by this share of itself and of the width of its claimed range: a lesson would tell
another story. Other kernels move the last digits of a mean, and counts of rare things by one or two."""


@dataclass(frozen=True)
class Checked:
    """A scenario and everything that is wrong with it."""

    scenario: Scenario
    outcome: Outcome
    problems: tuple[str, ...]
    seconds: float

    @property
    def passed(self) -> bool:
        return not self.problems

    def record(self) -> dict[str, Any]:
        """What is kept of it for the list and for lessons read without torch."""
        main = self.outcome.main
        findings = main.report.findings if main.report else []
        return {
            "numbers": {name: _storable(value) for name, value in self.outcome.numbers.items()},
            "silent": main.silent,
            "shows": main.shows,
            "verdict": str(main.report.verdict) if main.report else "unknown",
            "findings": [f"{finding.code} {finding.op}" for finding in findings],
        }


def _storable(value: float) -> float | str:
    """A number for strict JSON: twelve digits, infinities and NaN as text."""
    return float(f"{value:.12g}") if math.isfinite(value) else str(value)


def check(scenario: Scenario, *, against_record: bool = True) -> Checked:
    """Runs it and compares. ``against_record``: also whether a recorded number moved."""
    import time

    start = time.perf_counter()
    outcome = run(scenario)
    problems = [*_programs(outcome), *_findings(outcome), *_numbers(outcome, against_record), *_lesson(outcome), *_questions(outcome)]
    return Checked(scenario, outcome, tuple(problems), time.perf_counter() - start)


def _programs(outcome: Outcome) -> list[str]:
    problems = [f"{one.version}: {one.difference}" for one in outcome.ran.values() if one.difference]
    sound = [one for version, one in outcome.ran.items() if version in ("fixed", "program")]
    problems += [f"{one.version}: raised {one.error}" for one in sound if one.error]
    reference = outcome.ran["reference"]
    if reference.error:
        problems.append(f"reference: raised {reference.error}")
    return problems


def _findings(outcome: Outcome) -> list[str]:
    scenario, problems = outcome.scenario, []
    for version, one in outcome.ran.items():
        report = one.report
        if report is None:
            continue
        if version == "broken":
            problems += _named(scenario, report)
        elif report.findings:
            problems += [f"{version}: should be quiet, but has {_said(finding)}" for finding in report.findings]
        if report.record.coverage.unshadowed:
            problems.append(f"{version}: not shadowed: {', '.join(report.record.coverage.unshadowed)}")
    return problems


def _named(scenario: Scenario, report: Report) -> list[str]:
    problems = []
    if str(report.verdict) != scenario.verdict:
        problems.append(f"broken: the verdict is {report.verdict}, expected {scenario.verdict}")
    for expected in scenario.expect:
        same_code = [finding for finding in report.findings if finding.code == expected.code]
        if not same_code:
            have = ", ".join(_said(finding) for finding in report.findings) or "nothing"
            problems.append(f"broken: {expected.code} at {expected.culprit} is not named; the audit has {have}")
        elif not any(_is_at(finding, expected) for finding in same_code):
            where = ", ".join(_said(finding) for finding in same_code)
            problems.append(f"broken: {expected.code} is not at {expected.culprit} but {where}")
    extra = [f for f in report.findings if f.verdict is Verdict.BROKEN and f.code not in scenario.codes]
    problems += [f"broken: also {_said(finding)}, which the scenario does not expect" for finding in extra]
    return problems


def _is_at(finding: Finding, expected: Expectation) -> bool:
    places = (finding.op, finding.module, finding.parameter or "")
    return any(place == expected.culprit or place.endswith(f".{expected.culprit}") for place in places)


def _said(finding: Finding) -> str:
    where = f" ({finding.parameter or finding.module})" if finding.parameter or finding.module else ""
    return f"{finding.verdict} {finding.code} at {finding.op}{where}, {finding.source}"


def _numbers(outcome: Outcome, against_record: bool) -> list[str]:
    scenario, problems = outcome.scenario, []
    for name in sorted(outcome.numbers.keys() ^ scenario.claims.keys()):
        problems.append(f"number {name} is {'not claimed in CLAIMS' if name in outcome.numbers else 'claimed but not computed'}")
    before = recorded().get(scenario.name, {}).get("numbers", {}) if against_record else {}
    for name, value in outcome.numbers.items():
        claim = scenario.claims.get(name)
        if claim is not None and value not in claim:
            problems.append(f"number {name} moved out of its range: {value:.6g}, claimed {claim.low:g} to {claim.high:g}")
        elif name in before and _moved(value, float(before[name]), claim):
            problems.append(f"number {name} moved: {value:.6g}, recorded {float(before[name]):.6g}")
    return problems


def _moved(value: float, before: float, claim: Claim | None) -> bool:
    width = claim.high - claim.low if claim is not None and math.isfinite(claim.high - claim.low) else 0.0
    return not math.isclose(value, before, rel_tol=MOVED, abs_tol=MOVED * width)


def _lesson(outcome: Outcome) -> list[str]:
    try:
        outcome.scenario.lesson(outcome.numbers)
        outcome.scenario.said(outcome.numbers)
    except ScenarioError as error:
        return [error.message]
    return []


def _questions(outcome: Outcome) -> list[str]:
    problems = [] if outcome.scenario.questions else ["there is no question in QUIZ"]
    for question in outcome.scenario.questions:
        true = holding(question, outcome.numbers)
        if len(true) != 1:
            problems.append(f"quiz {question.text!r}: {len(true)} of {len(question.choices)} choices are true of the numbers, not one")
    return problems


def holding(question: Question, numbers: dict[str, float]) -> list[int]:
    """Which choices are true of the numbers. Conditions come from the library's own files and see the numbers and ``abs`` only."""
    scope: dict[str, Any] = {"__builtins__": {"abs": abs}, **numbers}
    return [position for position, (_, condition) in enumerate(question.choices) if bool(eval(condition, scope))]
