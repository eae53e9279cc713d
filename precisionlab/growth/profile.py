"""Growth inside one run: from block to block, from token to token, from step to step. No torch in here."""

from __future__ import annotations

import math
from collections import Counter

from precisionlab.growth.analysis import Trend, limits_of
from precisionlab.growth.fits import MIN_SIZES, Fit, fit
from precisionlab.growth.forecast import crossing
from precisionlab.growth.measurement import Block, Measurement, Quantity
from precisionlab.thresholds import Thresholds

BLOCK, TOKEN, STEP = "block", "token", "step"
"""Names of the axes inside a run: position among the repeated blocks, along the sequence, among the steps; each counts from 1."""
BINS_PER_OCTAVE = 1
"""Tokens are put together in bins of equal width in log2, so that a law is not decided by the many late ones."""


def profiles(measurements: list[Measurement], dtype: str, thresholds: Thresholds | None = None) -> tuple[Trend, ...]:
    """Trends inside the runs of one size, one value a seed; axes with fewer than ``MIN_SIZES`` positions are left out.

    Gradients are counted backward: the block next to the loss is position 1.
    """
    limits = thresholds or Thresholds()
    series: list[tuple[str, Quantity, list[list[float | None]]]] = [
        (BLOCK, Quantity.DRIFT, [[b.drift_u for b in repeated(m.blocks)] for m in measurements]),
        (BLOCK, Quantity.GRADIENT, [[b.gradient_drift_u for b in reversed(repeated(m.blocks))] for m in measurements]),
        (TOKEN, Quantity.DRIFT, [list(m.tokens_u) for m in measurements]),
        (STEP, Quantity.DRIFT, [list(m.steps_u) for m in measurements]),
    ]
    found = [_trend(axis, quantity, rows, dtype, limits) for axis, quantity, rows in series]
    return tuple(trend for trend in found if trend is not None)


def repeated(blocks: tuple[Block, ...]) -> list[Block]:
    """The calls of the largest module that is repeated ``MIN_SIZES`` times: same class and same parameter shapes, whatever its name."""
    counts = Counter(block.signature for block in blocks)
    candidates = [block for block in blocks if counts[block.signature] >= MIN_SIZES]
    if not candidates:
        return []
    signature = max(candidates, key=lambda block: block.parameters).signature
    return [block for block in candidates if block.signature == signature]


def _trend(
    axis: str, quantity: Quantity, rows: list[list[float | None]] | list[list[float]], dtype: str, limits: Thresholds
) -> Trend | None:
    length = min((len(row) for row in rows), default=0)
    by_position = [[row[i] for row in rows] for i in range(length)]
    whole = [(i + 1, [v for v in values if v is not None and math.isfinite(v) and v > 0]) for i, values in enumerate(by_position)]
    points = [(float(i), values) for i, values in whole if len(values) == len(rows)]
    if axis == TOKEN:
        points = _binned(points)
    if len(points) < MIN_SIZES:
        return None
    sizes, values = [i for i, _ in points], [row for _, row in points]
    law = fit(sizes, values)
    allowed = limits_of(quantity, limits)
    forecasts = {}
    if isinstance(law, Fit) and axis != TOKEN:
        forecasts = {name: there for name, limit in allowed.items() if (there := crossing(law, limit)) is not None}
    means = tuple(math.exp(sum(math.log(v) for v in row) / len(row)) for row in values)
    return Trend(axis, dtype, quantity, "", tuple(sizes), means, law, allowed, forecasts)


def _binned(points: list[tuple[float, list[float]]]) -> list[tuple[float, list[float]]]:
    """Root mean squares over octaves of the position, at the geometric mean of the positions."""
    bins: dict[int, list[tuple[float, list[float]]]] = {}
    for position, values in points:
        bins.setdefault(int(math.log2(position) * BINS_PER_OCTAVE), []).append((position, values))
    joined = []
    for group in bins.values():
        middle = math.exp(sum(math.log(position) for position, _ in group) / len(group))
        seeds = len(group[0][1])
        joined.append((middle, [math.sqrt(sum(values[s] ** 2 for _, values in group) / len(group)) for s in range(seeds)]))
    return joined
