"""One executed op: its operands and results beside their twins, as trackers see them, and what an observer wants to hear of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import torch

from precisionlab.records import Phase
from precisionlab.shadow.memory import Twin
from precisionlab.shadow.opinfo import OpInfo
from precisionlab.shadow.sites import Place

Tensor = torch.Tensor

UNMEASURED = object()
"""The local error of a call that nobody has asked for yet."""


class Pair:
    """A real tensor with its twin and the twin's window."""

    __slots__ = ("hi", "lo", "twin")

    def __init__(self, lo: Tensor, hi: Tensor, twin: Twin) -> None:
        self.lo = lo
        self.hi = hi
        self.twin = twin


class OpCall:
    """One executed op as the trackers see it."""

    module = ""
    phase = Phase.OTHER
    place = Place("", 0, "")
    backward = False
    result: Any = None
    local: Any = UNMEASURED
    obstacle = ""
    """Why this call cannot be shadowed, when an operand already says so."""
    before: Mapping[int, Tensor] = MappingProxyType({})
    """id of a mutated operand -> its real value before the op (kept only where a rule needs it)."""
    events_before: dict[int, frozenset[int]] = {}  # calls that write get their own
    decisions: Sequence[Pair] = ()
    """Integer or bool operands that the twin decided otherwise."""

    def __init__(self, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.info = info
        self.args = args
        self.kwargs = kwargs
        self.inputs: list[Pair] = []
        self.outputs: list[Pair] = []


class Observer(Protocol):
    """What a session wants to hear of."""

    def op(self, call: OpCall) -> None:
        """A shadowed op with floating results."""

    def decision(self, call: OpCall, lo: Tensor, hi: Tensor) -> None:
        """An op with integer or bool results, and what the twin would have decided."""

    def drew(self, call: OpCall) -> None:
        """A random op."""

    def used(self, call: OpCall) -> None:
        """An op that used integer or bool operands the twin decided otherwise."""

    def read(self, call: OpCall, value: Any) -> None:
        """A number left for Python."""


def tensors_of(x: Any) -> list[Tensor]:
    """Tensors of a result in order, through nested sequences."""
    if isinstance(x, Tensor):
        return [x]
    if isinstance(x, (list, tuple)):
        return [t for e in x for t in tensors_of(e)]
    return []
