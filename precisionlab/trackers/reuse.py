"""Gradients that are used twice: backward adds to a gradient that a step has used already, because nobody set it to zero."""

from __future__ import annotations

import weakref
from typing import Any

from precisionlab.records import Site
from precisionlab.shadow.memory import Twin
from precisionlab.trackers.court import Court, marks_of


class Reuse:
    """Marks gradients as spent at a step, and looks whether backward adds to them."""

    def __init__(self, court: Court) -> None:
        self.court = court
        self._rows: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def accumulated(self, marks: dict[str, Any], site: Site) -> None:
        """Backward added to a gradient that has these marks."""
        if "spent" in marks:
            marks["reused"] = site

    def before_step(self, optimizer: Any, used: list[tuple[str, Twin]]) -> None:
        """``used``: the gradients that the step is about to use."""
        again = [(name, (twin.marks or {})["reused"]) for name, twin in used if twin.marks and "reused" in twin.marks]
        for _, twin in used:
            marks = marks_of(twin)
            marks.pop("reused", None)
            marks["spent"] = True
        if not again:
            self._rows.pop(optimizer, None)
            return
        rows = self._rows[optimizer] = self._rows.get(optimizer, 0) + 1
        if rows >= self.court.limits.reused_steps:
            name, site = again[0]
            reason = f"{len(again)} of {len(used)} gradients still hold those of the steps before: step {rows + 1} uses the sum of all"
            self.court.convict("gradients-not-zeroed", site, {"steps": rows, "parameter": name}, name, reason)
