"""Copies of weights that must follow their source: autocast's cached casts, and half parameters with wide masters."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from precisionlab.records import Evidence, Phase
from precisionlab.shadow.memory import UNIT_ROUNDOFF
from precisionlab.shadow.mode import OpCall
from precisionlab.trackers.court import Court, marks_of

Tensor = torch.Tensor


class Copies:
    """Notices stale casts and masters that do not belong to their parameters."""

    def __init__(self, court: Court) -> None:
        self.court = court
        self.weights: dict[int, str] = {}
        """Storage of each half parameter that got a gradient -> its name."""
        self._casts = False

    def op(self, call: OpCall, name: str) -> None:
        """``name`` is the stem of the op."""
        if name == "_to_copy":
            self._note_cast(call)
        elif self._casts and call.phase is Phase.FORWARD:
            self._stale_casts(call)
        if name == "copy" and call.info.in_place and self.weights:
            self._copied(call)

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
    if cast.shape != fresh.shape:
        fresh = fresh.t() if fresh.dim() == 2 and fresh.t().shape == cast.shape else fresh.reshape(-1)
        cast = cast if cast.shape == fresh.shape else cast.reshape(-1)
    return fresh.shape != cast.shape or bool(torch.equal(fresh, cast))
