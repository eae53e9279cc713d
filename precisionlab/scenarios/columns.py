"""Text in columns: wrapped, side by side, in a given width."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

WIDTH = 80
GAP = " | "


def rule(title: str, width: int = WIDTH) -> str:
    """A heading: the title and a line to the end of the width."""
    return f"{title} {'-' * max(3, width - len(title) - 1)}"


def paragraphs(text: str, width: int = WIDTH, indent: str = "") -> str:
    """The text wrapped paragraph by paragraph; lines that are indented (programs, formulas) stay as they are."""
    blocks: list[str] = []
    for block in text.split("\n\n"):
        if block.startswith("    "):
            blocks.append(textwrap.indent(block.rstrip(), indent))
        else:
            lines = textwrap.wrap(
                " ".join(block.split()),
                width,
                initial_indent=indent,
                subsequent_indent=indent,
                break_on_hyphens=False,
                break_long_words=False,
            )
            blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def beside(left: Sequence[str], right: Sequence[str], width: int = WIDTH) -> list[str]:
    """Two columns of wrapped lines; the longer one continues beside nothing. An empty line stays empty."""
    room = (width - len(GAP)) // 2
    a, b = _wrapped(left, room), _wrapped(right, room)
    height = max(len(a), len(b))
    a += [""] * (height - len(a))
    b += [""] * (height - len(b))
    return [f"{one:<{room}}{GAP}{other}".rstrip() for one, other in zip(a, b, strict=True)]


def _wrapped(lines: Sequence[str], width: int) -> list[str]:
    found: list[str] = []
    for line in lines:
        found += textwrap.wrap(line, width, subsequent_indent="   " if line.startswith("   ") else "", break_on_hyphens=False) or [""]
    return found


def rows(cells: Sequence[Sequence[str]], width: int = WIDTH, indent: str = "  ") -> list[str]:
    """Rows of cells in aligned columns: the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    spare = width - len(indent) - sum(widths) - 2 * (len(widths) - 1)
    gap = "  " + " " * min(4, max(0, spare // max(1, len(widths) - 1)))
    lines = []
    for row in cells:
        first = f"{row[0]:<{widths[0]}}"
        rest = [f"{cell:>{widths[i]}}" for i, cell in enumerate(row[1:], 1)]
        lines.append((indent + gap.join([first, *rest])).rstrip())
    return lines


def number(value: float, digits: int = 5) -> str:
    """A number with so many significant digits, its exponent without padding."""
    text = f"{value:.{digits}g}"
    mantissa, mark, exponent = text.partition("e")
    return f"{mantissa}e{int(exponent)}" if mark else text
