"""Long-lived values that are updated in place: EMA copies, running statistics, meters, counters, router counts.

They are judged by displacement since the audit began to watch, never by the drift of the value: an EMA that does not move is off by 1 %
of itself and by 100 % of what it should have done.
"""

from __future__ import annotations

import math
from typing import Any

from precisionlab.records import EventKind, SinkKind, Verdict
from precisionlab.shadow.measure import displacement
from precisionlab.shadow.memory import UNIT_ROUNDOFF, ShadowMemory
from precisionlab.shadow.mode import OpCall, Pair
from precisionlab.thresholds import Thresholds
from precisionlab.trackers.log import RunLog

_UPDATES = frozenset(("add", "sub", "lerp", "addcmul", "addcdiv", "copy"))
_WATCH_FROM = 4
"""In-place writes before a tensor counts as long-lived and a copy of it is kept."""
_LARGEST = 1 << 22
"""Elements above which a long-lived value is not copied."""


class Accumulators:
    """Watches in-place updates outside of optimizer steps."""

    def __init__(self, log: RunLog, memory: ShadowMemory, thresholds: Thresholds) -> None:
        self.log = log
        self.memory = memory
        self.limits = thresholds

    def op(self, call: OpCall) -> None:
        """One in-place op outside of backward and of ``Optimizer.step``."""
        if call.info.stem not in _UPDATES:
            return
        for pair in call.outputs:
            if UNIT_ROUNDOFF[pair.lo.dtype] < 2.0**-24 or pair.lo.numel() > _LARGEST:
                continue
            self._update(call, pair)

    def _update(self, call: OpCall, pair: Pair) -> None:
        twin = pair.twin
        if twin.marks is None:
            twin.marks = {}
        key = ("accumulator", pair.lo.storage_offset(), tuple(pair.lo.shape))
        watched: dict[str, Any] = twin.marks.setdefault(str(key), {"writes": 0})
        watched["writes"] += 1
        writes = watched["writes"]
        if writes == _WATCH_FROM:
            watched["lo"], watched["hi"] = pair.lo.detach().clone(), pair.hi.clone()
            return
        if (
            writes < _WATCH_FROM + self.limits.accumulator_writes
            or "lo" not in watched
            or (writes - _WATCH_FROM) & (writes - _WATCH_FROM - 1)
        ):
            return
        moved = displacement(pair.lo, watched["lo"], pair.hi, watched["hi"])
        if not moved.hi_sq > 0 or not math.isfinite(moved.hi_sq):
            return
        error = math.sqrt(max(0.0, moved.lo_sq - 2 * moved.dot + moved.hi_sq) / moved.hi_sq)
        lost = frozenset(e for e in twin.events if self.log.events[e].kind in (EventKind.LOST, EventKind.RHO))
        if error > self.limits.accumulator_error and lost:
            site = self.log.site(call.module, call.info.name, call.phase, call.place)
            name = f"a {str(pair.lo.dtype).removeprefix('torch.')} value {tuple(pair.lo.shape)} updated in place"
            self.log.sink(
                SinkKind.ACCUMULATOR,
                name,
                site,
                lost,
                Verdict.BROKEN,
                f"after {writes} updates it has moved {error:.0%} wrong ({moved.stalled} of {moved.moved} elements stand still)",
                {"displacement_error": error, "writes": writes, "drift": error},
            )
