"""A run as one HTML file without links to anything, and its picture as SVG. Needs matplotlib and jinja2: the ``plots`` extra."""

from __future__ import annotations

import html
import io
import math
from importlib import resources
from typing import TYPE_CHECKING, Any

from precisionlab.scenarios.columns import number
from precisionlab.scenarios.model import ScenarioError
from precisionlab.scenarios.pictures import NAMES, Series, octaves
from precisionlab.scenarios.text import series_of, value_text

if TYPE_CHECKING:
    from precisionlab.scenarios.runner import Outcome

COLORS = {"broken": "#c0392b", "program": "#2c7fb8", "fixed": "#2e8b57", "reference": "#555555"}
STYLES = {"broken": "-", "program": "-", "fixed": "--", "reference": ":"}


def svg(outcome: Outcome) -> str:
    """The picture. Raises ``ScenarioError`` without matplotlib, and for a scenario that has no picture."""
    wanted = outcome.scenario.picture
    if wanted is None:
        raise ScenarioError(f"{outcome.scenario.name} has no picture", hint="--html FILE for the whole run")
    figure_class = _need("matplotlib.figure").Figure
    rc_context = _need("matplotlib").rc_context
    with rc_context({"svg.hashsalt": outcome.scenario.name, "svg.fonttype": "none", "font.size": 9}):
        figure = figure_class(figsize=(7.2, 2.8), layout="constrained")
        axes = figure.add_subplot()
        _PLOTS[wanted.kind](axes, series_of(outcome))
        axes.spines[["top", "right"]].set_visible(False)
        if wanted.kind == "bars":
            axes.set_title(wanted.label, fontsize=9)
        else:
            axes.set_xlabel(wanted.label)
            if wanted.kind == "line":
                axes.xaxis.get_major_locator().set_params(integer=True)
            axes.legend(frameon=False)
        stream = io.StringIO()
        figure.savefig(stream, format="svg", metadata={"Date": None})
    text = stream.getvalue()
    return text[text.index("<svg") :]


def page(outcome: Outcome) -> str:
    """The whole run. Raises ``ScenarioError`` without the ``plots`` extra."""
    jinja2 = _need("jinja2")
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string(resources.files("precisionlab.scenarios").joinpath("page.html").read_text(encoding="utf-8"))
    scenario = outcome.scenario
    markup = _need("markupsafe").Markup
    names = list(dict.fromkeys(name for one in outcome.ran.values() for name in one.values))
    text: str = template.render(
        scenario=scenario,
        outcome=outcome,
        names=NAMES,
        values=[(name.replace("_", " "), [value_text(one.values.get(name)) for one in outcome.ran.values()]) for name in names],
        audited={version: one for version, one in outcome.ran.items() if one.report is not None},
        numbers=[(name.replace("_", " "), number(value), _claimed(outcome, name)) for name, value in outcome.numbers.items()],
        picture=markup(svg(outcome)) if scenario.picture is not None else "",
        hook=scenario.said(outcome.numbers) if outcome.native else f"Here in {outcome.dtype}; its lesson is about {scenario.dtype}.",
        sections={title: markup(_html(body)) for title, body in scenario.lesson(outcome.numbers).items()} if outcome.native else {},
        program=scenario.program_text(),
    )
    return text


def _claimed(outcome: Outcome, name: str) -> str:
    claim = outcome.scenario.claims.get(name)
    return "" if claim is None else number(claim.low) if claim.low == claim.high else f"{number(claim.low)} to {number(claim.high)}"


def _html(text: str) -> str:
    blocks = []
    for block in text.split("\n\n"):
        escaped = html.escape(block, quote=False)
        blocks.append(f"<pre>{escaped}</pre>" if block.startswith("    ") else f"<p>{escaped}</p>")
    return "\n".join(blocks)


def _need(module: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        hint = "pip install 'precisionlab[plots]', or leave --html and --svg out"
        raise ScenarioError(f"pictures need {error.name or module}, which is not installed", hint=hint) from None


def _line(axes: Any, series: Series) -> None:
    for version, values in series.items():
        axes.plot(range(1, len(values) + 1), values, STYLES[version], color=COLORS[version], label=NAMES[version], linewidth=1.6)


def _histogram(axes: Any, series: Series) -> None:
    labels, counts = octaves(series)
    each = 0.8 / len(counts)
    for position, (version, found) in enumerate(counts.items()):
        places = [i - 0.4 + each * (position + 0.5) for i in range(len(labels))]
        axes.bar(places, found, width=each, color=COLORS[version], label=NAMES[version])
    axes.set_xticks(range(len(labels)), labels)


def _bars(axes: Any, series: Series) -> None:
    names, sizes = (
        list(series),
        [values[0] if len(values) == 1 else math.sqrt(math.fsum(v * v for v in values)) for values in series.values()],
    )
    drawn = [size if math.isfinite(size) else 0.0 for size in sizes]
    bars = axes.barh([NAMES[name] for name in names], drawn, color=[COLORS[name] for name in names])
    axes.bar_label(bars, [number(size) for size in sizes], padding=4)
    axes.invert_yaxis()
    axes.margins(x=0.15)


_PLOTS = {"line": _line, "histogram": _histogram, "bars": _bars}
