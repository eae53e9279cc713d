"""Which steps an audit observes: the setting ``steps`` of ``pl.audit`` and the options ``--steps`` and ``--every`` of ``run``.

Steps count from 0; a step ends where an optimizer has stepped. Steps that a GradScaler skips belong to the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from precisionlab.errors import SettingsError


@dataclass(frozen=True)
class Schedule:
    """Steps ``start`` to ``stop`` - 1 (None: to the end), of those every ``every``-th, of those the ones that ``test`` takes."""

    start: int = 0
    stop: int | None = None
    every: int = 1
    test: Callable[[int], Any] | None = None

    def observes(self, step: int) -> bool:
        """Whether step number ``step`` is observed. Raises what ``test`` raises."""
        if step < self.start or (self.stop is not None and step >= self.stop) or (step - self.start) % self.every:
            return False
        return self.test is None or bool(self.test(step))

    def words(self) -> str:
        """The schedule as a report says it: ``all``, ``the first 10``, ``100 to 109``, ``every 50th``."""
        if self.test is not None:
            return f"as {getattr(self.test, '__name__', 'a function')} says"
        if self.stop is None:
            reach = "all" if self.start == 0 else f"from {self.start} on"
        else:
            reach = f"the first {self.stop}" if self.start == 0 else f"{self.start} to {self.stop - 1}"
        if self.every == 1:
            return reach
        nth = f"every {self.every}{_ORDINAL.get(self.every % 10, 'th') if self.every % 100 not in (11, 12, 13) else 'th'}"
        return nth if reach == "all" else f"{nth} of {reach}"


_ORDINAL = {1: "st", 2: "nd", 3: "rd"}

ALL = Schedule()


def schedule_of(steps: Any) -> Schedule:
    """The setting ``steps``: None (all), a number of first steps, a ``range``, a function ``steps(step) -> bool``, or a ``Schedule``.

    Raises ``SettingsError`` for anything else, and for schedules without a step.
    """
    if steps is None:
        return ALL
    if isinstance(steps, Schedule):
        return steps
    if isinstance(steps, range):
        if steps.step < 1 or len(steps) == 0 or steps.start < 0:
            raise SettingsError(f"steps cannot be {steps!r}: it has no step to observe", hint="range(100, 110)")
        return Schedule(steps.start, steps.stop, steps.step)
    if isinstance(steps, int) and not isinstance(steps, bool):
        if steps < 1:
            raise SettingsError(f"steps cannot be {steps}", hint="steps=10 observes the first ten steps")
        return Schedule(stop=steps)
    if callable(steps):
        return Schedule(test=steps)
    raise SettingsError(f"steps cannot be {steps!r}", hint="a number of first steps, a range, or a function step -> bool")


def parse_steps(text: str | None, every: int | None) -> Schedule:
    """``--steps 100:110``, ``--steps 10`` (the first ten), ``--steps 100:`` and ``--every 50`` of the command line, which combine."""
    start, stop = 0, None
    if text is not None:
        first, colon, last = text.partition(":")
        try:
            if colon:
                start, stop = int(first or 0), int(last) if last else None
            else:
                stop = int(first)
        except ValueError:
            raise SettingsError(f"--steps cannot be {text!r}", hint="--steps 10 (the first ten) or --steps 100:110") from None
        if start < 0 or (stop is not None and stop <= start):
            raise SettingsError(f"--steps {text} holds no step", hint="--steps 10 (the first ten) or --steps 100:110")
    if every is not None and every < 1:
        raise SettingsError(f"--every cannot be {every}", hint="--every 50")
    return Schedule(start, stop, every or 1)
