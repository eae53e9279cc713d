"""``GradScaler``: its scale is the unit of the gradients, and its steps are taken or skipped."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from precisionlab.records import Evidence, Phase
from precisionlab.shadow.call import tensors_of
from precisionlab.trackers.court import Court, marks_of
from precisionlab.trackers.scale_history import ScaleHistory


class Scaler:
    """Wrapped around the methods of ``GradScaler``; disabled scalers pass straight through."""

    def __init__(self, court: Court, history: ScaleHistory) -> None:
        self.court = court
        self.history = history
        self._loaded: weakref.WeakSet[Any] = weakref.WeakSet()
        self._fresh = False
        """The scaler starts in this audit, from its initial scale."""

    def scale(self, original: Any, scaler: Any, outputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Around ``GradScaler.scale``: the scale becomes the unit of all that follows."""
        if scaler.is_enabled():
            self.court.with_scaler = True
            self._scaled_already(outputs)
            self._tag_scale(scaler, outputs)
        return original(scaler, outputs, *args, **kwargs)

    def _tag_scale(self, scaler: Any, outputs: Any) -> None:
        """The scale tensor is S^1: the loss and, through backward, every gradient inherit it."""
        first = next(iter(tensors_of(outputs)), None)
        if scaler._scale is None and first is not None:
            self._fresh = not scaler._init_growth_tracker and scaler not in self._loaded
            scaler._lazy_init_scale_growth_tracker(first.device)  # what scale() is about to do itself
        if scaler._scale is not None:
            self.court.scaled, self.court.scale = True, float(scaler.get_scale())
            with torch.no_grad(), torch._C._DisableTorchDispatch():
                self.court.memory.state(scaler._scale).power = 1.0

    def _scaled_already(self, outputs: Any) -> None:
        """A loss that already carries the scale: gradients of a scaled output went into it undivided."""
        for t in tensors_of(outputs):
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
        if self._fresh and self.history.resumed is None and not self.court.steps:
            past = _steps_of(optimizer)
            if past:
                self.history.resumed = (self.court.here("GradScaler.step", "", Phase.SCALER), past)
        before = self.court.steps
        out = original(scaler, optimizer, *args, **kwargs)
        if self.court.steps == before:
            self._skipped_step(optimizer)
        else:
            self.history.taken()
        return out

    def _skipped_step(self, optimizer: Any) -> None:
        explained = False
        for group in optimizer.param_groups:
            for p in group["params"]:
                twin = self.court.memory.get(p.grad) if p.grad is not None and p.grad.layout == torch.strided else None
                if twin is None:
                    continue
                explained = explained or self.history.explains(twin)
                marks = marks_of(twin)
                if "stale" in marks:
                    self.history.stale_seen = True
                    name = self.court.parameters.name_of(p, "a parameter")
                    self.court.convict(
                        "stale-nonfinite-gradient",
                        marks["stale"],
                        {"parameter": name, "skips": self.history.skips_in_a_row + 1},
                        name,
                        "the step is skipped again",
                    )
                marks["skipped"] = True
        self.history.skip(self.court.here("GradScaler.step", "", Phase.SCALER), explained=explained)

    def update(self, original: Any, scaler: Any, *args: Any, **kwargs: Any) -> Any:
        """Around ``GradScaler.update``: one entry of the timeline."""
        if not scaler.is_enabled():
            return original(scaler, *args, **kwargs)
        before = float(scaler.get_scale())
        out = original(scaler, *args, **kwargs)
        after = float(scaler.get_scale())
        with torch._C._DisableTorchDispatch():
            clean = scaler._get_growth_tracker()
        self.history.growth = {
            "growth_interval": scaler.get_growth_interval(),
            "growth_factor": scaler.get_growth_factor(),
            "backoff_factor": scaler.get_backoff_factor(),
            "clean_steps": clean,
        }
        self.history.moved(before, after, self.court.here("GradScaler.update", "", Phase.SCALER))
        self.court.scale = after
        return out

    def load_state(self, original: Any, scaler: Any, *args: Any, **kwargs: Any) -> Any:
        """Around ``GradScaler.load_state_dict``: this scaler goes on where another left off."""
        self._loaded.add(scaler)
        return original(scaler, *args, **kwargs)


def _steps_of(optimizer: Any) -> float:
    """Steps that the state of an optimizer tells of: its step counters; 1 where it holds moments but no counter."""
    most = 0.0
    for state in optimizer.state.values():
        if not isinstance(state, dict):
            continue
        step = state.get("step")
        if isinstance(step, torch.Tensor):
            with torch._C._DisableTorchDispatch():
                step = float(step)
        if isinstance(step, (int, float)):
            most = max(most, float(step))
        elif any(isinstance(value, torch.Tensor) for value in state.values()):
            most = max(most, 1.0)
    return most
