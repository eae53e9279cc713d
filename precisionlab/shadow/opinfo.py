"""What the mode needs to know of an overload, read once from its schema and its rule."""

from __future__ import annotations

from typing import Any

import torch

from precisionlab.ops.registry import Family, How, OpRule, find_rule
from precisionlab.shadow.native import LOOK_AT
from precisionlab.shadow.special import SPECIAL

WIDE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.float8_e5m2: torch.float64,
    torch.float8_e4m3fn: torch.float64,
    torch.float8_e5m2fnuz: torch.float64,
    torch.float8_e4m3fnuz: torch.float64,
    torch.complex64: torch.complex128,
    torch.complex32: torch.complex128,
}
"""What a dtype argument becomes for the twin."""


HIDDEN_WRITES: dict[str, frozenset[int]] = {
    "aten.native_batch_norm": frozenset((3, 4)),
    "aten.cudnn_batch_norm": frozenset((3, 4)),
    "aten.miopen_batch_norm": frozenset((3, 4)),
}
"""Operands an op writes although its schema does not say so: the running statistics."""


class OpInfo:
    """Static facts of one overload."""

    def __init__(self, func: Any) -> None:
        schema = func._schema
        self.func = func
        namespace, _, name = schema.name.partition("::")
        self.name = f"{namespace}.{name}"
        self.stem = name.removeprefix("_foreach_").rstrip("_")
        """``aten._foreach_mul_`` -> ``mul``."""
        self.rule = find_rule(func) or _default_rule(func)
        self.how = self.rule.how
        self.family = self.rule.family
        self.names: list[str] = [a.name for a in schema.arguments]
        self.mutated: list[tuple[int, str]] = [
            (i, a.name) for i, a in enumerate(schema.arguments) if a.alias_info is not None and a.alias_info.is_write
        ]
        self.is_out = any(a.is_out for a in schema.arguments)
        self.in_place = bool(self.mutated) and not self.is_out
        self.hidden_writes = HIDDEN_WRITES.get(self.name, frozenset())
        self.writes = frozenset(i for i, _ in self.mutated) | self.hidden_writes
        self.written_names = frozenset(n for _, n in self.mutated)
        has_tensor = any("Tensor" in str(a.type) for a in schema.arguments if not a.is_out)
        self.factory_dtype = not has_tensor and any(a.name == "dtype" for a in schema.arguments)
        self.listed = any("List[Tensor]" in str(r.type) for r in schema.returns) or any(
            "List[Tensor]" in str(schema.arguments[i].type) for i, _ in self.mutated
        )
        self.exact = self.family in (Family.COPY, Family.VIEW) and name not in ("copy_", "_to_copy", "copy", "to")
        self.fresh_results = any(r.alias_info is None for r in schema.returns)
        self.composite = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
        """Taken apart by the dispatcher before a mode sees it, except under inference mode."""
        self.touches_nothing = self.how in (How.REAL, How.UNINITIALISED) and not self.mutated and self.family is not Family.COLLECTIVE
        self.random = torch.Tag.nondeterministic_seeded in func.tags
        self.may_differ = func in LOOK_AT
        self.special = SPECIAL.get(func._overloadpacket)
        self.twin_func, self.order = func, None
        if self.is_out or (self.in_place and self.rule.reference is not None and not self.listed):
            self.twin_func, self.order = _functional(func)

    @property
    def functional(self) -> bool:
        """Whether the twin runs an overload that returns what this one writes."""
        return self.twin_func is not self.func


def _functional(func: Any) -> tuple[Any, list[int] | None]:
    """The overload that returns what ``func`` writes into ``out=`` or in place, and the order of its arguments where it is another.

    ``func`` itself where there is none.
    """
    schema = func._schema
    namespace, _, name = schema.name.partition("::")
    is_out = any(a.is_out for a in schema.arguments)
    names = [a.name for a in schema.arguments if not a.is_out]
    types = sorted(str(a.type) for a in schema.arguments if not a.is_out)
    packet = func._overloadpacket if is_out else getattr(getattr(torch.ops, namespace), name.rstrip("_"), None)
    for overload in packet.overloads() if packet is not None else ():
        other = getattr(packet, overload)
        arguments = other._schema.arguments
        if any(a.is_out for a in arguments) or other is func or (not is_out and any(a.alias_info for a in arguments)):
            continue
        theirs = [a.name for a in arguments]
        if sorted(theirs) == sorted(names) and sorted(str(a.type) for a in arguments) == types:
            return other, None if theirs == names else [names.index(n) for n in theirs]
    return func, None


def _default_rule(func: Any) -> OpRule:
    """An op nobody wrote a rule for: aliasing and randomness come from its schema and tags, else it is run again."""
    schema = func._schema
    if any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns):
        return OpRule(Family.VIEW, How.VIEW, explicit=False)
    if torch.Tag.nondeterministic_seeded in func.tags:
        return OpRule(Family.RANDOM, How.REAL, explicit=False, note="drawn once: the twin takes the program's random numbers")
    if not schema.returns and not any(a.alias_info for a in schema.arguments):
        return OpRule(Family.OTHER, How.VIEW, explicit=False)
    return OpRule(Family.OTHER, How.RERUN, explicit=False)
