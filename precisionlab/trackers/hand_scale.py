"""Loss scaling by hand: a number multiplied onto the loss right before backward, constant or changed by the program's own rule."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from precisionlab.records import Site
from precisionlab.shadow.measure import count_nonfinite
from precisionlab.trackers.court import Court
from precisionlab.trackers.scale_history import ScaleHistory


class HandScale:
    """Told of each backward pass that starts from such a loss."""

    def __init__(self, court: Court, history: ScaleHistory) -> None:
        self.court = court
        self.history = history
        self._last: tuple[float, int] | None = None
        """The scale of the last backward pass, and the optimizer steps taken until then."""
        self._doomed: weakref.ref[torch.Tensor] | None = None
        """A parameter whose gradient that pass left non-finite."""
        self._explained = False

    def before_backward(self, scale: float, site: Site) -> None:
        """A backward pass starts from a loss multiplied by ``scale``.

        Since the last such pass, an iteration has ended if a step was taken, if the scale changed, or if its non-finite gradients are
        gone; without a step it was skipped. Else this is one more micro-batch.
        """
        steps = self.court.steps
        if self._last is not None:
            last, steps_then = self._last
            if steps > steps_then:
                self.history.taken()
            elif scale != last or self._cleared():
                self.history.skip(site, explained=self._explained)
            else:
                return
            self.history.moved(last, scale, site)
        self._last = (scale, steps)

    def after_backward(self) -> None:
        """Whether the pass left non-finite gradients, and whether an op that was seen made them."""
        self._explained, self._doomed = False, None
        for ref, _ in self.court.parameters.names():
            p = ref()
            if p is None or p.grad is None or p.grad.layout != torch.strided:
                continue
            if self._doomed is None and count_nonfinite(p.grad):
                self._doomed = ref
            self._explained = self._explained or self.history.explains(self.court.memory.get(p.grad))

    def _cleared(self) -> bool:
        """A gradient that the last pass left non-finite is finite or gone."""
        p = self._doomed() if self._doomed is not None else None
        return p is not None and (p.grad is None or not count_nonfinite(p.grad))

    def unfinished(self) -> list[dict[str, Any]]:
        """The row of the last iteration, which no further backward pass has ended, when its step was taken."""
        if self._last is None or self.court.steps == self._last[1]:
            return []
        scale = self._last[0]
        return [{"step": max(self.court.log.step - 1, 0), "scale": scale, "skipped": False, "next_scale": scale}]
