"""Recomputation in the backward pass (activation checkpointing) that does not repeat what the forward pass did.

A recomputed op is a forward op that runs inside a node of the backward pass, with autograd recording, on a line of the user's program
that the forward pass had run. It must give the same dtype (else autocast was in another state), and a random op the same outcome (else
the generator was not restored): otherwise the gradient is that of a function nobody evaluated (Chen et al. 2016; torch.utils.checkpoint).
"""

from __future__ import annotations

from typing import Any

import torch

from precisionlab.records import Evidence, Phase
from precisionlab.shadow.call import OpCall, tensors_of
from precisionlab.shadow.sites import Place
from precisionlab.trackers.court import Court
from precisionlab.trackers.pairs import NAMES

Tensor = torch.Tensor

_SAMPLE = 64
"""Elements of a random outcome that are compared. Two fresh masks of dropout 0.1 agree on all of them once in 200 000."""


class Recompute:
    """Notes what forward lines computed, and compares what backward nodes compute on the same lines."""

    def __init__(self, court: Court) -> None:
        self.court = court
        self._dtypes: dict[tuple[str, Place | str], set[torch.dtype]] = {}
        self._outcomes: dict[tuple[str, Place | str], list[bytes]] = {}

    def op(self, call: OpCall) -> None:
        """One op with floating results."""
        if call.phase is Phase.FORWARD and torch._C._current_autograd_node() is None:
            for where in self._keys(call):
                key = (call.info.name, where)
                known = self._dtypes.get(key)
                if known is None:
                    known = self._dtypes[key] = set()
                known.add(call.outputs[0].lo.dtype)
        elif self._dtypes and self._recomputes():
            place, where = self._where(call)
            dtypes = self._dtypes.get((call.info.name, where))
            dtype = call.outputs[0].lo.dtype
            if dtypes is not None and dtype not in dtypes:
                forward, again = ", ".join(sorted(NAMES.get(d, str(d)) for d in dtypes)), NAMES.get(dtype, str(dtype))
                evidence: Evidence = {"forward_dtype": forward, "recomputed_dtype": again}
                self._differs(call, place, evidence, f"they belong to a forward pass in {again}, and the one that ran was in {forward}")

    def drew(self, call: OpCall) -> None:
        """One random op."""
        if call.phase is Phase.FORWARD and torch._C._current_autograd_node() is None:
            for where in self._keys(call):
                self._outcomes.setdefault((call.info.name, where), []).append(_sample(call))
        elif self._outcomes and self._recomputes():
            place, where = self._where(call)
            outcomes = self._outcomes.get((call.info.name, where))
            if outcomes is not None and _sample(call) not in outcomes:
                evidence: Evidence = {"random_numbers": "drawn again"}
                self._differs(call, place, evidence, "they belong to other random numbers than the loss")

    def _keys(self, call: OpCall) -> tuple[Place | str, ...]:
        return (call.place, call.module) if call.module else (call.place,)

    def _where(self, call: OpCall) -> tuple[Place, Place | str]:
        """The user's line, and what the op is looked up by: the module that runs, where one does (its lines may be torch's own)."""
        place = self.court.locator.recomputed_place()
        return place, self.court.locator.modules.path or place

    def forget(self) -> None:
        """After a step: random outcomes of its forward pass are not drawn again."""
        self._outcomes.clear()

    def _recomputes(self) -> bool:
        """Backward formulas run without recording, or on the line that called backward."""
        return torch.is_grad_enabled() and torch._C._current_autograd_node() is not None

    def _differs(self, call: OpCall, place: Place, evidence: Evidence, reason: str) -> None:
        site = self.court.log.site(call.module, call.info.name, Phase.BACKWARD, place)
        self.court.convict("recompute-differs", site, evidence, "the gradients", reason)


def _sample(call: OpCall) -> bytes:
    """Bytes of some elements of a random outcome: of the mask, where the op returns one."""
    results: list[Any] = tensors_of(call.result)
    outcome = next((t for t in results if t.dtype is torch.bool), results[0])
    with torch.no_grad(), torch._C._DisableTorchDispatch():
        flat = outcome.detach().reshape(-1)
        some = flat[:: max(1, flat.numel() // _SAMPLE)][:_SAMPLE].to("cpu", torch.float64)
        return bytes(some.numpy().tobytes()) + str(tuple(outcome.shape)).encode()
