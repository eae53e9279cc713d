"""The loss-scale window, measured: how large the unscaled gradients are that the backward pass stores in fp16.

What bounds the scale is not ``.grad``, which is fp32 under autocast, but every fp16 result on the way there: gradients of activations, and
of weights before their cast to fp32. Their twins are exact and out of range of nothing, also where the real values overflowed; divided
by the scale in force they are the gradients that ``formats.loss_scale`` makes the window of.

Only fp16 has a window worth the name: bf16 has the range of fp32.
"""

from __future__ import annotations

from typing import Any

import torch

from precisionlab.formats import FP16
from precisionlab.formats.loss_scale import BINADES, LOWEST, GradientExponents, ScaleWindow, scale_window
from precisionlab.records import Site
from precisionlab.shadow.call import OpCall, Pair
from precisionlab.shadow.exponents import Spread
from precisionlab.shadow.measure import Stats
from precisionlab.trackers.court import Court

_OVERFLOWS = float(FP16.overflow_threshold)
_STRUCTURAL_ZERO = 2.0**-40
"""A result this much smaller than the gradients it was made of is zero in exact arithmetic (the gradient of a bias in front of a
normalisation): what its twin holds is the rounding of fp64, 2^-53 times the square root of the number of terms."""

_NOISE = 4.0
"""Energy of the real values over that of the exact ones above which a result is rounding noise around an exact zero (the gradient of the
divergence of two equal distributions): what fp64 has in its place is noise too. Values that were flushed are smaller, never larger."""


class Window:
    """Fed with the fp16 results of backward ops, after their powers of the scale are known."""

    def __init__(self, court: Court) -> None:
        self.court = court
        self.spread = Spread(LOWEST, BINADES)
        self.largest = 0.0
        """Largest exact unscaled |g| of the audit."""
        self.largest_at: Site | None = None
        self._task = -1
        self.fits = True
        """Nothing that the running iteration stored in fp16 in its backward pass was beyond the range, by the exact values."""

    def op(self, call: OpCall, halves: list[tuple[Pair, Stats]]) -> None:
        """One op: ``halves`` are its fp16 results with their measurements, when it ran in a backward pass."""
        scaled = self.court.scaled
        if not scaled and not self._carries_gradient(call):
            return
        for pair, stats in halves:
            twin = pair.twin
            # powers tell gradients from other values that a backward pass computes (the cosine in the gradient of a sine)
            if scaled and twin.power != 1.0:
                continue
            scale = self.court.scale if scaled else 1.0
            if not stats.hi_max_abs > 0 or not scale > 0:
                continue
            if stats.hi_max_abs >= _OVERFLOWS:
                self.fits = False
            if stats.hi_max_abs < _STRUCTURAL_ZERO * max((p.twin.lo_rms for p in call.inputs), default=0.0):
                continue
            if stats.hi_max_abs / scale > self.largest:
                self.largest, self.largest_at = stats.hi_max_abs / scale, twin.site
            if stats.lo_sq > _NOISE * stats.hi_sq:
                continue
            self.spread.add(pair.hi, 1.0 / scale)

    def root(self, dtype: torch.dtype, site: Site) -> None:
        """Backward starts from a loss of ``dtype``: the gradient of an fp16 loss is the scale itself, and is stored in fp16."""
        if dtype is torch.float16 and self.largest < 1.0:
            self.largest, self.largest_at = 1.0, site

    def _carries_gradient(self, call: OpCall) -> bool:
        """Without a scale there are no powers: a gradient is what the first op of a backward pass returns, and all that is made of one."""
        task = torch._C._current_graph_task_id()
        carries = task != self._task or any(p.twin.gradient for p in call.inputs)
        self._task = task
        if carries:
            for pair in call.outputs:
                pair.twin.gradient = True
        return carries

    def result(self) -> ScaleWindow | None:
        """The window of everything seen so far; None without gradients in fp16."""
        elements, energy = self.spread.totals()
        return scale_window(GradientExponents(elements, energy, self.largest), FP16)

    def numbers(self, scale: float | None) -> dict[str, Any] | None:
        """``ScaleWindow.numbers`` and ``results``, how many tensors were looked at."""
        window = self.result()
        return None if window is None else {**window.numbers(scale), "results": self.spread.tensors}
