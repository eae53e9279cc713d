"""What every tracker of the loop protocol shares: where it is, and how a fault is put on record."""

from __future__ import annotations

from typing import Any

import torch

from precisionlab.records import EventKind, Evidence, Phase, SinkKind, Site, Verdict
from precisionlab.shadow.memory import NO_EVENTS, ShadowMemory, Twin
from precisionlab.shadow.sites import Locator
from precisionlab.thresholds import Thresholds
from precisionlab.trackers.log import RunLog
from precisionlab.trackers.parameters import Parameters
from precisionlab.trackers.timeline import Timeline

Tensor = torch.Tensor


class Court:
    """The run so far, and the loss scale in force."""

    def __init__(self, log: RunLog, memory: ShadowMemory, locator: Locator, parameters: Parameters, thresholds: Thresholds) -> None:
        self.log = log
        self.memory = memory
        self.locator = locator
        self.parameters = parameters
        self.limits = thresholds
        self.scale = 1.0
        """S, the loss scale in force; 1 when there is none."""
        self.scaled = False
        """A loss scale was seen: powers of S are tracked."""
        self.with_scaler = False
        """It belongs to a ``GradScaler``."""
        self.steps = 0
        """Optimizer steps taken, of all optimizers."""
        self.backwards = 0
        self.timeline = Timeline()
        self._convicted: set[str] = set()

    def here(self, op: str, module: str, phase: Phase) -> Site:
        """The user's line that is running."""
        _, _, place, _ = self.locator.locate()
        return self.log.site(module, op, phase, place)

    def convict(self, fault: str, site: Site, evidence: Evidence, name: str, reason: str, verdict: Verdict = Verdict.BROKEN) -> None:
        """Record a protocol fault (a name among the ``faults`` of some check) at ``site`` with its consequence for ``name``."""
        self._convicted.add(fault)
        event = self.log.event(EventKind.PROTOCOL, site, NO_EVENTS, evidence, fault)
        self.log.sink(SinkKind.GRADIENT, name, site, frozenset((event,)), verdict, reason, evidence, needs_event=False)

    def convicted(self, fault: str) -> bool:
        """Whether this fault is on record."""
        return fault in self._convicted


def marks_of(twin: Twin) -> dict[str, Any]:
    """The notes on a twin, made when there are none."""
    if twin.marks is None:
        twin.marks = {}
    return twin.marks
