"""Long-lived values that are updated in place: EMA copies, running statistics, meters, counters, router counts.

They are judged by displacement since the audit began to watch, never by the drift of the value: an EMA that does not move is off by 1 %
of itself and by 100 % of what it should have done.

A value that lags is not stuck: an average in bf16 with decay 0.9 stands still until its source is 4 % away, and then follows. So the
displacement is judged after many writes. Three training steps are enough where nothing can bring the value back: an addend below half a
spacing is lost as long as addends keep their size, and lerp with a weight w < u is lost whatever its source becomes short of u / w times
the value, since it adds w (source - value) and half a spacing is at most u |value|.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from precisionlab.records import EventKind, Evidence, SinkKind, Verdict
from precisionlab.shadow.call import OpCall, Pair
from precisionlab.shadow.measure import Displacement, displacement
from precisionlab.shadow.memory import NO_EVENTS, UNIT_ROUNDOFF, ShadowMemory
from precisionlab.thresholds import Thresholds
from precisionlab.trackers.addends import COUNTED, stalled_evidence
from precisionlab.trackers.log import RunLog

Tensor = torch.Tensor

_UPDATES = frozenset(("add", "sub", "lerp", "addcmul", "addcdiv", "copy", "index_add", "scatter_add", "index_put", "scatter_reduce"))
_STEADY = frozenset(("add", "sub", "lerp", "addcmul", "addcdiv"))
"""Updates whose addends are seen: what ``copy_`` writes back may be an average of any decay."""
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

    def hidden(self, call: OpCall) -> None:
        """An op that updates running statistics besides its results: its own increments, so a lag is a lost addend."""
        statistics = {id(call.args[i]) for i in call.info.hidden_writes if i < len(call.args)}
        for pair in call.outputs:
            if id(pair.lo) in statistics and UNIT_ROUNDOFF[pair.lo.dtype] > 2.0**-24:
                self._update(call, pair, own=True)

    def _update(self, call: OpCall, pair: Pair, *, own: bool = False) -> None:
        twin = pair.twin
        if twin.marks is None:
            twin.marks = {}
        key = f"{COUNTED} {pair.lo.storage_offset()} {tuple(pair.lo.shape)}"
        watched: dict[str, Any] = twin.marks.setdefault(key, {"writes": 0})
        watched["writes"] += 1
        writes = watched["writes"]
        if twin.events and call.info.stem in _STEADY:
            self._stuck(call, pair, watched)
        if writes == _WATCH_FROM:
            watched["lo"], watched["hi"] = pair.lo.detach().clone(), pair.hi.clone()
            return
        if (
            writes < _WATCH_FROM + self.limits.accumulator_writes
            or "lo" not in watched
            or (writes - _WATCH_FROM) & (writes - _WATCH_FROM - 1)
        ):
            return
        self._judge(call, pair, watched["lo"], watched["hi"], writes, own=own)

    def _stuck(self, call: OpCall, pair: Pair, watched: dict[str, Any]) -> None:
        """From the first lost addend on: judged after ``update_steps`` training steps, and at every doubling of their number."""
        lost = any(self.log.events[e].kind is EventKind.LOST for e in pair.twin.events)
        if not lost or (call.info.stem == "lerp" and not _weight(call) < UNIT_ROUNDOFF[pair.lo.dtype]):
            return
        if "lost_since" not in watched:
            watched["lost_since"], watched["judge_at"] = self.log.step, self.log.step + self.limits.update_steps - 1
            watched["lost_lo"], watched["lost_hi"] = pair.lo.detach().clone(), pair.hi.clone()
        elif self.log.step >= watched["judge_at"]:
            watched["judge_at"] = 2 * self.log.step - watched["lost_since"]
            self._judge(call, pair, watched["lost_lo"], watched["lost_hi"], watched["writes"], stuck=True)

    def _judge(self, call: OpCall, pair: Pair, lo: Tensor, hi: Tensor, writes: int, *, stuck: bool = False, own: bool = False) -> None:
        """Compare the way the value went from ``lo`` with that of its twin from ``hi``. ``stuck``: only if most elements stand still."""
        moved = displacement(pair.lo, lo, pair.hi, hi)
        stands = 2 * moved.stalled > moved.moved
        if stuck and not stands:
            return
        kinds = (EventKind.LOST, EventKind.RHO)
        lost = frozenset(e for e in pair.twin.events if self.log.events[e].kind in kinds)
        if own and stands and moved.error > self.limits.accumulator_error:
            site = self.log.site(call.module, call.info.name, call.phase, call.place)
            lost = frozenset((self.log.event(EventKind.LOST, site, NO_EVENTS, stalled_evidence(moved, pair.lo), "accumulate"),))
        judge_lag(self.log, self.limits, call, pair, moved, lost, writes, "updated in place")


def judge_lag(
    log: RunLog, limits: Thresholds, call: OpCall, pair: Pair, moved: Displacement, lost: frozenset[int], writes: int, how: str
) -> None:
    """A long-lived value whose way is too far from that of its twin, where addends were lost on it. ``how`` it is written: in words."""
    error = moved.error
    if not lost or not math.isfinite(moved.hi_sq) or not error > limits.accumulator_error:
        return
    site = log.site(call.module, call.info.name, call.phase, call.place)
    name = f"a {str(pair.lo.dtype).removeprefix('torch.')} value {tuple(pair.lo.shape)} {how}"
    reason = f"after {writes} updates it has moved {error:.0%} wrong ({moved.stalled} of {moved.moved} elements stand still)"
    evidence: Evidence = {"displacement_error": error, "writes": writes, "drift": error}
    log.sink(SinkKind.ACCUMULATOR, name, site, lost, Verdict.BROKEN, reason, evidence)


def _weight(call: OpCall) -> float:
    """The weight of a lerp; infinite where it is no single number."""
    weight = call.args[2] if len(call.args) > 2 else call.kwargs.get("weight")
    if isinstance(weight, Tensor):
        weight = float(weight) if weight.numel() == 1 else None
    return abs(float(weight)) if isinstance(weight, (int, float)) else math.inf
