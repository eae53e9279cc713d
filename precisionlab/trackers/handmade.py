"""Steps that a program takes by itself: ``with torch.no_grad(): w -= lr * g``.

In-place sums on a leaf that received a gradient are judged as the steps of an optimizer are: real and exact displacement from the same
start, after which the twin restarts from the real weights.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from precisionlab.records import Phase
from precisionlab.shadow.call import OpCall, Pair
from precisionlab.shadow.memory import UNIT_ROUNDOFF
from precisionlab.trackers.court import Court

Tensor = torch.Tensor

_UPDATES = frozenset(("add", "sub", "addcmul", "addcdiv", "lerp", "mul"))


class Handmade:
    """Watches in-place sums on parameters outside of ``Optimizer.step``."""

    def __init__(self, court: Court) -> None:
        self.court = court
        self.open = False
        """A step was begun: the next op of a forward pass ends it."""
        self.on_step: Callable[[], None] = lambda: None
        """Called when a step is over."""
        self._leaves: dict[int, tuple[weakref.ref[Tensor], str]] = {}

    def learn(self, leaves: Iterable[tuple[Tensor, str]]) -> None:
        """Leaves that received gradients."""
        for leaf, name in leaves:
            if leaf.layout is torch.strided and leaf.dtype in UNIT_ROUNDOFF:
                with contextlib.suppress(NotImplementedError):  # a functorch wrapper has no storage of its own
                    self._leaves[leaf.untyped_storage()._cdata] = (weakref.ref(leaf), name)

    def op(self, call: OpCall) -> None:
        """One in-place op outside of backward and of ``Optimizer.step``."""
        if call.info.stem not in _UPDATES or not self._leaves or call.info.listed:
            return
        for pair in call.outputs:
            known = self._leaves.get(pair.lo.untyped_storage()._cdata)
            leaf = known[0]() if known is not None else None
            if known is not None and leaf is not None and leaf.untyped_storage()._cdata == pair.lo.untyped_storage()._cdata:
                self._moved(call, pair, leaf, known[1])

    def forward(self, call: OpCall) -> None:
        """Any op while a step is open: one that autograd records belongs to the next forward pass."""
        records = torch.is_grad_enabled() and not call.info.in_place and any(p.lo.requires_grad for p in call.inputs)
        if records and call.phase is Phase.FORWARD:
            self.open = False
            self.on_step()

    def _moved(self, call: OpCall, pair: Pair, leaf: Tensor, name: str) -> None:
        if pair.lo.shape != leaf.shape:
            return
        before = call.before.get(id(pair.lo))
        if before is None:  # a large fp32 weight stepped through ``.data``: the step counts, and rounding can hardly lose it
            self.open = True
            self.court.memory.forget(leaf)
            return
        parameters = self.court.parameters
        if leaf.grad is not None and not self.open:
            parameters.gradients([(name, leaf)], used=True)
        self.open = True
        parameters.after_step([(name, leaf)], {id(leaf): before}, {}, call.info.name)
        self.court.memory.forget(leaf)


def leaves_of(inputs: Any) -> list[tuple[Tensor, str]]:
    """The leaves among the inputs of ``torch.autograd.grad``."""
    tensors = [inputs] if isinstance(inputs, Tensor) else list(inputs) if isinstance(inputs, (list, tuple)) else []
    return [(t, f"leaf tensor {tuple(t.shape)}") for t in tensors if isinstance(t, Tensor) and t.is_leaf]
