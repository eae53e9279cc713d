"""The loss scaler: what scale it uses, which steps it skips, and whether it can still find one that works."""

from __future__ import annotations

import math
import weakref
from typing import Any

import torch

from precisionlab.records import EventKind, Evidence, Phase, Site, Verdict
from precisionlab.trackers.court import Court, flat_tensors, marks_of
from precisionlab.trackers.window import Window

_COLLAPSED = 1.0
"""A loss scale below 1 shrinks the loss: growth and back-off have lost their purpose (torch's scaler starts at 65536)."""
_LARGEST = 2.0**126
"""Above it the reciprocal of the scale, by which gradients are unscaled, is subnormal in fp32."""
_TRIED = 2
"""Skips in a row that no scale explains: the scale has been lowered at least once in between, to no effect."""
_CALIBRATION = 10
"""Skips that finding a scale may take: from 65536 they lead down to 64."""
_REPEATED = 3
"""Skips right after a growth of the scale, from which on their share of the steps is judged."""
_GROWTH_SHARE = 0.1
"""Share of the steps that growing may cost. At torch's growth interval of 2000 it is 0.05 %."""
_ORIGINS = frozenset((EventKind.OVERFLOW, EventKind.DOMAIN, EventKind.CAST, EventKind.CONSTANT))


class Scaler:
    """Wrapped around the four methods of ``GradScaler``; disabled scalers pass straight through. Scaling by hand is told by ``by_hand``."""

    def __init__(self, court: Court) -> None:
        self.court = court
        self.window = Window(court)
        self.timeline: list[dict[str, Any]] = []
        self.skipped = 0
        self.skips_in_a_row = 0
        self._unexplained = 0
        """Skips in a row whose non-finite gradients come neither from the scale nor from an op that the audit saw."""
        self._stale_seen = False
        self._growth: dict[str, float] = {}
        self._resumed: tuple[Site, float] | None = None
        """Where an optimizer with a past met a scaler without one, and how many steps that past has."""
        self._fresh = False
        self._loaded: weakref.WeakSet[Any] = weakref.WeakSet()
        self._calibrated = False
        self._iterations = 0
        """Iterations since the first step was taken, and how many of them were skipped because the scale had just grown."""
        self._grown_too_far = 0
        self._grew = False
        self._grew_on_skip = 0
        self._first_skips = 0
        self._last_site: Site | None = None
        self._hand: tuple[float, int] | None = None
        """Scaled by hand: the scale of the last backward pass, and the optimizer steps taken until then."""

    # -- around GradScaler --------------------------------------------------------------------------------------------------------

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
            self._fresh = not scaler._init_growth_tracker and scaler not in self._loaded
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
        if self._fresh and self._resumed is None and not self.court.steps:
            past = _steps_of(optimizer)
            if past:
                self._resumed = (self.court.here("GradScaler.step", "", Phase.SCALER), past)
        before = self.court.steps
        out = original(scaler, optimizer, *args, **kwargs)
        if self.court.steps == before:
            self._skipped_step(optimizer)
        else:
            self.skips_in_a_row = self._unexplained = 0
        return out

    def _skipped_step(self, optimizer: Any) -> None:
        self._last_site = self.court.here("GradScaler.step", "", Phase.SCALER)
        explained = not self.window.fits
        for group in optimizer.param_groups:
            for p in group["params"]:
                twin = self.court.memory.get(p.grad) if p.grad is not None and p.grad.layout == torch.strided else None
                if twin is None:
                    continue
                explained = explained or any(self.court.log.events[e].kind in _ORIGINS for e in twin.events)
                marks = marks_of(twin)
                if "stale" in marks:
                    self._stale_seen = True
                    name = self.court.parameters.name_of(p, "a parameter")
                    self.court.convict(
                        "stale-nonfinite-gradient",
                        marks["stale"],
                        {"parameter": name, "skips": self.skips_in_a_row + 1},
                        name,
                        "the step is skipped again",
                    )
                marks["skipped"] = True
        self._skip(explained)

    def update(self, original: Any, scaler: Any, *args: Any, **kwargs: Any) -> Any:
        """Around ``GradScaler.update``: one entry of the timeline."""
        if not scaler.is_enabled():
            return original(scaler, *args, **kwargs)
        before = float(scaler.get_scale())
        out = original(scaler, *args, **kwargs)
        after = float(scaler.get_scale())
        with torch._C._DisableTorchDispatch():
            clean = scaler._get_growth_tracker()
        self._growth = {
            "growth_interval": scaler.get_growth_interval(),
            "growth_factor": scaler.get_growth_factor(),
            "backoff_factor": scaler.get_backoff_factor(),
            "clean_steps": clean,
        }
        self._moved(before, after, self.court.here("GradScaler.update", "", Phase.SCALER))
        self.court.scale = after
        return out

    def load_state(self, original: Any, scaler: Any, *args: Any, **kwargs: Any) -> Any:
        """Around ``GradScaler.load_state_dict``: this scaler goes on where another left off."""
        self._loaded.add(scaler)
        return original(scaler, *args, **kwargs)

    # -- scaling by hand ----------------------------------------------------------------------------------------------------------

    def by_hand(self, scale: float, site: Site) -> None:
        """A backward pass starts from a loss that the program multiplied by ``scale`` itself.

        A scale that fell although no optimizer step was taken since the last backward pass tells that the step was skipped.
        """
        steps = self.court.steps
        if self._hand is not None:
            last, steps_then = self._hand
            if steps == steps_then and not scale < last:
                return  # one more micro-batch
            self._last_site = site
            if steps == steps_then:
                self._skip(not self.window.fits)
            else:
                self.skips_in_a_row = self._unexplained = 0
            self._moved(last, scale, site)
        self._hand = (scale, steps)

    # -- both ---------------------------------------------------------------------------------------------------------------------

    def _skip(self, explained: bool) -> None:
        self.skipped += 1
        self.skips_in_a_row += 1
        self._unexplained = 0 if explained else self._unexplained + 1
        if not self.court.steps:
            self._first_skips += 1
        if self._grew and self._calibrated and explained:
            self._grown_too_far += 1
        self.court.timeline.skip(self.court.log.step)

    def _moved(self, before: float, after: float, site: Site) -> None:
        """The end of an iteration: the scale was ``before`` and will be ``after``."""
        skipped = self.skips_in_a_row > 0
        step = self.court.log.step - (0 if skipped else 1)
        self.timeline.append({"step": max(step, 0), "scale": before, "skipped": skipped, "next_scale": after})
        self._iterations += self._calibrated
        self._calibrated = self._calibrated or not skipped
        self._grew = after > before
        self._grew_on_skip += skipped and after > before
        self.window.fits = True
        if after < _COLLAPSED and after < before and self.skips_in_a_row >= 2 and not self._stale_seen:
            self.court.convict(
                "scale-collapse",
                site,
                {"scale": after, "skips": self.skips_in_a_row},
                "the loss scale",
                f"the loss scale falls to {after:.3g} and every step is skipped",
            )
        if not after < _LARGEST or self._grew_on_skip >= _TRIED:
            self.court.convict(
                "scale-overflow",
                site,
                {"scale": after, "skips": self.skipped},
                "the loss scale",
                f"the loss scale is {after:.3g}, which cannot be divided out in fp32"
                if not after < _LARGEST
                else f"the loss scale rises to {after:.3g} on steps that overflow",
            )

    def finish(self) -> None:
        """At the end of the audit: what only the whole of it shows."""
        court = self.court
        never = self._unexplained >= _TRIED and not court.steps
        if never and not self._stale_seen and not court.convicted("scale-collapse") and self._last_site is not None:
            court.convict(
                "every-step-skipped",
                self._last_site,
                {"skips": self.skipped, "scale": court.scale},
                "the loss scale",
                f"no step was taken in {self.skipped} iterations, and lowering the scale to {court.scale:g} changed nothing",
            )
        if self._resumed is not None and self._first_skips >= _TRIED:
            site, past = self._resumed
            many = self._first_skips > _CALIBRATION
            court.convict(
                "scale-not-resumed",
                site,
                {"skips": self._first_skips, "optimizer_steps_before": past, "scale": court.scale},
                "the loss scale",
                f"{self._first_skips} steps were skipped to find the scale again",
                Verdict.BROKEN if many else Verdict.RISKY,
            )
        share = self._grown_too_far / max(self._iterations, 1)
        if self._grown_too_far >= _REPEATED and share >= _GROWTH_SHARE and self._last_site is not None:
            court.convict(
                "growth-too-frequent",
                self._last_site,
                {"skips": self._grown_too_far, "steps": self._iterations, **self._growth},
                "the loss scale",
                f"{share:.0%} of the steps are skipped because the scale had just grown",
                Verdict.RISKY,
            )

    def summary(self) -> dict[str, Any] | None:
        """``RunRecord.scaler``; None where no loss scale was seen and no gradient was stored in fp16."""
        court = self.court
        scale = court.scale if court.scaled else None
        window = self.window.numbers(scale)
        if scale is None and window is None:
            return None
        return {
            "kind": "GradScaler" if court.with_scaler else "by hand" if court.scaled else None,
            "scale": scale,
            "skips": self.skipped,
            **self._growth,
            "next": self._next(window),
            "timeline": [*self.timeline, *self._last_by_hand()],
            "window": window,
        }

    def _last_by_hand(self) -> list[dict[str, Any]]:
        """The iteration that no further backward pass has ended, when its step was taken."""
        if self._hand is None or self.court.steps == self._hand[1]:
            return []
        scale = self._hand[0]
        return [{"step": max(self.court.log.step - 1, 0), "scale": scale, "skipped": False, "next_scale": scale}]

    def _next(self, window: dict[str, Any] | None) -> dict[str, Any] | None:
        """What the scaler does next, if nothing overflows: in how many steps it grows, to what, and whether that fits what was seen."""
        growth = self._growth
        if not growth or not growth["growth_factor"] > 1.0:
            return None
        scale = self.court.scale * growth["growth_factor"]
        fits = None if window is None or not scale > 0 else math.log2(scale) < window["upper_log2"] + 1
        return {"steps": growth["growth_interval"] - growth["clean_steps"], "scale": scale, "fits": fits}


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
