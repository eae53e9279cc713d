"""The loss scale over the audit: which iterations were skipped, why, and what the whole of it shows.

``GradScaler`` (``scaler``) and scaling by hand (``hand_scale``) both tell this history of each skip and of each change of the scale.
"""

from __future__ import annotations

import math
from typing import Any

from precisionlab.records import EventKind, Site, Verdict
from precisionlab.shadow.memory import Twin
from precisionlab.trackers.court import Court
from precisionlab.trackers.window import Window

_COLLAPSED = 1.0
"""A loss scale below 1 shrinks the loss: growth and back-off have lost their purpose (torch's scaler starts at 65536)."""
_LARGEST = 2.0**126
"""Above it the reciprocal of the scale, by which gradients are unscaled, is subnormal in fp32."""
_ORIGINS = frozenset((EventKind.OVERFLOW, EventKind.DOMAIN, EventKind.CAST, EventKind.CONSTANT))


class ScaleHistory:
    """Iterations end with ``moved``, those left out have a ``skip`` before it. ``finish`` judges the whole."""

    def __init__(self, court: Court) -> None:
        self.court = court
        self.window = Window(court)
        self.timeline: list[dict[str, Any]] = []
        self.skipped = 0
        self.skips_in_a_row = 0
        self.stale_seen = False
        """A gradient left over from a skipped iteration was convicted: what it makes of the scale is its consequence."""
        self.growth: dict[str, float] = {}
        """``GradScaler``'s settings, and its clean steps since the last change."""
        self.resumed: tuple[Site, float] | None = None
        """Where an optimizer with a past met a scaler without one, and how many steps that past has."""
        self._unexplained = 0
        """Skips in a row whose non-finite gradients come neither from the scale nor from an op that the audit saw."""
        self._first_skips = 0
        """Skips before the first step."""
        self._iterations = 0
        """Iterations after the first that was not skipped."""
        self._grown_too_far = 0
        """How many of them were skipped because the scale had just grown."""
        self._grown_on_skip = 0
        self._left_out = False
        """The running iteration left out a step; of several optimizers, one at least."""
        self._grew = False
        self._last_site: Site | None = None

    def explains(self, twin: Twin | None) -> bool:
        """Something that the audit saw made Inf or NaN on the way to this gradient: that is the finding, not the scaler."""
        return twin is not None and any(self.court.log.events[e].kind in _ORIGINS for e in twin.events)

    def skip(self, site: Site, *, explained: bool) -> None:
        """The running iteration takes no step. ``explained``: an op made its non-finite values, at this scale or at any."""
        explained = explained or not self.window.fits
        self._last_site = site
        self._left_out = True
        self.skipped += 1
        self.skips_in_a_row += 1
        self._unexplained = 0 if explained else self._unexplained + 1
        if not self.court.steps:
            self._first_skips += 1
        if self._grew and explained:
            self._grown_too_far += 1
        self.court.timeline.skip(self.court.log.step)

    def taken(self) -> None:
        """The running iteration takes a step."""
        self.skips_in_a_row = self._unexplained = 0

    def moved(self, before: float, after: float, site: Site) -> None:
        """The end of an iteration: the scale was ``before`` and will be ``after``."""
        skipped, self._left_out = self._left_out, False
        step = self.court.log.step - (0 if skipped else 1)
        self.timeline.append({"step": max(step, 0), "scale": before, "skipped": skipped, "next_scale": after})
        if self._iterations or not skipped:
            self._iterations += 1
        self._grew = after > before
        self._grown_on_skip += skipped and self._grew
        self.window.fits = True
        if after < _COLLAPSED and after < before and self.skips_in_a_row >= self.court.limits.skips_tried and not self.stale_seen:
            reason = f"the loss scale falls to {after:.3g} and every step is skipped"
            self.court.convict("scale-collapse", site, {"scale": after, "skips": self.skips_in_a_row}, "the loss scale", reason)
        if not after < _LARGEST:
            reason = f"the loss scale is {after:.3g}, which cannot be divided out in fp32"
            self.court.convict("scale-overflow", site, {"scale": after, "skips": self.skipped}, "the loss scale", reason)
        elif self._grown_on_skip >= self.court.limits.skips_tried:
            reason = f"the loss scale rises to {after:.3g} on steps that overflow"
            self.court.convict("scale-overflow", site, {"scale": after, "skips": self.skipped}, "the loss scale", reason)

    # -- the end ------------------------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """At the end of the audit: what only the whole of it shows."""
        self._never_stepped()
        self._not_resumed()
        self._grew_too_often()
        self._no_scale_fits()

    def _never_stepped(self) -> None:
        court = self.court
        if (
            self._unexplained < self.court.limits.skips_tried
            or court.steps
            or self.stale_seen
            or court.convicted("scale-collapse")
            or self._last_site is None
        ):
            return
        court.convict(
            "every-step-skipped",
            self._last_site,
            {"skips": self.skipped, "scale": court.scale},
            "the loss scale",
            f"no step was taken in {self.skipped} iterations, and lowering the scale to {court.scale:g} changed nothing",
        )

    def _not_resumed(self) -> None:
        if self.resumed is None or self._first_skips < self.court.limits.skips_tried:
            return
        site, past = self.resumed
        self.court.convict(
            "scale-not-resumed",
            site,
            {"skips": self._first_skips, "optimizer_steps_before": past, "scale": self.court.scale},
            "the loss scale",
            f"{self._first_skips} steps were skipped to find the scale again",
            Verdict.BROKEN if self._first_skips > self.court.limits.calibration_skips else Verdict.RISKY,
        )

    def _grew_too_often(self) -> None:
        share = self._grown_too_far / max(self._iterations, 1)
        if self._grown_too_far < self.court.limits.growth_skips or share < self.court.limits.growth_share or self._last_site is None:
            return
        self.court.convict(
            "growth-too-frequent",
            self._last_site,
            {"skips": self._grown_too_far, "iterations": self._iterations, **self.growth},
            "the loss scale",
            f"{share:.0%} of the steps are skipped because the scale had just grown",
            Verdict.RISKY,
        )

    def _no_scale_fits(self) -> None:
        """At every scale the gradients that do not overflow still lose a material share of their energy."""
        window, site = self.window.result(), self.window.largest_at
        if window is None or site is None or window.binades > 0:
            return
        flushed = window.lost(window.upper)[1]
        if flushed > self.court.limits.flush_share:
            self.court.convict(
                "empty-scale-window",
                site,
                {"lower_log2": window.lower, "upper_log2": window.upper, "flushed_energy_share": flushed},
                "the loss scale",
                f"at every scale that does not overflow, {flushed:.0%} of the gradient energy or more is flushed to zero",
                Verdict.RISKY,
            )

    def summary(self, unfinished: list[dict[str, Any]]) -> dict[str, Any] | None:
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
            **self.growth,
            "next": self._next(window),
            "timeline": [*self.timeline, *unfinished],
            "window": window,
        }

    def _next(self, window: dict[str, Any] | None) -> dict[str, Any] | None:
        """What the scaler does next, if nothing overflows: in how many steps it grows, to what, and whether that fits what was seen."""
        growth = self.growth
        if not growth or not growth["growth_factor"] > 1.0:
            return None
        scale = self.court.scale * growth["growth_factor"]
        fits = None if window is None or not scale > 0 else math.log2(scale) < window["upper_log2"] + 1
        return {"steps": growth["growth_interval"] - growth["clean_steps"], "scale": scale, "fits": fits}
