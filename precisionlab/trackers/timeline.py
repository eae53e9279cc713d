"""One row per training step: its loss, its fp64 loss, the gradient norm, the loss scale, and whether a scaler skipped it.

A step ends where an optimizer step ends, or where a scaler leaves it out; a step left out has the index of the step that follows it.
"""

from __future__ import annotations

import math
from typing import Any

from precisionlab.records import StepRecord


class Timeline:
    """The rows so far; the last one is the running step."""

    def __init__(self) -> None:
        self.rows: list[StepRecord] = [StepRecord(0)]

    def loss(self, lo: float, hi: float, scale: float | None) -> None:
        """A backward pass starts from a loss (unscaled). Several in one step add up, as their gradients do."""
        row = self.rows[-1]
        row.loss = lo if row.loss is None else row.loss + lo
        row.loss_hi = hi if row.loss_hi is None else row.loss_hi + hi
        row.scale = scale

    def uses(self, params: list[tuple[str, Any]], histories: Any, scale: float) -> None:
        """An optimizer is about to use its gradients, which it divides by ``scale`` itself: their fp64 norm."""
        norms = [histories[p].record.gradient_norm for _, p in params if p.grad is not None and p in histories]
        if norms:
            self.rows[-1].gradient_norm = math.hypot(*(norm or 0.0 for norm in norms)) / scale

    def skip(self, index: int) -> None:
        """The running step was left out: the next row begins."""
        self.rows[-1].skipped = True
        self.rows.append(StepRecord(index))
