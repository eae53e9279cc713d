"""The one registry of what ATen ops mean numerically.

A rule is a class decorated with ``@op_rule(aten.mm, aten.bmm, family=Family.DOT)``; its static methods, all optional, are

    reference(func, args, kwargs)       fp64 results on fp64 operands, where torch's own fp64 kernel is missing or inaccurate;
                                        in-place and out= overloads never get here with aliasing: the caller copies the result
    condition(func, args, kwargs, y)    S: the same op on absolute values, the scale on which its rounding errors live (tensor like y)
    length(func, args, kwargs, y)       n: how many terms each output element sums (int, 1 = no reduction)
    growth(n)                           G: how much error a healthy sum of n terms gathers, in u of its accumulator; sqrt(n) by default
    internal(func, args, kwargs, y, u)  R: what declared internal roundings to the storage dtype may add (tensor like y, or 0.0)

``args``/``kwargs`` hold fp64 tensors where the op got floating ones, everything else as the op got it. ``y`` is the fp64 result, or
a tuple for ops with several outputs; then condition and internal return a tuple with None where nothing is judged.

Lookup: overload, then overload packet, then a default made from the schema, which is counted as such in the coverage.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch

from precisionlab.errors import RegistryError

OpTarget = "torch._ops.OpOverload | torch._ops.OpOverloadPacket"


class Family(str, Enum):
    """What kind of arithmetic an op does."""

    __hash__ = str.__hash__  # in C; Enum's own runs in Python, and families are looked up for every op

    DOT = "dot"
    REDUCTION = "reduction"
    POINTWISE = "pointwise"
    NORMALISATION = "normalisation"
    SOFTMAX = "softmax"
    ATTENTION = "attention"
    LOSS = "loss"
    INDEXING = "indexing"
    VIEW = "view"
    FACTORY = "factory"
    RANDOM = "random"
    CAST = "cast"
    COPY = "copy"
    SELECTION = "selection"
    COMPARISON = "comparison"
    OPTIMIZER = "optimizer"
    AMP = "amp"
    RECURRENT = "recurrent"
    CONVOLUTION = "convolution"
    COLLECTIVE = "collective"
    SCALAR = "scalar"
    SCAN = "scan"
    LINALG = "linalg"
    OTHER = "other"


class How(str, Enum):
    """How the twin of an op's result comes about."""

    __hash__ = str.__hash__

    RERUN = "rerun"
    """The same overload on the fp64 twins (or ``reference``)."""
    VIEW = "view"
    """Nothing to compute: the result shares storage with an operand."""
    REAL = "real"
    """The twin takes the program's value: random numbers, declared precision-specific code."""
    UNINITIALISED = "uninitialised"
    """Memory without a value yet (``empty``): a twin without a value, never measured."""
    SELECT = "select"
    """Values and indices: the twin's values are gathered with the real indices."""
    DECIDE = "decide"
    """Bool or integer results of floating operands: the real ones hold, the twin's are compared with them."""
    READ = "read"
    """A number leaves for Python (``.item()``)."""
    CUSTOM = "custom"
    """Handled by a function of the shadow mode under the op's name (scaler, fused optimizers, collectives)."""


@dataclass(frozen=True)
class OpRule:
    """One op's numerical meaning. See the module docstring for the callables."""

    family: Family
    how: How = How.RERUN
    reference: Callable[..., Any] | None = None
    condition: Callable[..., Any] | None = None
    length: Callable[..., int] | None = None
    growth: Callable[[int], float] | None = None
    internal: Callable[..., Any] | None = None
    note: str = ""
    """One sentence for the coverage page: why it is not simply run again."""
    explicit: bool = True


_RULES: dict[Any, OpRule] = {}


def op_rule(*targets: Any, family: Family, how: How = How.RERUN, note: str = "") -> Callable[[type], type]:
    """Class decorator: registers the rule for each overload packet or overload in ``targets``.

    Raises ``RegistryError`` for a target that is no op, and for an op that has a rule already.
    """

    def register(cls: type) -> type:
        rule = OpRule(
            family,
            how,
            reference=getattr(cls, "reference", None),
            condition=getattr(cls, "condition", None),
            length=getattr(cls, "length", None),
            growth=getattr(cls, "growth", None),
            internal=getattr(cls, "internal", None),
            note=note,
        )
        for target in targets:
            add_rule(target, rule)
        return cls

    return register


def add_rule(target: Any, rule: OpRule) -> None:
    """Register ``rule`` for one overload or overload packet. Raises ``RegistryError`` as ``op_rule`` does."""
    if not isinstance(target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        raise RegistryError(f"op_rule needs an op such as torch.ops.aten.mm or torch.ops.aten.mm.default, got {target!r}")
    if target in _RULES:
        raise RegistryError(f"{target} has a rule already")
    _RULES[target] = rule


def optional_ops(namespace: Any, *names: str) -> list[Any]:
    """The packets among ``names`` that this torch build has (op sets differ between builds and versions)."""
    return [getattr(namespace, n) for n in names if hasattr(namespace, n)]


def find_rule(func: Any) -> OpRule | None:
    """The rule of an overload, or None. In-place (``add_``) and ``out=`` overloads use the rule of their functional packet.

    ``_foreach_`` ops have rules of their own names only when registered; else None.
    """
    rule = _RULES.get(func) or _RULES.get(func.overloadpacket)
    if rule is not None:
        return rule
    namespace, _, name = func._schema.name.partition("::")
    if name.endswith("_") and not name.endswith("__"):
        packet = getattr(getattr(torch.ops, namespace), name[:-1], None)
        return _RULES.get(packet)
    return None


def all_rules() -> dict[Any, OpRule]:
    """A copy of the registry, for the coverage page and the tests."""
    return dict(_RULES)
