"""Reading a check's docstring: one summary line, then sections, each a heading of ``HEADINGS`` at the margin with its text indented."""

from __future__ import annotations

import inspect
import textwrap

from precisionlab.checks.base import Check

HEADINGS = (
    "What it means",
    "Why it hurts",
    "How it is measured",
    "Smallest example",
    "Fix",
    "When to ignore",
    "Known limits",
)


def summary(check: type[Check]) -> str:
    """The first line of the docstring."""
    return inspect.cleandoc(check.__doc__ or "").partition("\n")[0]


def sections(check: type[Check]) -> dict[str, str]:
    """Heading -> dedented text, in the order of the docstring. The text of "Smallest example" is a runnable program."""
    found: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in inspect.cleandoc(check.__doc__ or "").splitlines():
        if line in HEADINGS:
            current = found.setdefault(line, [])
        elif current is not None:
            current.append(line)
    return {heading: textwrap.dedent("\n".join(lines)).strip() for heading, lines in found.items()}


def snippet(check: type[Check]) -> str:
    """The program under "Smallest example"."""
    return sections(check).get("Smallest example", "")
