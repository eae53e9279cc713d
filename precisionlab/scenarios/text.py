"""A scenario as text: the lesson, and a run of it with its versions side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING

from precisionlab.records import Verdict
from precisionlab.scenarios.columns import WIDTH, beside, number, paragraphs, rows, rule
from precisionlab.scenarios.model import Scenario
from precisionlab.scenarios.pictures import NAMES, draw

if TYPE_CHECKING:
    import torch

    from precisionlab.report.model import Finding
    from precisionlab.scenarios.runner import Outcome, Ran

LONGEST_SERIES = 100_000
"""Values of a tensor that a picture reads at most."""


def heading(scenario: Scenario, width: int = WIDTH) -> str:
    """Title, name, format, level, topic and codes."""
    facts = [scenario.name, scenario.dtype, str(scenario.level), scenario.topic, " ".join(scenario.codes) or "no finding"]
    return f"{paragraphs(scenario.title, width)}\n{'=' * min(width, len(scenario.title))}\n{paragraphs(' · '.join(facts), width)}"


def lesson(scenario: Scenario, numbers: Mapping[str, float], width: int = WIDTH) -> str:
    """The whole lesson, its numbers filled in."""
    parts = [heading(scenario, width), paragraphs(scenario.said(numbers), width)]
    parts += [f"{title}\n{paragraphs(text, width, '    ')}" for title, text in scenario.lesson(numbers).items()]
    if scenario.unnamed:
        parts.append(f"What the audit does not say\n{paragraphs(scenario.unnamed, width, '    ')}")
    return "\n\n".join(parts)


def steps(outcome: Outcome, width: int = WIDTH) -> Iterator[tuple[str, str]]:
    """A run as ``(title, text)`` pairs, in the order in which they are read."""
    scenario = outcome.scenario
    opening = heading(scenario, width)
    if outcome.native:
        opening += f"\n\n{paragraphs(scenario.said(outcome.numbers), width)}"
    else:
        opening += f"\n\n{paragraphs(f'Here in {outcome.dtype}; its lesson is about {scenario.dtype}.', width)}"
    yield "", opening
    yield "a plain run shows", plain(outcome, width)
    yield "the audit says", audits(outcome, width)
    if outcome.numbers:
        yield "the numbers", claims(outcome, width)
    if scenario.picture is not None:
        yield f"the picture: {scenario.picture.value.replace('_', ' ')}", picture(outcome, width)
    yield "", read_on(outcome)


def run_text(outcome: Outcome, width: int = WIDTH) -> str:
    """The whole run."""
    return "\n\n".join(f"{rule(title, width)}\n{text}" if title else text for title, text in steps(outcome, width))


def plain(outcome: Outcome, width: int = WIDTH) -> str:
    """Every value of every version, and whether anything would have told the user."""
    names = list(dict.fromkeys(name for one in outcome.ran.values() for name in one.values))
    table = [["", *(NAMES[version] for version in outcome.ran)]]
    for name in names:
        table.append([name.replace("_", " "), *(value_text(one.values.get(name)) for one in outcome.ran.values())])
    lines = rows(table, width) if names else []
    for version, one in outcome.ran.items():
        if version != "reference":
            lines += paragraphs(f"{NAMES[version]}: {one.shows}.", width - 2, "  ").splitlines()
    return "\n".join(lines)


def value_text(value: torch.Tensor | None) -> str:
    """A number, or the range of a longer tensor's finite values and how many are not finite."""
    if value is None:
        return "-"
    if value.numel() == 1:
        return number(float(value), 6)
    finite = value[value.isfinite()]
    lost = value.numel() - finite.numel()
    if lost == value.numel():
        return f"{lost} inf or NaN"
    low, high = float(finite.min()), float(finite.max())
    text = number(low) if low == high else _range(low, high)
    return f"{text}, {lost} inf/NaN" if lost else text


def _range(low: float, high: float) -> str:
    """Both ends, with as many digits as it takes to tell them apart."""
    digits = next((n for n in (3, 5, 8) if number(low, n) != number(high, n)), 12)
    return f"{number(low, digits)} .. {number(high, digits)}"


def audits(outcome: Outcome, width: int = WIDTH) -> str:
    """The verdicts of the broken and the fixed version side by side, of a healthy program alone; then what each finding says."""
    audited = [(version, one) for version, one in outcome.ran.items() if one.report is not None]
    said = [[f"[{NAMES[version]}]", *_audit(one)] for version, one in audited]
    parts = ["\n".join(beside(said[0], said[1], width) if len(said) == 2 else said[0][1:])]
    for _, one in audited:
        findings = one.report.findings if one.report else []
        parts += [paragraphs(f"{f.code}: {f.message}\n\nrepair: {f.advice}", width - 2, "  ") for f in findings]
    return "\n\n".join(parts)


def _audit(one: Ran) -> list[str]:
    report = one.report
    if report is None:
        return []
    lines = [f"{str(report.verdict).upper()}: {_sites(one)}"]
    for position, finding in enumerate(report.findings, 1):
        lines += _finding(position, finding)
    return lines


def _sites(one: Ran) -> str:
    report = one.report
    assert report is not None
    broken = sum(finding.verdict is Verdict.BROKEN for finding in report.findings)
    risky = len(report.findings) - broken
    found = [f"{count} {word}{'s' if count > 1 else ''}" for count, word in ((broken, "fault"), (risky, "risk")) if count]
    return f"{' and '.join(found) or 'nothing found'} in {report.record.coverage.ops} ops"


def _finding(position: int, finding: Finding) -> list[str]:
    where = PurePath(finding.source).name
    owner = finding.parameter or finding.module
    return [f"{position}. {finding.code} {finding.kind}", f"   in {finding.op}{f' ({owner})' if owner else ''}", f"   at {where}"]


def claims(outcome: Outcome, width: int = WIDTH) -> str:
    """The numbers of the lesson as measured now, and the ranges claimed of them."""
    table = [["", "measured", "claimed"]]
    for name, value in outcome.numbers.items():
        claim = outcome.scenario.claims.get(name)
        said = "-" if claim is None else number(claim.low) if claim.low == claim.high else f"{number(claim.low)} .. {number(claim.high)}"
        mark = "" if claim is None or value in claim else "  MOVED"
        table.append([name.replace("_", " "), number(value), said + mark])
    return "\n".join(rows(table, width))


def series_of(outcome: Outcome) -> dict[str, list[float]]:
    """The values behind the picture, by version; empty without a picture."""
    wanted = outcome.scenario.picture
    if wanted is None:
        return {}
    found = {version: one.values[wanted.value] for version, one in outcome.ran.items() if wanted.value in one.values}
    return {version: value.flatten()[:LONGEST_SERIES].tolist() for version, value in found.items()}


def picture(outcome: Outcome, width: int = WIDTH) -> str:
    """The picture in characters."""
    wanted = outcome.scenario.picture
    assert wanted is not None
    return "\n".join(draw(wanted.kind, series_of(outcome), wanted.label, width))


def read_on(outcome: Outcome) -> str:
    """What to type next."""
    name = outcome.scenario.name
    lines = [f"read on    precisionlab scenarios show {name}"]
    lines += [f"           precisionlab explain {code}" for code in outcome.scenario.codes[:1]]
    lines += [f"           precisionlab scenarios quiz {name}"]
    return "\n".join(lines)
