"""Hooks of mkdocs: pages that come and go enter the navigation by themselves, and marks for the tests stay off the page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

MARKS = re.compile(r"^(```\w+)(?: (?:no-run|slow))+$", re.MULTILINE)
"""After the language of a fenced block: what tests/docs does with it."""


def on_config(config: Any) -> Any:
    """Decisions, course and scenarios, whichever are there."""
    docs = Path(config.docs_dir)
    learning = [str(path.relative_to(docs)) for path in sorted((docs / "course").glob("*.md"), key=_index_first)]
    learning += ["scenarios.md"] if (docs / "scenarios.md").exists() else []
    decisions = [str(path.relative_to(docs)) for path in sorted((docs / "decisions").glob("*.md"))]
    sections = [("Course", learning), ("Decisions", decisions)]
    config.nav = [*config.nav, *({title: pages} for title, pages in sections if pages)]
    return config


def _index_first(path: Path) -> tuple[bool, str]:
    return path.stem not in ("index", "README"), path.name


def on_page_markdown(markdown: str, **given: Any) -> str:
    """Fenced blocks without their marks, which Markdown would not take for a language."""
    return MARKS.sub(r"\1", markdown)
