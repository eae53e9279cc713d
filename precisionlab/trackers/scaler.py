"""The loss scaler: what scale it uses, which steps it skips, and whether it can still find one that works."""

from __future__ import annotations

from typing import Any

import torch

from precisionlab.records import Evidence, Phase
from precisionlab.trackers.court import Court, flat_tensors, marks_of

_COLLAPSED = 1.0
"""A loss scale below 1 shrinks the loss: growth and back-off have lost their purpose (torch's scaler starts at 65536)."""


class Scaler:
    """Wrapped around the four methods of ``GradScaler``; disabled scalers pass straight through."""

    def __init__(self, court: Court) -> None:
        self.court = court
        self.timeline: list[dict[str, Any]] = []
        self.skipped = 0
        self.skips_in_a_row = 0
        self._stale_seen = False

    def scale(self, original: Any, scaler: Any, outputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Around ``GradScaler.scale``: the scale becomes the unit of all that follows."""
        if scaler.is_enabled():
            self.court.with_scaler = True
            self._scaled_already(outputs)
            self._tag_scale(scaler, outputs)
        return original(scaler, outputs, *args, **kwargs)

    def _tag_scale(self, scaler: Any, outputs: Any) -> None:
        """The scale tensor is S^1: the loss and, through backward, every gradient inherit it."""
        first = next(iter(flat_tensors(outputs)), None)
        if scaler._scale is None and first is not None:
            scaler._lazy_init_scale_growth_tracker(first.device)  # what scale() is about to do itself
        if scaler._scale is not None:
            self.court.scaled, self.court.scale = True, float(scaler.get_scale())
            with torch.no_grad(), torch._C._DisableTorchDispatch():
                self.court.memory.state(scaler._scale).power = 1.0

    def _scaled_already(self, outputs: Any) -> None:
        """A loss that already carries the scale: gradients of a scaled output went into it undivided."""
        for t in flat_tensors(outputs):
            twin = self.court.memory.get(t)
            if twin is not None and twin.power != 0.0 and self.court.scale > 1.5:
                site = twin.site or self.court.here("GradScaler.scale", "", Phase.SCALER)
                evidence: Evidence = {"scale": self.court.scale, "power": twin.power}
                reason = f"part of the loss is already multiplied by the scale {self.court.scale:g}"
                self.court.convict("gradient-penalty-on-scaled-gradients", site, evidence, "the loss", reason)

    def unscale(self, original: Any, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Around ``GradScaler.unscale_``."""
        if scaler.is_enabled():
            self._halves_under_scaler(optimizer)
        return original(scaler, optimizer, *args, **kwargs)

    def _halves_under_scaler(self, optimizer: Any) -> None:
        """Gradients stored in fp16 cannot be unscaled without losing what the scale saved: torch refuses. Judged before it raises."""
        halves = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None and p.grad.dtype is torch.float16]
        if halves:
            name = self.court.parameters.name_of(halves[0], "a parameter")
            site = self.court.here("GradScaler.unscale_", name.rpartition(".")[0], Phase.SCALER)
            self.court.convict(
                "fp16-parameters-under-scaler",
                site,
                {"parameters": len(halves), "parameter": name},
                name,
                f"unscaling {len(halves)} fp16 gradients is refused and no step is taken",
            )

    def step(self, original: Any, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Around ``GradScaler.step``: was the step taken?"""
        if not scaler.is_enabled():
            return original(scaler, optimizer, *args, **kwargs)
        self._halves_under_scaler(optimizer)
        before = self.court.steps
        out = original(scaler, optimizer, *args, **kwargs)
        if self.court.steps == before:
            self._skipped_step(optimizer)
        else:
            self.skips_in_a_row = 0
        return out

    def _skipped_step(self, optimizer: Any) -> None:
        self.skipped += 1
        self.skips_in_a_row += 1
        for group in optimizer.param_groups:
            for p in group["params"]:
                twin = self.court.memory.get(p.grad) if p.grad is not None and p.grad.layout == torch.strided else None
                if twin is None:
                    continue
                marks = marks_of(twin)
                if "stale" in marks:
                    self._stale_seen = True
                    name = self.court.parameters.name_of(p, "a parameter")
                    self.court.convict(
                        "stale-nonfinite-gradient",
                        marks["stale"],
                        {"parameter": name, "skips": self.skips_in_a_row},
                        name,
                        "the step is skipped again",
                    )
                marks["skipped"] = True

    def update(self, original: Any, scaler: Any, *args: Any, **kwargs: Any) -> Any:
        """Around ``GradScaler.update``: one entry of the timeline."""
        if not scaler.is_enabled():
            return original(scaler, *args, **kwargs)
        before = float(scaler.get_scale())
        out = original(scaler, *args, **kwargs)
        after = float(scaler.get_scale())
        self.court.scale = after
        self.timeline.append({"step": self.court.log.step, "scale": before, "skipped": self.skips_in_a_row > 0, "next_scale": after})
        if after < _COLLAPSED and after < before and self.skips_in_a_row >= 2 and not self._stale_seen:
            site = self.court.here("GradScaler.update", "", Phase.SCALER)
            self.court.convict(
                "scale-collapse",
                site,
                {"scale": after, "skips": self.skips_in_a_row},
                "the loss scale",
                f"the loss scale falls to {after:.3g} and every step is skipped",
            )
        return out
