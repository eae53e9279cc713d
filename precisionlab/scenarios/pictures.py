"""Small pictures in plain characters, and the series behind them, which the SVG draws too. No torch in here: values come as lists."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from precisionlab.scenarios.columns import number

MARKS = {"reference": ".", "fixed": "o", "broken": "#", "program": "#"}
NAMES = {"reference": "fp64", "fixed": "fixed", "broken": "broken", "program": "the program"}
HEIGHT = 10
LEFT = 10
"""Columns for the numbers of the vertical axis."""
ZERO = "zero"

Series = Mapping[str, Sequence[float]]
"""Version -> values."""


def draw(kind: str, series: Series, label: str, width: int = 80) -> list[str]:
    """The picture as lines of at most ``width`` characters."""
    return {"line": _line, "histogram": _histogram, "bars": _bars}[kind](series, label, width)


def octaves(series: Series) -> tuple[list[str], dict[str, list[int]]]:
    """Counts of values by the floor of log2 of their size, from zero up in classes of one or more octaves: labels and counts by version."""
    exponents = {version: [_octave(value) for value in values] for version, values in series.items()}
    seen = sorted({e for found in exponents.values() for e in found if e is not None})
    step = 1
    while seen and (seen[-1] - seen[0]) // step > 11:
        step += 1
    starts = list(range(seen[0], seen[-1] + 1, step)) if seen else []
    labels = [ZERO, *(f"2^{start}" for start in starts)]
    counts = {
        version: [sum(e is None for e in found), *(sum(e is not None and start <= e < start + step for e in found) for start in starts)]
        for version, found in exponents.items()
    }
    return labels, counts


def _octave(value: float) -> int | None:
    return None if value == 0 or not math.isfinite(value) else math.frexp(value)[1] - 1


def _line(series: Series, label: str, width: int) -> list[str]:
    finite = [value for values in series.values() for value in values if math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    span = (high - low) or 1.0
    columns = width - LEFT - 2
    grid = [[" "] * columns for _ in range(HEIGHT)]
    for version, mark in MARKS.items():
        values = series.get(version, ())
        for column in range(columns) if len(values) > 1 else ():
            value = values[round(column * (len(values) - 1) / (columns - 1))]
            if math.isfinite(value):
                grid[HEIGHT - 1 - round((value - low) / span * (HEIGHT - 1))][column] = mark
    edge = {0: number(high), HEIGHT - 1: number(low)}
    lines = [f"{edge.get(i, ''):>{LEFT}} |{''.join(row)}".rstrip() for i, row in enumerate(grid)]
    length = max((len(values) for values in series.values()), default=0)
    under = f"{'':>{LEFT}} +{'-' * columns}"
    ends = f"{'':>{LEFT}}  1{f'{length} {label}':>{columns - 1}}"
    return [*lines, under, ends, _legend(series)]


def _histogram(series: Series, label: str, width: int) -> list[str]:
    labels, counts = octaves(series)
    versions = [version for version in ("broken", "program", "fixed", "reference") if version in counts]
    room = (width - LEFT - 2) // len(versions) - 2
    largest = max(max(found) for found in counts.values()) or 1
    lines = [f"{label:>{LEFT}} |" + "".join(f" {NAMES[version]:<{room + 1}}" for version in versions).rstrip()]
    for i, name in enumerate(labels):
        bars = []
        for version in versions:
            count = counts[version][i]
            bar = "#" * max(round(count / largest * (room - 6)), 1 if count else 0)
            bars.append(f" {f'{bar} {count}' if count else '':<{room + 1}}")
        lines.append(f"{name:>{LEFT}} |{''.join(bars)}".rstrip())
    return lines


def _bars(series: Series, label: str, width: int) -> list[str]:
    sizes = {
        version: abs(values[0]) if len(values) == 1 else math.sqrt(math.fsum(v * v for v in values)) for version, values in series.items()
    }
    largest = max((size for size in sizes.values() if math.isfinite(size)), default=0.0) or 1.0
    lines = []
    for version in sizes:
        size, value = sizes[version], series[version][0] if len(series[version]) == 1 else sizes[version]
        bar = "#" * max(round(size / largest * (width - 32)), 1 if size else 0) if math.isfinite(size) else "?" * 3
        lines.append(f"{NAMES[version]:>{LEFT}} |{bar} {number(value)}")
    return [*lines, f"{'':>{LEFT}}  {label}"]


def _legend(series: Series) -> str:
    shown = [f"{mark} {NAMES[version]}" for version, mark in MARKS.items() if version in series]
    return f"{'':>{LEFT}}  " + "   ".join(reversed(shown))
