"""Gradients and weight updates, per parameter and step, against their twins.

Gradients and updates are judged by the signed projection <lo, hi> / <hi, hi> summed over the audit: rounding noise averages to 1, what
was lost does not come back. Normwise drift would flag structural zeros (a bias in front of BatchNorm) on every healthy network.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from precisionlab.records import EventKind, Evidence, ParameterRecord, Phase, SinkKind, Verdict
from precisionlab.shadow.measure import count_nonfinite, displacement, measure
from precisionlab.shadow.memory import NO_EVENTS, UNIT_ROUNDOFF, ShadowMemory
from precisionlab.thresholds import Thresholds
from precisionlab.trackers.addends import stalled_evidence
from precisionlab.trackers.log import RunLog
from precisionlab.trackers.pairs import NAMES, relative

Tensor = torch.Tensor


_RUNAWAY_CAUSES = frozenset((EventKind.OVERFLOW, EventKind.DOMAIN, EventKind.FLUSH, EventKind.CAST, EventKind.CONSTANT, EventKind.RHO))

_BY_PLACE = "param_groups"
"""Beginning of the name of a parameter that only an optimizer told of."""


class _History:
    """Running sums of one parameter."""

    __slots__ = (
        "dot",
        "events",
        "gradient_intact",
        "hi_sq",
        "judged",
        "last_events",
        "last_share",
        "lost_event",
        "lost_run",
        "nonfinite",
        "record",
        "run",
        "run_dot",
        "run_hi_sq",
        "steps",
        "update_dot",
        "update_hi_sq",
    )  # fmt: skip

    def __init__(self, record: ParameterRecord) -> None:
        self.record = record
        self.dot = self.hi_sq = self.update_dot = self.update_hi_sq = self.run_dot = self.run_hi_sq = 0.0
        self.run = self.lost_run = 0
        self.events = NO_EVENTS
        self.last_events = NO_EVENTS
        self.nonfinite = 0
        self.steps = 0
        self.last_share = 0.0
        self.lost_event = False
        self.judged = False
        self.gradient_intact = True
        """Whether the gradient of the running step agrees with its twin: a lost gradient is no swamped update."""


class Parameters:
    """Sees parameters at optimizer steps, and whatever gradients are left at the end."""

    def __init__(self, log: RunLog, memory: ShadowMemory, thresholds: Thresholds) -> None:
        self.log = log
        self.memory = memory
        self.limits = thresholds
        self.histories: Any = WeakIdKeyDictionary()
        self._names: dict[int, tuple[weakref.ref[Tensor], str]] = {}
        self._kept: list[_History] = []
        """In the order of first sight. Histories outlive their parameters: a model may be gone when the audit ends."""
        self.steps_seen = 0
        self.moves: dict[int, float] = {}
        """Storage of a stepped parameter -> length of the steps since its value was copied elsewhere."""

    # -- names --------------------------------------------------------------------------------------------------------------------

    def learn_names(self, module: torch.nn.Module) -> None:
        """Remember the parameter names of an outermost module."""
        for name, p in module.named_parameters():
            known = self._names.get(id(p))
            if known is None or known[0]() is not p or known[1].startswith(_BY_PLACE):
                self._names[id(p)] = (weakref.ref(p), name)

    def name_of(self, p: Tensor, fallback: str = "") -> str:
        """The name of a parameter, or ``fallback``."""
        known = self._names.get(id(p))
        return known[1] if known is not None and known[0]() is p else fallback

    def names(self) -> list[tuple[Any, str]]:
        """Weak references of all parameters known by name, with the names."""
        return list(self._names.values())

    def of(self, optimizer: Any) -> list[tuple[str, Tensor]]:
        """The parameters of an optimizer with their names; those that no module has are called by their place in it."""
        return [
            (self.name_of(p, f"{_BY_PLACE}[{g}][{i}]"), p)
            for g, group in enumerate(optimizer.param_groups)
            for i, p in enumerate(group["params"])
        ]

    def learn_from(self, optimizer: Any) -> None:
        """Remember the parameters of an optimizer."""
        self.learn(self.of(optimizer))

    def learn(self, params: list[tuple[str, Tensor]]) -> None:
        """Remember parameters that only an optimizer told of."""
        for name, p in params:
            known = self._names.get(id(p))
            if known is None or known[0]() is not p:
                self._names[id(p)] = (weakref.ref(p), name)

    # -- gradients ----------------------------------------------------------------------------------------------------------------

    def gradients(self, params: list[tuple[str, Tensor]], *, used: bool) -> None:
        """Compare ``.grad`` of each parameter with its twin; one observation per call. ``used``: an optimizer is about to use them."""
        seen: list[tuple[str, Tensor, Any, Any, float]] = []
        total = 0.0
        for name, p in params:
            grad = p.grad
            if grad is None or grad.layout != torch.strided or grad.dtype not in UNIT_ROUNDOFF:
                continue
            twin = self.memory.get(grad)
            if twin is None or twin.decision:
                continue
            stats = measure(grad, self.memory.window(grad, twin))
            seen.append((name, p, stats, twin, 0.0))
            total += stats.hi_sq
        for name, p, stats, twin, _ in seen:
            history = self._history(name, p)
            record = history.record
            history.steps += 1
            record.steps += 1
            record.gradient_norm = math.sqrt(stats.hi_sq)
            record.gradient_drift_u = relative(stats.diff_sq, stats.hi_sq) / (twin.u or 1.0)
            norms = math.sqrt(stats.lo_sq * stats.hi_sq)
            record.gradient_cosine = stats.dot / norms if norms > 0 else None
            record.flushed_share = stats.flushed / stats.elements if stats.elements else 0.0
            record.flushed_energy_share = stats.flushed_sq / stats.hi_sq if stats.hi_sq > 0 else 0.0
            record.subnormal_share = stats.subnormal / stats.elements if stats.elements else 0.0
            history.gradient_intact = not stats.introduced and stats.dot >= self.limits.gradient_efficiency * stats.hi_sq
            if stats.introduced:
                history.nonfinite += stats.introduced
                history.events |= twin.events
                self.log.sink(
                    SinkKind.GRADIENT,
                    name,
                    twin.site,
                    twin.events,
                    Verdict.BROKEN,
                    f"{stats.introduced} of {stats.elements} values of the gradient of {name} are Inf or NaN",
                    {"nonfinite": stats.introduced, "elements": stats.elements, "parameter": name, "used": used},
                )
                continue
            share = stats.hi_sq / total if total > 0 else 0.0
            history.last_share = share
            if share < self.limits.gradient_share:
                continue
            history.dot += stats.dot
            history.hi_sq += stats.hi_sq
            if abs(stats.dot / stats.hi_sq - 1.0) > 1.0 - self.limits.gradient_efficiency:
                history.events |= twin.events
                history.last_events = twin.events
            record.gradient_efficiency = history.dot / history.hi_sq if history.hi_sq > 0 else None

    def judge_gradients(self) -> None:
        """At the end: parameters whose gradients lost too much over the whole audit."""
        for history in self._kept:
            record = history.record
            efficiency = record.gradient_efficiency
            if efficiency is None or history.hi_sq <= 0 or efficiency >= self.limits.gradient_efficiency:
                continue
            evidence: Evidence = {
                "efficiency": efficiency,
                "flushed_share": record.flushed_share or 0.0,
                "flushed_energy_share": record.flushed_energy_share or 0.0,
                "steps": history.steps,
                "parameter": record.name,
            }
            self.log.sink(
                SinkKind.GRADIENT,
                record.name,
                None,
                history.events,
                Verdict.BROKEN,
                f"only {max(efficiency, 0.0):.0%} of the gradient of {record.name} survives",
                evidence,
            )

    # -- updates ------------------------------------------------------------------------------------------------------------------

    def before_step(self, params: list[tuple[str, Tensor]]) -> dict[int, Tensor]:
        """Copies of the real parameters before an optimizer step, by ``id``."""
        return {
            id(p): p.detach().clone() for _, p in params if p.grad is not None and p.layout == torch.strided and p.dtype in UNIT_ROUNDOFF
        }

    def after_step(
        self,
        params: list[tuple[str, Tensor]],
        before: dict[int, Tensor],
        old_hi: dict[int, Tensor],
        optimizer: str,
        state: Callable[[Tensor], list[Tensor]] = lambda p: [],
    ) -> None:
        """Compare the step that the parameters took with the step of their twins from the same start.

        ``state`` gives the tensors of optimizer state of a parameter: one that holds what a step lost will bring it in later (Kahan).
        """
        self.steps_seen += 1
        lossy: list[tuple[str, Tensor, Any, _History, Any]] = []
        taken = wanted = 0.0
        for name, p in params:
            old = before.get(id(p))
            twin = self.memory.get(p) if old is not None else None
            if old is None or twin is None:
                continue
            hi = self.memory.window(p, twin)
            start = old_hi.get(id(p))
            if count_nonfinite(p.detach()) and self._broke(name, p, hi, twin):
                continue
            moved = displacement(p.detach(), old, hi, start if start is not None else old.double())
            key = p.untyped_storage()._cdata
            self.moves[key] = self.moves.get(key, 0.0) + math.sqrt(moved.lo_sq)
            if not moved.hi_sq > 0 or not math.isfinite(moved.hi_sq):
                continue
            history = self._history(name, p)
            if moved.dot < self.limits.update_efficiency * moved.hi_sq and any(self.holds_what_was_lost(p, t) for t in state(p)):
                history.run = history.lost_run = 0
                history.run_dot = history.run_hi_sq = 0.0
                continue
            taken, wanted = taken + moved.dot, wanted + moved.hi_sq
            history.update_dot += moved.dot
            history.update_hi_sq += moved.hi_sq
            record = history.record
            record.update_efficiency = history.update_dot / history.update_hi_sq
            record.swamped_share = moved.stalled / moved.moved if moved.moved else 0.0
            step_efficiency = moved.dot / moved.hi_sq
            if history.steps == 0 or history.last_share >= self.limits.gradient_share:  # no gradient but noise: no step but noise
                self._runs_away(name, twin, moved)
                self._loses_range(name, twin, moved, history)
            if step_efficiency < self.limits.update_efficiency and history.gradient_intact and UNIT_ROUNDOFF[p.dtype] >= 2.0**-11:
                history.run += 1
                history.run_dot += moved.dot
                history.run_hi_sq += moved.hi_sq
                lossy.append((name, p, twin, history, moved))
            else:
                history.run, history.run_dot, history.run_hi_sq = 0, 0.0, 0.0
        whole = taken < self.limits.update_efficiency * wanted
        for name, p, twin, history, moved in lossy:
            self._swamped(name, p, twin, history, moved, optimizer, whole)

    def _broke(self, name: str, p: Tensor, hi: Tensor, twin: Any) -> bool:
        """The step made weights Inf or NaN that are finite in fp64."""
        stats = measure(p.detach(), hi)
        if not stats.introduced:
            return False
        reason = f"{stats.introduced} of {stats.elements} values of {name} are Inf or NaN after the step"
        self.log.sink(
            SinkKind.UPDATE,
            name,
            twin.site,
            twin.events,
            Verdict.BROKEN,
            reason,
            {"nonfinite": stats.introduced, "elements": stats.elements, "parameter": name},
        )
        return True

    def _runs_away(self, name: str, twin: Any, moved: Any) -> None:
        """A step several times too long, or against the twin's, where something upstream lost its numbers."""
        size = math.sqrt(moved.lo_sq / moved.hi_sq)
        direction = moved.dot / moved.hi_sq
        if size <= self.limits.excess_step and direction >= -0.2:
            return
        causes = frozenset(e for e in twin.events if self.log.events[e].kind in _RUNAWAY_CAUSES)
        if causes:
            text = (
                f"the step of {name} is {size:.3g} times too long"
                if size > self.limits.excess_step
                else f"the step of {name} points the wrong way"
            )
            self.log.sink(
                SinkKind.UPDATE, name, twin.site, causes, Verdict.BROKEN, text, {"efficiency": direction, "excess": size, "parameter": name}
            )

    def holds_what_was_lost(self, p: Tensor, state: Tensor) -> bool:
        """Whether a tensor of state is, up to its sign, what rounding keeps out of the weights (Kahan 1965).

        It is what the last step lost; or it is no larger than the rounding errors of the weights, and its twin, which rounds nothing,
        holds all but nothing.
        """
        twin, own = self.memory.get(p), self.memory.get(state)
        if twin is None or state.shape != p.shape or UNIT_ROUNDOFF[p.dtype] <= 2.0**-24:
            return False
        lost = self.memory.window(p, twin) - p.detach().double()
        held = state.detach().double()
        size, kept = float(lost.square().sum()), float(held.square().sum())
        if (
            size > 0
            and min(float((lost - held).square().sum()), float((lost + held).square().sum())) < self.limits.compensation_residual * size
        ):
            return True
        rounding = (2 * UNIT_ROUNDOFF[p.dtype]) ** 2 * float(p.detach().double().square().sum())
        return (
            own is not None
            and kept <= rounding
            and float(self.memory.window(state, own).square().sum()) < self.limits.compensation_residual * kept
        )

    def _loses_range(self, name: str, twin: Any, moved: Any, history: _History) -> None:
        """Steps in a row that are too short because something upstream became zero or infinite."""
        causes = frozenset(e for e in twin.events if self.log.events[e].kind in _RUNAWAY_CAUSES)
        if not causes or moved.dot >= self.limits.update_efficiency * moved.hi_sq:
            history.lost_run = 0
            return
        history.lost_run += 1
        efficiency = history.record.update_efficiency or 0.0
        if history.lost_run >= self.limits.update_steps and efficiency < self.limits.update_efficiency:
            text = f"only {max(efficiency, 0.0):.0%} of the steps of {name} are taken"
            evidence: Evidence = {"efficiency": efficiency, "steps": history.lost_run, "parameter": name}
            self.log.sink(SinkKind.UPDATE, name, twin.site, causes, Verdict.BROKEN, text, evidence)

    def _swamped(self, name: str, p: Tensor, twin: Any, history: _History, moved: Any, optimizer: str, whole: bool) -> None:
        """``whole``: the step of the optimizer as a whole loses too much, not only that of this parameter."""
        # the step from the same start is smaller in the stored weights: rounding of w + dw is the only thing between them
        if moved.stalled < 0.25 * max(moved.moved, 1):
            return
        module = name.rpartition(".")[0]
        losses = [e.site for e in map(self.log.events.__getitem__, sorted(twin.events)) if e.kind is EventKind.LOST]
        site = twin.site or self.log.site(module, f"optim.{optimizer}", Phase.OPTIMIZER, _nowhere())
        if losses and site not in losses:  # the last op that wrote is not the one that lost
            site = losses[0]
        site = type(site)(module, site.op, Phase.OPTIMIZER, site.source, site.line_text, site.function)
        evidence: Evidence = {**stalled_evidence(moved, p), "parameter": name}
        event = self.log.event(EventKind.LOST, site, NO_EVENTS, evidence, "update")
        # over the audit, large early steps hide what a decayed learning rate loses; but a small weight may pause while the others move
        lost = whole or (history.record.update_efficiency or 0.0) < self.limits.update_efficiency
        if history.run >= self.limits.update_steps and lost:
            self.log.sink(
                SinkKind.UPDATE,
                name,
                site,
                frozenset((event,)),
                Verdict.BROKEN,
                f"{moved.stalled} of {moved.moved} weights of {name} that should move do not",
                {
                    "efficiency": history.run_dot / history.run_hi_sq,
                    "swamped_share": moved.stalled / max(moved.moved, 1),
                    "steps": history.run,
                    "parameter": name,
                },
            )

    # -- records ------------------------------------------------------------------------------------------------------------------

    def records(self) -> list[ParameterRecord]:
        """One record per parameter seen, in the order of first sight."""
        return [history.record for history in self._kept]

    def _history(self, name: str, p: Tensor) -> _History:
        history: _History | None = self.histories.get(p)
        if history is None:
            record = ParameterRecord(name, tuple(p.shape), NAMES.get(p.dtype, str(p.dtype)), bool(p.requires_grad))
            history = self.histories[p] = _History(record)
            self._kept.append(history)
        return history


def _nowhere() -> Any:
    from precisionlab.shadow.sites import NOWHERE

    return NOWHERE
