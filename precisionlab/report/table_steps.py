"""The steps and the loss scaler in the printed report."""

from __future__ import annotations

import math
from typing import Any

from precisionlab.checks.wording import percent
from precisionlab.records import Phase, StepRecord
from precisionlab.report.lines import Line, labelled, plural, power_of_two, short, table, wrap
from precisionlab.report.model import Report

MAX_STEPS = 10
"""Step rows printed without ``all_ops``."""

_HEADERS = ("step", "loss", "fp64 loss", "gradient norm", "scale", "")


def step_lines(report: Report, all_ops: bool, width: int) -> list[Line]:
    """One row per step: at most ``MAX_STEPS``, the first, the last and those skipped before others. Nothing for a single step."""
    steps = [step for step in report.record.steps if step.loss is not None or step.gradient_norm is not None or step.skipped]
    if not steps or (len(steps) == 1 and not all_ops):
        return []
    shown = steps if all_ops else chosen(steps)
    scaled = any(step.scale is not None for step in steps)
    headers = [name for name in _HEADERS if scaled or name != "scale"]
    rows = [_row(step, scaled) for step in shown]
    if not any(row[-1] for row in rows):
        headers, rows = headers[:-1], [row[:-1] for row in rows]
    title = "steps" if len(shown) == len(steps) else f"steps ({len(shown)} of {len(steps)}; --all shows every one)"
    return [*wrap(title, width, style="bold"), *table(headers, rows, width, flexible=(), right=range(5 if scaled else 4))]


def chosen(steps: list[StepRecord], most: int = MAX_STEPS) -> list[StepRecord]:
    """At most ``most`` steps in order: first and last, up to half of them skipped, then others, each group thinned out evenly."""
    picked = {0, len(steps) - 1}
    skipped = [i for i, step in enumerate(steps) if step.skipped]
    for group, most_now in ((skipped, most // 2), (range(len(steps)), most)):
        free = [i for i in group if i not in picked]
        room = most_now - len(picked)
        picked.update(free if len(free) <= room else [free[int((k + 0.5) * len(free) / room)] for k in range(room)])
    return [steps[i] for i in sorted(picked)]


def _row(step: StepRecord, scaled: bool) -> list[str]:
    cells = [str(step.index + 1), short(step.loss, 6), short(step.loss_hi, 6), short(step.gradient_norm)]
    if scaled:
        cells.append("-" if step.scale is None else power_of_two(step.scale))
    return [*cells, "skipped" if step.skipped else ""]


def scaler_lines(report: Report, all_ops: bool, width: int) -> list[Line]:
    """What the scaler did, the window of scales that the gradients leave, and what to start with; nothing where nothing is scaled.

    Without a scale the window is told where fp16 flushes more of the gradients than it tolerates.
    """
    scaler = report.record.scaler
    if not scaler:
        return []
    window = scaler.get("window")
    if not scaler.get("kind") and not all_ops and not (window and window["flushed_energy_share"] > window["tolerated_energy_share"]):
        return []
    lines = labelled("scaler", _history(scaler), width)
    if window is None:
        half = any(op.phase is Phase.BACKWARD and op.plan.storage == "fp16" for op in report.ops)
        why = "no finite gradient was seen in fp16" if half else "no gradient is stored in fp16: the range of fp32 needs no loss scale"
        return [*lines, *labelled("", why, width)]
    lines += labelled("", _window(scaler, window), width)
    advice = start_with(scaler)
    return lines + (labelled("", f"start at {advice}", width) if advice else [])


def _history(scaler: dict[str, Any]) -> str:
    kind, scale = scaler.get("kind"), scaler.get("scale")
    if kind is None or scale is None:
        return "none: the loss is not scaled"
    text = f"{kind}, scale {power_of_two(scale)}" if kind == "GradScaler" else f"scaled {kind} by {power_of_two(scale)}"
    iterations, skips = len(scaler.get("timeline", ())), scaler.get("skips", 0)
    if iterations:
        text += f", {skips} of {iterations} iteration{plural(iterations)} skipped"
    coming = scaler.get("next")
    if coming:
        does = {True: ", which fits", False: ", which overflows", None: ""}[coming["fits"]]
        text += f"; after {coming['steps']:g} more clean step{plural(coming['steps'])} it grows to {power_of_two(coming['scale'])}{does}"
    return text


def _window(scaler: dict[str, Any], window: dict[str, Any]) -> str:
    lower, upper = window["lower_log2"], window["upper_log2"]
    if lower <= upper:
        span = f"{window['format']} gradients fit at scales from 2^{lower} to 2^{upper}"
    else:
        span = f"no scale fits the {window['format']} gradients (the small need 2^{lower}, the large allow 2^{upper})"
    lost = f"{percent(window['flushed_energy_share'])} of their energy is flushed to zero"
    if scaler.get("kind") is None:
        return f"{span}; unscaled, {lost}"
    headroom = window["headroom_binades"]
    stands = (
        f"{headroom:.3g} binade{plural(headroom)} of headroom" if headroom >= 0 else f"{-headroom:.3g} binade{plural(-headroom)} too high"
    )
    return f"{span}; now {stands}, {lost}"


def start_with(scaler: dict[str, Any]) -> str:
    """The scale to start with, and what it costs; empty where the one in force is as good and was found without a skip."""
    window = scaler.get("window")
    if window is None:
        return ""
    now, advised = window["scale_log2"], window["advised_log2"]
    fits = window["lower_log2"] <= math.floor(now) <= now <= window["upper_log2"]
    if (fits and not scaler.get("skips")) or advised == now:
        return ""
    headroom = window["upper_log2"] - advised
    lost = f"{percent(window['advised_flushed_energy_share'])} of the gradient energy lost"
    return f"2^{advised}: {lost}, {headroom} binade{plural(headroom)} of headroom"
