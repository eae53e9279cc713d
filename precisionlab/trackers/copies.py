"""Copies of weights that must follow their source: autocast's cached casts, and half parameters with wide masters."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from precisionlab.records import EventKind, Evidence, Phase, SinkKind, Verdict
from precisionlab.shadow.call import OpCall, Pair
from precisionlab.shadow.measure import LostStats, lost_addend
from precisionlab.shadow.memory import NO_EVENTS, UNIT_ROUNDOFF
from precisionlab.trackers.addends import lost_evidence
from precisionlab.trackers.court import Court, marks_of

Tensor = torch.Tensor


class Copies:
    """Notices stale casts and masters that do not belong to their parameters."""

    def __init__(self, court: Court) -> None:
        self.court = court
        self.weights: dict[int, str] = {}
        """Storage of each half parameter that got a gradient -> its name."""
        self._casts = False
        self._fresh: dict[int, tuple[int, int]] = {}
        """Storage of a wide copy of a half weight -> the weight's storage and version when it was made."""
        self._rows: dict[int, int] = {}
        """Storage of a half weight -> write-backs in a row that lost their step."""

    def op(self, call: OpCall, name: str) -> None:
        """``name`` is the stem of the op."""
        if name == "_to_copy":
            self._note_cast(call)
            self._widened(call.args[0], call.outputs[0].lo)
        elif self._casts and call.phase is Phase.FORWARD:
            self._stale_casts(call)
        if name == "copy" and call.info.in_place and self.weights:
            self._widened(call.args[1], call.args[0])
            self._written_back(call)
            self._copied(call)

    def _widened(self, source: Any, target: Tensor) -> None:
        if not self.weights or not isinstance(source, Tensor) or source.dtype is target.dtype or source.layout is not torch.strided:
            return
        key = source.untyped_storage()._cdata
        if key in self.weights and UNIT_ROUNDOFF.get(target.dtype, 1.0) < UNIT_ROUNDOFF[source.dtype]:
            self._fresh[target.untyped_storage()._cdata] = (key, source._version)

    def _written_back(self, call: OpCall) -> None:
        """A wide copy made since the last write is stepped and rounded back: what rounding loses is lost for good, as in half."""
        target, source = call.args[0], call.args[1]
        key = target.untyped_storage()._cdata
        before = call.before.get(id(target))
        if key not in self.weights or before is None or not isinstance(source, Tensor) or source.shape != target.shape:
            return
        origin = self._fresh.pop(source.untyped_storage()._cdata, None)
        if origin is None or origin[0] != key or target._version - origin[1] > 1:  # autograd counts this write before or after us
            self._rows.pop(key, None)
            return
        pair = next(p for p in call.outputs if p.lo is target)
        lost = lost_addend(before, source.double() - before.double(), target, 1.0)
        if not lost.addend_sq > 0 or lost.lost_sq <= self.court.limits.lost_share**2 * lost.addend_sq:
            self._rows.pop(key, None)
            return
        rows = self._rows[key] = self._rows.get(key, 0) + 1
        self._lost_step(call, pair, lost, rows, self.weights[key])

    def _lost_step(self, call: OpCall, pair: Pair, lost: LostStats, rows: int, name: str) -> None:
        log, n = self.court.log, max(pair.lo.numel(), 1)
        site = log.site(name.rpartition(".")[0], call.info.name, Phase.OPTIMIZER, call.place)
        evidence: Evidence = {**lost_evidence(lost, pair.lo), "parameter": name}
        event = log.event(EventKind.LOST, site, NO_EVENTS, evidence, "update")
        if rows >= self.court.limits.update_steps:
            reason = f"{lost.swamped} of {n} weights of {name} that should move do not: the wide copy is made anew in every step"
            log.sink(SinkKind.UPDATE, name, site, frozenset((event,)), Verdict.BROKEN, reason, {"steps": rows, "parameter": name})

    def _copied(self, call: OpCall) -> None:
        """A half parameter is overwritten by a stepped wide one: the change must be the step, up to rounding."""
        target, source = call.args[0], call.args[1]
        name = self.weights.get(target.untyped_storage()._cdata)
        before = call.before.get(id(target))
        if name is None or before is None or not isinstance(source, Tensor) or source.shape != target.shape:
            return
        key = source.untyped_storage()._cdata
        move = self.court.parameters.moves.get(key)
        u = UNIT_ROUNDOFF[target.dtype]
        if move is None or u <= UNIT_ROUNDOFF.get(source.dtype, 1.0):
            return
        self.court.parameters.moves[key] = 0.0
        old = before.double()
        change = float((source.double() - old).norm())
        allowed = move + u * float(old.norm())
        if allowed > 0 and change > self.court.limits.master_mismatch * allowed:
            site = self.court.log.site(call.module, call.info.name, call.phase, call.place)
            evidence: Evidence = {"mismatch": change / allowed, "parameter": name}
            reason = f"{name} jumps {change / allowed:.3g} times as far as the step and rounding explain"
            self.court.convict("masters-do-not-match", site, evidence, name, reason)

    def _note_cast(self, call: OpCall) -> None:
        # whether autocast made it cannot be asked here (its key is off inside its own cast): its cache and dtype tell
        source = call.args[0]
        if (
            isinstance(source, Tensor)
            and source.is_leaf
            and source.requires_grad
            and torch.is_autocast_cache_enabled()
            and call.outputs
            and call.outputs[0].lo.dtype is torch.get_autocast_dtype(source.device.type)
        ):
            twin = call.outputs[0].twin
            marks_of(twin)["cast_of"] = (weakref.ref(source), source._version)
            self._casts = True

    def _stale_casts(self, call: OpCall) -> None:
        for p in call.inputs:
            marks: dict[str, Any] | None = p.twin.marks
            if marks is None or "cast_of" not in marks:
                continue
            source = marks["cast_of"][0]()
            if source is None or source._version == marks["cast_of"][1] or _same_values(source.detach(), p.lo):
                continue
            name = self.court.parameters.name_of(source, "a weight")
            site = self.court.log.site(call.module, call.info.name, call.phase, call.place)
            del marks["cast_of"]
            reason = f"the forward pass still uses {name} as it was before the update"
            self.court.convict("stale-autocast-cast", site, {"parameter": name}, name, reason)


def _same_values(weight: Tensor, cast: Tensor) -> bool:
    """Whether ``cast`` (a view of a cast of ``weight``, perhaps transposed) holds the present values."""
    fresh = weight.to(cast.dtype)
    if fresh.dim() == 2 and fresh.t().shape == cast.shape and torch.equal(fresh.t(), cast):
        return True  # of a square matrix the shape does not tell
    if cast.shape != fresh.shape:
        fresh, cast = fresh.reshape(-1), cast.reshape(-1)
    return fresh.shape != cast.shape or bool(torch.equal(fresh, cast))
