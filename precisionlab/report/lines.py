"""Lines of the printed report: wrapped text, tables cut to a width, and how numbers are written in their cells."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from tabulate import tabulate

MIN_CELL = 4
"""Cells are not cut below this many characters, whatever the width."""
INDENT = " " * 10


@dataclass(frozen=True)
class Line:
    """One line of text and its style, which is never the only carrier of a meaning."""

    text: str
    style: str = ""


def wrap(text: str, width: int, first: str = "", rest: str = "", style: str = "") -> list[Line]:
    """The text in lines of at most ``width``; ``first`` and ``rest`` stand before the first line and the others."""
    lines = textwrap.wrap(" ".join(text.split()), width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
    return [Line(line, style) for line in lines or [first.rstrip()]]


def labelled(label: str, text: str, width: int) -> list[Line]:
    """The text beside a label of at most nine characters."""
    return wrap(text, width, first=f"{label:<10}", rest=INDENT)


def table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], width: int, *, flexible: Sequence[int], right: Sequence[int]
) -> list[Line]:
    """A table, header first, in at most ``width`` columns: the ``flexible`` ones give way, keeping their ends; ``right`` are numbers."""
    whole = [list(headers), *map(list, rows)]
    widths = [max(len(row[i]) for row in whole) for i in range(len(headers))]
    room = width - sum(widths[i] for i in range(len(widths)) if i not in flexible) - 2 * (len(widths) - 1)
    while sum(widths[i] for i in flexible) > room and max((widths[i] for i in flexible), default=0) > MIN_CELL:
        widest = max(flexible, key=lambda i: widths[i])
        widths[widest] -= 1
    cut = [[keep_end(cell, widths[i]) if i in flexible else cell for i, cell in enumerate(row)] for row in whole]
    # The header goes in as a row: tabulate pads real headers by two columns.
    align = ["right" if i in right else "left" for i in range(len(headers))]
    text: str = tabulate(cut, tablefmt="plain", disable_numparse=True, colalign=align)
    header, *body = text.splitlines()
    return [Line(header), Line("-" * max(len(line) for line in (header, *body))), *(Line(line.rstrip()) for line in body)]


def keep_end(text: str, width: int) -> str:
    """The text, its beginning replaced by two dots where it is too long."""
    return text if len(text) <= width else f"..{text[len(text) - width + 2 :]}"


def plural(count: float) -> str:
    """The ``s`` of a noun that is counted."""
    return "" if count == 1 else "s"


def percent_down(share: float) -> str:
    """Rounded down, so that 100 % means all."""
    return f"{math.floor(share * 1000) / 10:.1f} %"


def power_of_two(value: float) -> str:
    """``2^16`` for 65536, three digits for what is no power of two."""
    if value > 0 and math.isfinite(value) and math.frexp(value)[0] == 0.5:
        return f"2^{math.frexp(value)[1] - 1}"
    return f"{value:.3g}"


def short(value: float | None, digits: int = 4) -> str:
    """A number in few characters; a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}g}"
