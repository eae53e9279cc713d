"""What an anchor is: a published or derived number, measured again, beside the value expected and the spread allowed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """One measured number. It holds when ``low <= measured <= high``."""

    claim: str
    measured: float
    expected: str
    low: float
    high: float
    by: str
    """What produced the number: ``audit`` (read from a report, its events or its fp64 twins), ``emulation`` (``precisionlab.formats``)
    or ``torch`` (a kernel's own result)."""

    @property
    def holds(self) -> bool:
        """Whether the measured value lies in the allowed range; NaN does not."""
        return self.low <= self.measured <= self.high


AnchorFunction = Callable[[], Iterator[Check]]


@dataclass(frozen=True)
class Anchor:
    """Checks that belong together. ``run`` takes seconds; its docstring is the description, with sources."""

    name: str
    title: str
    run: AnchorFunction


ANCHORS: dict[str, Anchor] = {}
"""Every anchor by name, in the order of the modules."""


def anchor(name: str, title: str) -> Callable[[AnchorFunction], AnchorFunction]:
    """Decorator: registers a generator of checks under ``name``. Raises ValueError for a name already taken."""

    def register(run: AnchorFunction) -> AnchorFunction:
        if name in ANCHORS:
            raise ValueError(f"there is an anchor {name} already")
        ANCHORS[name] = Anchor(name, title, run)
        return run

    return register


def exactly(claim: str, measured: float, expected: float, by: str) -> Check:
    """A number that nothing random enters."""
    return Check(claim, measured, f"{expected:g}", expected, expected, by)


def near(claim: str, measured: float, expected: float, by: str, *, rel: float = 0.0, off: float = 0.0) -> Check:
    """A number within ``rel * |expected| + off`` of the expected one."""
    spread = rel * abs(expected) + off
    return Check(claim, measured, f"{expected:.4g}", expected - spread, expected + spread, by)


def between(claim: str, measured: float, low: float, high: float, by: str) -> Check:
    """A number in a range, ends included."""
    return Check(claim, measured, f"{low:.4g}..{high:.4g}", low, high, by)
