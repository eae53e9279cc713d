"""What the mode needs to know of an overload, read once from its schema and its rule."""

from __future__ import annotations

from typing import Any

import torch

from precisionlab.ops.registry import Family, How, OpRule, find_rule

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

    __slots__ = ("func", "name", "rule", "how", "family", "mutated", "is_out", "factory_dtype", "listed", "exact", "in_place", "writes", "written_names", "hidden_writes")

    def __init__(self, func: Any) -> None:
        schema = func._schema
        self.func = func
        namespace, _, name = schema.name.partition("::")
        self.name = f"{namespace}.{name}"
        self.rule = find_rule(func) or _default_rule(func)
        self.how = self.rule.how
        self.family = self.rule.family
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
        self.listed = bool(schema.returns) and "[]" in str(schema.returns[0].type) or any(
            "Tensor[]" in str(schema.arguments[i].type) for i, _ in self.mutated
        )  # fmt: skip
        self.exact = self.family in (Family.COPY, Family.VIEW) and name not in ("copy_", "_to_copy", "copy", "to")


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
