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
from precisionlab.shadow.measure import displacement, measure
from precisionlab.shadow.memory import UNIT_ROUNDOFF, ShadowMemory
from precisionlab.shadow.sites import NOWHERE
from precisionlab.thresholds import Thresholds
from precisionlab.trackers.addends import stalled_evidence
from precisionlab.trackers.log import RunLog
from precisionlab.trackers.pairs import NAMES
from precisionlab.trackers.parameters import Parameters

Tensor = torch.Tensor

_SAMPLE = 1 << 16
"""Elements of a state tensor whose displacements are summed, evenly spaced: what stands still does so nearly everywhere."""


class _Moved:
    """Sums of the displacements of one state tensor."""

    __slots__ = ("hi", "lo", "steps")

    def __init__(self, like: Tensor) -> None:
        self.lo, self.hi = torch.zeros_like(like), torch.zeros_like(like)
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
                if UNIT_ROUNDOFF[t.dtype] > 2.0**-24:
                    twin = self.memory.get(t)
                    old = _sampled(t)
                    kept[id(p), key] = (old, _sampled(self.memory.window(t, twin)) if twin is not None and twin.drift != 0.0 else old)
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
                if before is not None:
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
        lo, exact = _sampled(t), _sampled(hi)
        if before[0].shape != lo.shape:
            return
        of_parameter: dict[str, _Moved] = self._moved.setdefault(p, {})
        sums = of_parameter.get(key)
        if sums is None or sums.lo.shape != lo.shape:
            sums = of_parameter[key] = _Moved(lo)
        sums.lo += lo - before[0]
        sums.hi += exact - before[1]
        sums.steps += 1
        steps = sums.steps
        if steps < self.limits.accumulator_writes or steps & (steps - 1):
            return
        nothing = torch.zeros_like(lo)
        moved = displacement(sums.lo, nothing, sums.hi, nothing)
        size = float(lo.square().sum())
        if not moved.hi_sq > 0 or not math.isfinite(moved.hi_sq + size):
            return
        followed = moved.dot / moved.hi_sq
        share = math.sqrt(moved.hi_sq / size) if size > 0 else math.inf
        if followed >= self.limits.update_efficiency or share <= UNIT_ROUNDOFF[t.dtype] or self.parameters.holds_what_was_lost(p, t):
            return
        verdict = Verdict.BROKEN if share > self.limits.state_displacement else Verdict.RISKY
        module = name.rpartition(".")[0]
        place = self.log.site(module, site.op if site is not None else f"optim.{optimizer}", Phase.OPTIMIZER, NOWHERE)
        if site is not None:
            place = type(site)(module, site.op, Phase.OPTIMIZER, site.source, site.line_text, site.function)
        evidence: Evidence = {**stalled_evidence(moved, t), "parameter": name}
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


def _sampled(t: Tensor) -> Tensor:
    """Up to ``_SAMPLE`` elements in fp64, a copy."""
    flat = t.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // _SAMPLE)].to(torch.float64, copy=True)
