"""Growth as the ``growth`` part of the JSON report. No torch in here."""

from __future__ import annotations

from typing import Any

from precisionlab.growth.analysis import AxisGrowth, Trend
from precisionlab.growth.confirm import Confirmation
from precisionlab.growth.fits import Fit, Onset, Refusal
from precisionlab.growth.forecast import Forecast
from precisionlab.growth.measurement import Quantity
from precisionlab.growth.words import law_words


def growth_document(found: list[AxisGrowth], profiles: tuple[Trend, ...], confirmed: list[Confirmation]) -> dict[str, Any]:
    """Axis -> sizes, drift, its law and the first limit that is to be reached; ``measures`` has every quantity.

    ``block``, ``token`` and ``step`` are the axes inside the largest run.
    """
    document: dict[str, Any] = {}
    for growth in found:
        here = [c for c in confirmed if c.axis == growth.sweep.axis]
        axis = _axis(growth.trends, growth.first, here)
        axis["skipped"] = {f"{size:g}": why for size, why in growth.sweep.skipped.items()}
        axis["notes"] = list(growth.sweep.notes)
        document[growth.sweep.axis] = axis
    for name in dict.fromkeys(trend.axis for trend in profiles):
        trends = tuple(trend for trend in profiles if trend.axis == name)
        document[f"{name} (inside)" if name in document else name] = _axis(trends, None, [])
    return document


def _axis(trends: tuple[Trend, ...], first: Trend | None, confirmed: list[Confirmation]) -> dict[str, Any]:
    drift = next((t for t in trends if t.quantity is Quantity.DRIFT), None)
    leading = first or drift
    forecast = leading.forecast if leading is not None else None
    return {
        "sizes": list(drift.sizes) if drift is not None else list(trends[0].sizes) if trends else [],
        "drift_u": list(drift.values) if drift is not None else [],
        **(_law(drift.law) if drift is not None else {"law": None, "exponent": None, "interval": None}),
        "forecast": None if forecast is None or leading is None else {"quantity": str(leading.quantity), **_forecast(forecast)},
        "measures": [_measure(trend, [c for c in confirmed if c.quantity is trend.quantity]) for trend in trends],
    }


def _law(law: Fit | Onset | Refusal) -> dict[str, Any]:
    if isinstance(law, Refusal):
        return {"law": None, "exponent": None, "interval": None}
    if isinstance(law, Onset):
        return {"law": str(law.law), "exponent": None, "interval": [law.low, law.high]}
    return {"law": str(law.law), "exponent": law.exponent, "interval": list(law.exponent_interval())}


def _measure(trend: Trend, confirmed: list[Confirmation]) -> dict[str, Any]:
    law = trend.law
    return {
        "quantity": str(trend.quantity),
        "place": trend.place,
        "sizes": list(trend.sizes),
        "values": list(trend.values),
        **_law(law),
        "form": law.form.value if isinstance(law, Fit) else None,
        "parameters": list(law.parameters) if isinstance(law, Fit) else None,
        "r2": law.r2 if isinstance(law, Fit) else None,
        "rivals": [str(rival.law) for rival in law.rivals] if isinstance(law, Fit) else [],
        "words": law_words(trend),
        "limits": dict(trend.limits),
        "forecasts": {name: _forecast(found) for name, found in trend.forecasts.items()},
        "confirmed": [
            {"size": c.size, "forecast": c.forecast, "interval": [c.low, c.high], "measured": c.measured, "inside": c.inside}
            for c in confirmed
        ],
    }


def _forecast(found: Forecast) -> dict[str, Any]:
    return {"limit": found.limit, "size": found.size, "interval": [found.low, found.high]}
