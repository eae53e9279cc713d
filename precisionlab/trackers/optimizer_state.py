"""Moments of an optimizer over the audited steps: frozen ones, zeros that should not be, an eps that their format cannot hold.

A second moment kept in half with 1 - beta2 <= u / 2 never decays: v * beta2 rounds back to v (bf16: beta2 = 0.999). While gradients keep
their size nothing shows; when they shrink, v stays and the steps with it. So the exact displacement of each half state tensor is summed
over the steps beside the real one, from the same start in every step.
"""

from __future__ import annotations

import math
import weakref
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from precisionlab.records import EventKind, Evidence, Phase, SinkKind, Verdict
from precisionlab.shadow.measure import Displacement, measure
from precisionlab.shadow.memory import UNIT_ROUNDOFF, ShadowMemory
from precisionlab.shadow.sites import NOWHERE
from precisionlab.thresholds import Thresholds
from precisionlab.trackers.addends import stalled_evidence
from precisionlab.trackers.log import RunLog
from precisionlab.trackers.pairs import NAMES
from precisionlab.trackers.parameters import Parameters

Tensor = torch.Tensor

_LARGEST = 1 << 22
"""Elements above which the displacement of a state tensor is not summed."""


class _Moved:
    """Sums of the displacements of one state tensor."""

    __slots__ = ("hi", "lo", "steps")

    def __init__(self, like: Tensor) -> None:
        self.lo = torch.zeros(like.shape, dtype=torch.float64, device=like.device)
        self.hi = torch.zeros_like(self.lo)
        self.steps = 0


class OptimizerState:
    """Looks at state tensors before and after each observed step."""

    def __init__(self, log: RunLog, memory: ShadowMemory, parameters: Parameters, thresholds: Thresholds) -> None:
        self.log = log
        self.memory = memory
        self.parameters = parameters
        self.limits = thresholds
        self._moved: Any = WeakIdKeyDictionary()
        """Parameter -> key of its state -> displacements."""
        self._before: weakref.WeakKeyDictionary[Any, dict[tuple[int, str], tuple[Tensor, Tensor]]] = weakref.WeakKeyDictionary()
        """Per optimizer and running step: (id of the parameter, key of its state) -> real value and twin before. Not by the id of the
        tensor: an optimizer may put a new one in its place."""

    def before_step(self, optimizer: Any, params: list[tuple[str, Tensor]]) -> None:
        """Copies of the half state tensors and their twins."""
        kept: dict[tuple[int, str], tuple[Tensor, Tensor]] = {}
        for _, p in params:
            for key, t in self._tensors(optimizer, p):
                if UNIT_ROUNDOFF[t.dtype] > 2.0**-24 and t.numel() <= _LARGEST:
                    twin = self.memory.get(t)
                    old = t.detach().double()
                    kept[id(p), key] = (old, self.memory.window(t, twin).clone() if twin is not None and twin.drift != 0.0 else old)
        self._before[optimizer] = kept

    def after_step(self, optimizer: Any, params: list[tuple[str, Tensor]]) -> None:
        """What the step did to the state of each parameter."""
        kept = self._before.pop(optimizer, {})
        eps = {id(p): float(g["eps"]) for g in optimizer.param_groups if isinstance(g.get("eps"), (int, float)) for p in g["params"]}
        for name, p in params:
            history = self.parameters.histories.get(p)
            for key, t in self._tensors(optimizer, p):
                twin = self.memory.get(t)
                if twin is None:
                    continue
                hi = self.memory.window(t, twin)
                if history is not None:
                    self._note(history.record.state, key, t, hi, eps.get(id(p)))
                before = kept.get((id(p), key))
                if before is not None and before[0].shape == t.shape and not self.parameters.holds_what_was_lost(p, t):
                    self._add(name, key, p, t, hi, before, twin.site, type(optimizer).__name__)

    def of(self, optimizer: Any, p: Tensor) -> list[Tensor]:
        """The state tensors of one parameter."""
        return [t for _, t in self._tensors(optimizer, p)]

    def _tensors(self, optimizer: Any, p: Tensor) -> list[tuple[str, Tensor]]:
        state = optimizer.state.get(p)
        if not isinstance(state, dict):
            return []
        return [
            (str(key), t)
            for key, t in state.items()
            if isinstance(t, Tensor) and t.dtype in UNIT_ROUNDOFF and not t.is_complex() and t.layout is torch.strided and t.numel() > 1
        ]

    def _note(self, state: Evidence, key: str, t: Tensor, hi: Tensor, eps: float | None) -> None:
        """Dtype, eps as that holds it, and, of a half tensor, what was flushed: fp32 state loses nothing that its ops have not told."""
        if f"{key}_dtype" not in state:
            state[f"{key}_dtype"] = NAMES.get(t.dtype, str(t.dtype))
            if eps is not None:
                state["eps"] = eps
                state["eps_stored"] = float(torch.tensor(eps, dtype=torch.float64).to(t.dtype))
        if UNIT_ROUNDOFF[t.dtype] > 2.0**-24:
            stats = measure(t.detach(), hi)
            state[f"{key}_flushed_share"] = stats.flushed / stats.elements if stats.elements else 0.0

    def _add(self, name: str, key: str, p: Tensor, t: Tensor, hi: Tensor, before: tuple[Tensor, Tensor], site: Any, optimizer: str) -> None:
        of_parameter: dict[str, _Moved] = self._moved.setdefault(p, {})
        moved = of_parameter.get(key)
        if moved is None or moved.lo.shape != t.shape:
            moved = of_parameter[key] = _Moved(t)
        moved.lo += t.detach().double() - before[0]
        moved.hi += hi - before[1]
        moved.steps += 1
        steps = moved.steps
        if steps < self.limits.accumulator_writes or steps & (steps - 1):
            return
        exact = float(moved.hi.square().sum())
        size = float(t.detach().double().square().sum())
        if not exact > 0 or not math.isfinite(exact + size):
            return
        followed = float((moved.lo * moved.hi).sum()) / exact
        share = math.sqrt(exact / size) if size > 0 else math.inf
        if followed >= self.limits.update_efficiency or share <= UNIT_ROUNDOFF[t.dtype]:
            return
        verdict = Verdict.BROKEN if share > self.limits.state_displacement else Verdict.RISKY
        module = name.rpartition(".")[0]
        place = self.log.site(module, site.op if site is not None else f"optim.{optimizer}", Phase.OPTIMIZER, NOWHERE)
        if site is not None:
            place = type(site)(module, site.op, Phase.OPTIMIZER, site.source, site.line_text, site.function)
        sums = Displacement(
            float((moved.lo * moved.hi).sum()),
            float(moved.lo.square().sum()),
            exact,
            int(((moved.lo == 0) & (moved.hi != 0)).sum()),
            int((moved.hi != 0).sum()),
            t.numel(),
        )
        evidence: Evidence = {**stalled_evidence(sums, t), "parameter": name}
        event = self.log.event(EventKind.LOST, place, frozenset(), evidence, "state")
        self.log.sink(
            SinkKind.STATE,
            f"{key} of {name}",
            place,
            frozenset((event,)),
            verdict,
            f"over {steps} steps {key} of {name} should have moved by {share:.2g} of its size, and did {max(followed, 0.0):.0%} of that",
            {"followed": followed, "displacement": share, "steps": steps, "parameter": name},
        )
