"""Learning-rate schedules that move on although no step was taken."""

from __future__ import annotations

import weakref
from typing import Any

from precisionlab.records import Phase
from precisionlab.trackers.court import Court


class Schedule:
    """Wrapped around ``LRScheduler.step``."""

    def __init__(self, court: Court) -> None:
        self.court = court
        self._seen: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._spent: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()

    def step(self, original: Any, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        """Add up what the schedule spent between two calls without an optimizer step."""
        optimizer = scheduler.optimizer
        before = [float(g["lr"]) for g in optimizer.param_groups]
        out = original(scheduler, *args, **kwargs)
        last = self._seen.get(scheduler)
        self._seen[scheduler] = self.court.steps
        if last is not None and last == self.court.steps:
            after = [float(g["lr"]) for g in optimizer.param_groups]
            base = max((abs(float(b)) for b in scheduler.base_lrs), default=0.0)
            spent = self._spent.get(scheduler, 0.0) + max((abs(a - b) for a, b in zip(after, before, strict=True)), default=0.0)
            self._spent[scheduler] = spent
            if base > 0 and spent > self.court.limits.schedule_share * base:
                site = self.court.here("lr_scheduler.step", "", Phase.OPTIMIZER)
                reason = f"{spent / base:.0%} of the schedule was used up by iterations that took no step"
                self.court.convict("scheduler-steps-on-skips", site, {"spent_share": spent / base}, "the learning rate", reason)
        return out
