"""Growth as a picture: points of every seed, the law with its 95 % band, the limit and the forecast. Needs matplotlib (extra ``plots``)."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from precisionlab.errors import SettingsError
from precisionlab.growth.analysis import AxisGrowth, Trend
from precisionlab.growth.fits import Fit
from precisionlab.growth.words import law_words, name_of, size_words, text

SUFFIXES = (".svg", ".png", ".html")
NARROWEST = 3.0
"""Factor between the ends of the vertical axis at least: numbers that do not grow shall not look as if they did."""


def check_matplotlib() -> None:
    """Raises ``SettingsError`` where matplotlib is not installed: before an hour is spent on the sweep."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise SettingsError("pictures need matplotlib", hint="pip install 'precisionlab[plots]', or -o growth.json") from None


def write_picture(path: Path, found: Sequence[AxisGrowth]) -> None:
    """An SVG or PNG of every trend, or an HTML page that holds the SVG and the words; the same input gives the same bytes."""
    if path.suffix == ".html":
        path.write_text(_page(found), encoding="utf-8")
        return
    path.write_bytes(_drawn(found, path.suffix.removeprefix(".")))


def _page(found: Sequence[AxisGrowth]) -> str:
    data = base64.b64encode(_drawn(found, "svg")).decode("ascii")
    words = "\n\n".join(text(growth, []) for growth in found)
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>growth</title>"
        "<style>body{font:15px system-ui;margin:2em;max-width:70em}pre{white-space:pre-wrap}</style>"
        f'<img alt="growth" style="max-width:100%" src="data:image/svg+xml;base64,{data}"><pre>{html.escape(words)}</pre></html>\n'
    )


def _drawn(found: Sequence[AxisGrowth], kind: str) -> bytes:
    import matplotlib
    from matplotlib.figure import Figure

    trends = [(growth, trend) for growth in found for trend in growth.trends if len(trend.sizes) > 1 and any(v > 0 for v in trend.values)]
    columns = 2 if len(trends) > 1 else 1
    rows = max((len(trends) + columns - 1) // columns, 1)
    figure = Figure(figsize=(6.4 * columns, 4.0 * rows), layout="constrained")
    for index, (growth, trend) in enumerate(trends):
        _panel(figure.add_subplot(rows, columns, index + 1), growth, trend)
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "precisionlab"}):
        figure.savefig(buffer, format=kind, metadata={"Date": None} if kind == "svg" else {})
    return buffer.getvalue()


def _panel(axes: Any, growth: AxisGrowth, trend: Trend) -> None:
    place = trend.place if trend.place else None
    sizes, rows = growth.sweep.series(trend.quantity, place)
    axes.set_xscale("log")
    axes.set_yscale("log")
    points = [(n, v) for n, row in zip(sizes, rows, strict=True) for v in row if v > 0 and np.isfinite(v)]
    axes.plot([n for n, _ in points], [v for _, v in points], "o", ms=4, color="#20639b", label="measured")
    limit, forecast = trend.limits[trend.dtype], trend.forecast
    end = trend.sizes[-1]
    if isinstance(trend.law, Fit):
        if forecast is not None:
            end = max(end, 1.3 * forecast.size)
        grid = np.geomspace(trend.sizes[0], end, 80)
        band = np.array([trend.law.interval(float(n)) for n in grid])
        axes.plot(grid, [trend.law.at(float(n)) for n in grid], color="#20639b", label=str(trend.law.law))
        axes.fill_between(grid, band[:, 0], band[:, 1], color="#20639b", alpha=0.15, label="95 %", lw=0)
        if forecast is not None and forecast.size <= end:
            axes.axhline(limit, color="#c0392b", ls="--", lw=1, label=f"limit in {trend.dtype}")
            axes.axvspan(forecast.low, min(forecast.high, end), color="#c0392b", alpha=0.12, lw=0)
            axes.axvline(forecast.size, color="#c0392b", lw=1, label=f"{trend.axis} {size_words(forecast.size)}")
    low, high = axes.get_ylim()
    if high < NARROWEST * low:
        middle = (low * high) ** 0.5
        axes.set_ylim(middle / NARROWEST**0.5, middle * NARROWEST**0.5)
    unit = "" if trend.quantity.value in ("peak", "flushed_energy_share", "swamped_share") else f", u of {trend.dtype}"
    axes.set_xlabel(trend.axis)
    axes.set_ylabel(f"{name_of(trend.quantity)}{unit}")
    axes.set_title("\n".join(part for part in (trend.place, law_words(trend)) if part), fontsize=9, wrap=True)
    axes.legend(fontsize=8)
