"""Python numbers that become half tensors: ``torch.tensor(0.999, dtype=half)`` rounds before any op is dispatched."""

from __future__ import annotations

import math
from typing import Any

import torch

from precisionlab.records import EventKind, Evidence
from precisionlab.shadow.memory import NO_EVENTS, UNIT_ROUNDOFF, Twin
from precisionlab.trackers.court import Court

Tensor = torch.Tensor


class Constants:
    """Wrapped around ``torch.tensor``."""

    def __init__(self, court: Court) -> None:
        self.court = court

    def tensor(self, original: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        """``torch.tensor(0.999, dtype=half)``: the twin holds the Python number."""
        out = original(data, *args, **kwargs)
        if (
            isinstance(data, (int, float))
            and not isinstance(data, bool)
            and isinstance(out, Tensor)
            and out.dtype in UNIT_ROUNDOFF
            and out.numel() == 1
        ):
            with torch.no_grad(), torch._C._DisableTorchDispatch():
                exact, stored = float(data), float(out.detach())
                if exact != stored and math.isfinite(exact) and not out.is_complex():
                    twin = self.court.memory.bind(out, torch.full(out.shape, exact, dtype=torch.float64))
                    self._rounded_constant(out, twin, exact, stored)
        return out

    def _rounded_constant(self, out: Tensor, twin: Twin, exact: float, stored: float) -> None:
        u = twin.u
        twin.drift = abs(stored - exact) / abs(exact) if exact else 0.0
        if not math.isfinite(stored):
            detail, twin.nonfinite = "rounds to infinity", True
        elif stored == 0.0:
            detail = "rounds to 0"
        elif stored == 1.0 and abs(exact - 1.0) > 0:
            detail = "rounds to 1"
        else:
            return
        module, phase, place, _ = self.court.locator.locate()
        site = self.court.log.site(module, "torch.tensor", phase, place)
        evidence: Evidence = {"value": exact, "stored": stored, "dtype": str(out.dtype).removeprefix("torch."), "u": u}
        twin.events = frozenset((self.court.log.event(EventKind.CONSTANT, site, NO_EVENTS, evidence, detail),))
        twin.site = site
