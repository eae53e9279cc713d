"""What a scenario file says, read from its syntax tree: nothing in it is executed, so listing and reading lessons need no torch.

A file has a docstring (title, one sentence, then the lesson in sections) and these constants, all literals:

``DTYPE``    "fp16", "bf16" or "fp32": the format whose trouble it shows
``LEVEL``    "first steps", "practitioner" or "expert"
``COVERS``   the fundamentals that it teaches, for the table in the docs
``EXPECT``   ``(code, culprit)`` pairs: the findings of the broken version, each at an op, module or weight of that name
``CLAIMS``   name of a number -> ``(low, high)``: the range in which it is claimed to be, ends included
``QUIZ``     ``(question, {choice: condition})`` pairs; a condition is an expression of the numbers, and exactly one holds
``PICTURE``  optional, ``(kind, value, label)``: "line" (a value over its index), "histogram" (of log2 of its sizes) or "bars"
``VERDICT``  optional, "risky": the worst verdict expected, where it is not "broken"
``UNNAMED``  optional: why the audit does not name this fault

and these functions: ``broken(dtype)``, ``fixed(dtype)`` and ``reference()`` (fp64), each giving a dict of tensors, and
``numbers(broken, fixed, reference)``, which computes the named numbers from the three. A healthy program that only looks dangerous has
``program(dtype)`` in the place of the first two, and no ``EXPECT``. In the lesson ``{name:.2%}`` stands for a number.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from precisionlab.errors import PrecisionLabError

SECTIONS = ("What happens", "How to recognise it", "The repair", "When it is no problem", "Sources")
HEALTHY_SECTIONS = ("What it looks like", "Why it is fine", "When it would be a problem", "Sources")
PICTURES = ("line", "histogram", "bars")
_REQUIRED = ("DTYPE", "LEVEL", "COVERS", "CLAIMS", "QUIZ")
_KNOWN = {*_REQUIRED, "EXPECT", "PICTURE", "VERDICT", "UNNAMED"}


class ScenarioError(PrecisionLabError):
    """A scenario that does not exist, cannot be read, or does not keep to the format of the files."""


class Level(str, Enum):
    """Whom a scenario is written for."""

    FIRST_STEPS = "first steps"
    PRACTITIONER = "practitioner"
    EXPERT = "expert"

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True, slots=True)
class Expectation:
    """A finding that the audit must make: its code, and the op (``aten.mm``), module or weight where it must make it."""

    code: str
    culprit: str


@dataclass(frozen=True, slots=True)
class Claim:
    """The range in which a number of the lesson must lie, ends included."""

    low: float
    high: float

    def __contains__(self, number: float) -> bool:
        return self.low <= number <= self.high


@dataclass(frozen=True, slots=True)
class Question:
    """A question about the run. ``choices``: text -> condition on the numbers; exactly one of them holds."""

    text: str
    choices: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """What to draw: ``value`` is a key of the results."""

    kind: str
    value: str
    label: str


@dataclass(frozen=True)
class Scenario:
    """One known failure, or one healthy program that looks like one."""

    name: str
    title: str
    hook: str
    """What happens, in one sentence."""
    sections: Mapping[str, str]
    """Heading -> text with placeholders for the numbers."""
    topic: str
    dtype: str
    level: Level
    covers: tuple[str, ...]
    expect: tuple[Expectation, ...]
    claims: Mapping[str, Claim]
    questions: tuple[Question, ...]
    picture: Picture | None
    verdict: str
    """The verdict expected of the broken version, or of the healthy program."""
    unnamed: str
    healthy: bool
    path: Path
    source: str = field(repr=False)

    @property
    def versions(self) -> tuple[str, ...]:
        """The functions of the file that run, in the order in which ``numbers`` takes their results."""
        return ("program", "reference") if self.healthy else ("broken", "fixed", "reference")

    @property
    def codes(self) -> tuple[str, ...]:
        """The finding codes expected, without repetition."""
        return tuple(dict.fromkeys(expected.code for expected in self.expect))

    def lesson(self, numbers: Mapping[str, float]) -> dict[str, str]:
        """The sections with the numbers filled in. Raises ``ScenarioError`` for a placeholder that no number has."""
        return {heading: self._filled(text, numbers) for heading, text in self.sections.items()}

    def said(self, numbers: Mapping[str, float]) -> str:
        """The one sentence with the numbers filled in."""
        return self._filled(self.hook, numbers)

    def _filled(self, text: str, numbers: Mapping[str, float]) -> str:
        try:
            return text.format_map(numbers)
        except (KeyError, ValueError, IndexError) as error:
            raise ScenarioError(
                f"{self.name}: the lesson has a placeholder that cannot be filled: {error}", hint="CLAIMS names them"
            ) from None

    def code_of(self, function: str) -> str:
        """The source text of one of its functions; empty where there is none."""
        for node in ast.parse(self.source).body:
            if isinstance(node, ast.FunctionDef) and node.name == function:
                return ast.get_source_segment(self.source, node) or ""
        return ""

    def program_text(self) -> str:
        """Everything below the constants: the programs as they are."""
        body = ast.parse(self.source).body
        first = next(node for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef)))
        decorators = [decorator.lineno for decorator in first.decorator_list]
        return "\n".join(self.source.splitlines()[min([first.lineno, *decorators]) - 1 :])


def read(path: Path) -> Scenario:
    """The scenario in a file. Its name is the file's, with hyphens, its topic the folder's.

    Raises ``ScenarioError`` for a file that does not keep to the format.
    """
    try:
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path} cannot be read: {error}", hint="see precisionlab/scenarios/model.py for the format") from None
    constants = _constants(tree, path)
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    healthy = "program" in functions
    needed = {"program", "reference", "numbers"} if healthy else {"broken", "fixed", "reference", "numbers"}
    missing = [*sorted(needed - functions), *(name for name in _REQUIRED if name not in constants)]
    if missing:
        raise ScenarioError(f"{path} lacks {', '.join(missing)}", hint="see precisionlab/scenarios/model.py for the format")
    title, hook, sections = _lesson(ast.get_docstring(tree, clean=False) or "", path, HEALTHY_SECTIONS if healthy else SECTIONS)
    picture = constants.get("PICTURE")
    if picture and picture[0] not in PICTURES:
        raise ScenarioError(f"{path} has a picture of the kind {picture[0]!r}", hint=", ".join(PICTURES))
    expect = tuple(Expectation(*pair) for pair in constants.get("EXPECT", ()))
    try:
        level = Level(constants["LEVEL"])
    except ValueError:
        raise ScenarioError(f"{path} has the level {constants['LEVEL']!r}", hint=", ".join(map(str, Level))) from None
    return Scenario(
        name=path.stem.replace("_", "-"),
        title=title,
        hook=hook,
        sections=sections,
        topic=path.parent.name.replace("_", " "),
        dtype=constants["DTYPE"],
        level=level,
        covers=tuple(constants["COVERS"]),
        expect=expect,
        claims={name: Claim(*map(float, ends)) for name, ends in constants["CLAIMS"].items()},
        questions=tuple(Question(text, tuple(choices.items())) for text, choices in constants["QUIZ"]),
        picture=Picture(*picture) if picture else None,
        verdict=constants.get("VERDICT", "broken" if expect else "safe"),
        unnamed=constants.get("UNNAMED", ""),
        healthy=healthy,
        path=path,
        source=source,
    )


def _constants(tree: ast.Module, path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name in _KNOWN:
                try:
                    found[name] = ast.literal_eval(node.value)
                except ValueError:
                    raise ScenarioError(f"{path}:{node.lineno}: {name} is not a literal", hint="numbers, text, tuples and dicts") from None
    return found


def _lesson(docstring: str, path: Path, headings: tuple[str, ...]) -> tuple[str, str, dict[str, str]]:
    title, _, rest = inspect.cleandoc(docstring).partition("\n")
    hook: list[str] = []
    sections: dict[str, list[str]] = {}
    current = hook
    for line in rest.splitlines():
        if line in headings:
            current = sections.setdefault(line, [])
        else:
            current.append(line)
    if tuple(sections) != headings:
        raise ScenarioError(f"{path} has the sections {', '.join(sections) or 'none'}", hint=f"in this order: {', '.join(headings)}")
    texts = {heading: textwrap.dedent("\n".join(lines)).strip() for heading, lines in sections.items()}
    empty = [heading for heading, text in texts.items() if not text]
    if empty or not title.strip():
        raise ScenarioError(f"{path} has nothing under {', '.join(empty) or 'its title'}", hint="a scenario is its lesson")
    return title.rstrip("."), " ".join(" ".join(hook).split()), texts
