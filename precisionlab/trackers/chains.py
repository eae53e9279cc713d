"""Long-lived values that are rebuilt each time instead of updated in place: ``ema = d * ema + (1 - d) * w``.

Each sum whose result loses most of its addend is a link; the chain keeps where it began, and is judged as an accumulator is: by the
displacement of the real value beside that of its twin.
"""

from __future__ import annotations

from typing import Any

import torch

from precisionlab.records import EventKind
from precisionlab.shadow.call import OpCall, Pair
from precisionlab.shadow.measure import displacement
from precisionlab.shadow.memory import UNIT_ROUNDOFF, ShadowMemory, Twin
from precisionlab.thresholds import Thresholds
from precisionlab.trackers.accumulators import judge_lag
from precisionlab.trackers.court import marks_of
from precisionlab.trackers.log import RunLog

_SUMS = frozenset(("add", "sub", "lerp", "addcmul", "addcdiv"))
_LARGEST = 1 << 22
"""Elements above which the beginning of a chain is not copied."""
_DECAY = 0.125
"""A factor this close to 1 is the first half of a decaying average."""


class Chains:
    """Watches out-of-place sums of half values outside of autograd."""

    def __init__(self, log: RunLog, memory: ShadowMemory, thresholds: Thresholds) -> None:
        self.log = log
        self.memory = memory
        self.limits = thresholds

    def op(self, call: OpCall) -> None:
        """One out-of-place op outside of backward."""
        name = call.info.stem
        pair = call.outputs[0]
        if not call.inputs or UNIT_ROUNDOFF[pair.lo.dtype] <= 2.0**-24 or pair.lo.numel() > _LARGEST or call.inputs[0].lo.requires_grad:
            return
        if name == "mul" and _decays(call):
            base = call.inputs[0]
            marks_of(pair.twin)["chain"] = self._chain(base)
        elif name in _SUMS and pair.twin.events and self._lost(call, pair.twin):
            self._link(call, pair)

    def _lost(self, call: OpCall, twin: Twin) -> bool:
        return any(self.log.events[e].kind is EventKind.LOST and self.log.events[e].site.op == call.info.name for e in twin.events)

    def _chain(self, base: Pair) -> dict[str, Any]:
        known: dict[str, Any] | None = (base.twin.marks or {}).get("chain")
        return known if known is not None else {"lo": base.lo.detach().clone(), "hi": base.hi.clone(), "links": 0}

    def _link(self, call: OpCall, pair: Pair) -> None:
        alike = [p for p in call.inputs if p.lo.shape == pair.lo.shape]
        if not alike:
            return
        marked = [p for p in alike if p.twin.marks and "chain" in p.twin.marks]
        base = marked[0] if marked else max(alike, key=lambda p: float(p.lo.detach().double().square().sum()))
        chain = dict(self._chain(base))
        chain["links"] += 1
        marks_of(pair.twin)["chain"] = chain
        links = int(chain["links"])
        if links < self.limits.accumulator_writes or links & (links - 1):
            return
        moved = displacement(pair.lo, chain["lo"], pair.hi, chain["hi"])
        lost = frozenset(e for e in pair.twin.events if self.log.events[e].kind is EventKind.LOST)
        judge_lag(self.log, self.limits, call, pair, moved, lost, links, "rebuilt again and again")


def _decays(call: OpCall) -> bool:
    factor = call.args[1] if len(call.args) > 1 else None
    if isinstance(factor, torch.Tensor):
        factor = float(factor) if factor.numel() == 1 and factor.is_cpu and factor.dtype is torch.float64 else None
    return isinstance(factor, (int, float)) and 0.0 < abs(float(factor) - 1.0) < _DECAY
