"""Learning-rate schedules that move on although no step was taken."""

from __future__ import annotations

import weakref
from typing import Any

from precisionlab.records import Phase
from precisionlab.trackers.court import Court


class Schedule:
    """Wrapped around ``LRScheduler.step``; also told of every step that a scaler took or skipped."""

    def __init__(self, court: Court) -> None:
        self.court = court
        self._seen: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._spent: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()
        self._scheduled: weakref.WeakSet[Any] = weakref.WeakSet()
        self._last: weakref.WeakKeyDictionary[Any, tuple[float, bool]] = weakref.WeakKeyDictionary()
        self._by_hand: weakref.WeakKeyDictionary[Any, tuple[int, float, float]] = weakref.WeakKeyDictionary()

    def step(self, original: Any, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        """Add up what the schedule spent between two calls without an optimizer step."""
        optimizer = scheduler.optimizer
        self._scheduled.add(optimizer)
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

    def iteration(self, optimizer: Any, taken: bool) -> None:
        """A scaler took or skipped a step: a rate that moved although the step before was skipped follows the iterations."""
        if optimizer in self._scheduled:
            return
        rate = max((abs(float(g["lr"])) for g in optimizer.param_groups), default=0.0)
        last, self._last[optimizer] = self._last.get(optimizer), (rate, taken)
        changes, spent, base = self._by_hand.get(optimizer, (0, 0.0, 0.0))
        base = max(base, rate)
        if last is not None and not last[1] and last[0] != rate:
            changes, spent = changes + 1, spent + abs(rate - last[0])
        self._by_hand[optimizer] = (changes, spent, base)
        if changes >= self.court.limits.schedule_changes and spent > self.court.limits.schedule_share * base:
            site = self.court.here("GradScaler.step", "", Phase.OPTIMIZER)
            reason = f"the learning rate moved by {spent / base:.0%} of its largest value on {changes} iterations that took no step"
            self.court.convict("scheduler-steps-on-skips", site, {"spent_share": spent / base}, "the learning rate", reason)
