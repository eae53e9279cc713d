"""The measured loss-scale window, in the advice of findings that a loss scale would repair."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from precisionlab.checks.wording import percent
from precisionlab.records import Kind, Phase
from precisionlab.report.lines import plural
from precisionlab.report.model import Finding


def with_scale(finding: Finding, scaler: dict[str, Any] | None) -> Finding:
    """The finding, with the scale to use where gradients are flushed below it or overflow above it in the backward pass."""
    window = scaler.get("window") if scaler else None
    if window is None or finding.phase is not Phase.BACKWARD:
        return finding
    if finding.kind is Kind.UNDERFLOW:
        advice = _raise(window)
    elif finding.kind is Kind.OVERFLOW and scaler is not None and scaler.get("kind"):
        advice = _lower(window)
    else:
        advice = ""
    return replace(finding, advice=f"{finding.advice} {advice}") if advice else finding


def _raise(window: dict[str, Any]) -> str:
    advised, lost = window["advised_log2"], window["advised_flushed_energy_share"]
    if advised <= window["scale_log2"]:
        return ""
    if lost > window["tolerated_energy_share"]:
        return (
            f"Measured here: the best scale, 2^{advised}, still flushes {percent(lost)} of the gradient energy (now"
            f" {percent(window['flushed_energy_share'])}); none saves it all."
        )
    headroom = window["upper_log2"] - advised
    return (
        f"Measured here: scale the loss by 2^{advised}, which loses {percent(lost)} of the gradient energy (now"
        f" {percent(window['flushed_energy_share'])}) and leaves {headroom} binade{plural(headroom)} of headroom."
    )


def _lower(window: dict[str, Any]) -> str:
    if window["scale_log2"] <= window["upper_log2"]:
        return ""
    return f"Measured here: nothing overflows up to 2^{window['upper_log2']}; start at 2^{window['advised_log2']}."
