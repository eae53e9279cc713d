"""The pages of the documentation, taken apart: fenced blocks with their marks, commands with their output, links, code spans."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

WRITTEN_BY_HAND = sorted([DOCS / "index.md", *(DOCS / "how-to").glob("*.md"), *(DOCS / "explanation").glob("*.md")])
"""Pages whose examples run, top to bottom."""
ALL = sorted([ROOT / "README.md", *(page for page in DOCS.rglob("*.md") if "source" not in page.parts)])
"""And the pages that others are made from are left out: what is made of them is here."""

_FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"^# ([\w./-]+\.(?:py|toml|yml))$")
_REASON = re.compile(r"<!-- not run: .{10,} -->\s*$")


@dataclass(frozen=True)
class Command:
    """One line behind ``$`` of a console block, what is shown below it, and the exit code that ``$ echo $?`` shows (else 0)."""

    words: str
    shown: str
    code: int = 0


@dataclass(frozen=True)
class Block:
    """One fenced block. ``line``: number of its first line of text."""

    language: str
    marks: frozenset[str]
    text: str
    line: int
    excused: bool
    """A comment ``<!-- not run: reason -->`` stands before it."""

    @property
    def file(self) -> str | None:
        """Name of the file that the block is, given by a comment in its first line."""
        found = _FILE.match(self.text.partition("\n")[0])
        return found[1] if found else None

    def commands(self) -> list[Command]:
        """The commands of a console block."""
        found: list[Command] = []
        for part in re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]:
            words, _, shown = part.partition("\n")
            if words.strip() == "echo $?":
                last = found.pop()
                found.append(Command(last.words, last.shown, int(shown.strip())))
            else:
                found.append(Command(words.strip(), shown))
        return found


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _FENCE.finditer(text):
        language, *marks = match["info"].split() or [""]
        excused = bool(_REASON.search(text[: match.start()]))
        found.append(Block(language, frozenset(marks), match["text"], text.count("\n", 0, match.start()) + 2, excused))
    return found


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def spans(page: Path) -> list[str]:
    """Code between single backticks, outside of fenced blocks."""
    return [" ".join(span.split()) for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", prose(page))]


def links(page: Path) -> list[str]:
    """Targets of the links of a page."""
    without_code = re.sub(r"`[^`]*`", "", prose(page))
    return re.findall(r"\]\(([^)\s]+)\)", without_code)


def anchors(page: Path) -> set[str]:
    """Names of the headings of a page, as Markdown renderers make them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
