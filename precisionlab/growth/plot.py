"""A small plot of text: log-log points, the law and the limit. No torch in here."""

from __future__ import annotations

import math

from precisionlab.checks.wording import number
from precisionlab.growth.analysis import Trend
from precisionlab.growth.fits import Fit
from precisionlab.growth.words import name_of, shown, size_words

WIDTH, HEIGHT = 60, 10
POINT, LAW, LIMIT = "o", ".", "-"


def plot(trend: Trend, width: int = WIDTH, height: int = HEIGHT) -> str:
    """Sizes to the right, values up, both in logarithms; ``o`` measured, ``.`` the law, ``-`` the limit where it is near."""
    points = [(n, v) for n, v in zip(trend.sizes, trend.values, strict=True) if v > 0 and math.isfinite(v)]
    if len(points) < 2:
        return ""
    limit = trend.limits[trend.dtype]
    forecast = trend.forecast
    last = points[-1][0]
    right = min(forecast.size * 1.2, last * 16) if forecast is not None and forecast.size > last else last
    values = [v for _, v in points]
    if forecast is not None and right >= forecast.size:
        values.append(limit)
    low, high = math.log(min(values)), math.log(max(values))
    if high - low < 0.7:
        low, high = (low + high) / 2 - 0.35, (low + high) / 2 + 0.35
    left, span = math.log(points[0][0]), math.log(right / points[0][0])
    rows = [[" "] * width for _ in range(height)]

    def mark(size: float, value: float, sign: str) -> None:
        x = round((math.log(size) - left) / span * (width - 1))
        y = round((math.log(value) - low) / (high - low) * (height - 1)) if value > 0 and math.isfinite(value) else -1
        if 0 <= x < width and 0 <= y < height:
            rows[height - 1 - y][x] = sign

    for x in range(width):
        size = math.exp(left + span * x / (width - 1))
        mark(size, limit, LIMIT)
        if isinstance(trend.law, Fit):
            mark(size, trend.law.at(size), LAW)
    for n, v in points:
        mark(n, v, POINT)
    labels = [""] * height
    labels[0], labels[-1] = shown(trend.quantity, math.exp(high)), shown(trend.quantity, math.exp(low))
    margin = max(len(label) for label in labels)
    body = [f"{label:>{margin}} |{''.join(row).rstrip()}" for label, row in zip(labels, rows, strict=True)]
    ends = number(points[0][0]), f"{trend.axis} {number(right) if right == last else size_words(right)}"
    axis = f"{'':{margin}} +{'-' * width}\n{'':{margin}}  {ends[0]}{ends[1]:>{width - len(ends[0])}}"
    return "\n".join([f"{name_of(trend.quantity)}{f' at {trend.place}' if trend.place else ''}", *body, axis])
