"""A change to how a program uses its formats: what is lifted to another format, and where. Plain data, kept as JSON.

A change names a *region*: a module (its path below the outermost one), a function (file and qualified name), or one line. Everything
computed inside, and in what it calls, is lifted; what leaves the region goes back to the format that the program expects.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from precisionlab.errors import SettingsError
from precisionlab.records import Plan

PLAN_VERSION = 1


class Where(str, Enum):
    """What a region is."""

    LINE = "line"
    FUNCTION = "function"
    MODULE = "module"
    PROGRAM = "program"
    """Everything: the last resort."""
    SCALE = "loss scale"
    """No region: another initial loss scale."""
    MASTERS = "masters"
    """No region: fp32 copies of the weights in the optimizer."""
    DTYPE = "dtype"
    """No region: the other half format throughout."""

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True)
class Change:
    """One change. ``plan``: the formats that the region computes in (``storage`` of its inner results, compute, accumulation)."""

    where: Where
    module: str = ""
    """Path of the module, for modules; of the op that asked for the change otherwise."""
    file: str = ""
    """End of the path of the source file, for functions and lines."""
    function: str = ""
    line: int = 0
    plan: Plan = field(default_factory=lambda: Plan("fp32", "fp32", "fp32"))
    scale: float = 0.0
    """The initial loss scale, for ``Where.SCALE``."""
    reason: str = ""
    predicted_error: float | None = None
    """Relative error of the op's result to expect with the change: one rounding where it leaves the region."""
    measured_error: float | None = None
    """The same as the audit of the changed program found it."""

    @property
    def place(self) -> str:
        """Where, in words."""
        if self.where is Where.MODULE:
            return f"module {self.module}"
        if self.where is Where.FUNCTION:
            return f"{self.function}() in {self.file}"
        if self.where is Where.LINE:
            return f"{self.file}:{self.line}"
        if self.where is Where.SCALE:
            return f"loss scale {self.scale:g}"
        if self.where is Where.DTYPE:
            return f"{self.plan.storage} throughout"
        return "the whole program" if self.where is Where.PROGRAM else "fp32 master weights"

    @property
    def is_region(self) -> bool:
        """Whether it lifts the computation of a region, so that ``apply_plan`` can do it."""
        return self.where not in (Where.SCALE, Where.MASTERS, Where.DTYPE)

    def same_region(self, other: Change) -> bool:
        """Whether both speak about one place."""
        return (self.where, self.module if self.where is Where.MODULE else "", self.file, self.function, self.line) == (
            other.where,
            other.module if other.where is Where.MODULE else "",
            other.file,
            other.function,
            other.line,
        )


def dumps(changes: Sequence[Change], *, model: str = "", dtype: str = "") -> str:
    """A plan file. ``model``: class of the model it was made for."""
    rows = [{**asdict(change), "where": str(change.where)} for change in changes]
    return json.dumps({"plan_version": PLAN_VERSION, "model": model, "dtype": dtype, "changes": rows}, indent=2) + "\n"


def loads(text: str, source: str = "plan") -> tuple[list[Change], dict[str, Any]]:
    """Changes of a plan file, and its head (``model``, ``dtype``).

    Raises ``SettingsError`` for what is no plan file: not JSON, another version, unknown or missing keys.
    """
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise SettingsError(f"{source} is no JSON: {error.msg} in line {error.lineno}", hint="precisionlab plan -o plan.json") from None
    if not isinstance(data, dict) or not isinstance(data.get("changes"), list):
        raise SettingsError(f"{source} is no plan file: it has no list of changes", hint="precisionlab plan TARGET -o plan.json")
    if data.get("plan_version") != PLAN_VERSION:
        raise SettingsError(
            f"{source} has plan version {data.get('plan_version')!r}, this tool reads {PLAN_VERSION}", hint="make the plan again"
        )
    changes = [_change(row, f"{source}, change {i}") for i, row in enumerate(data["changes"], 1)]
    return changes, {key: value for key, value in data.items() if key != "changes"}


def load_plan(path: str | Path) -> tuple[list[Change], dict[str, Any]]:
    """``loads`` of a file. Raises ``SettingsError`` when it cannot be read."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}", hint="precisionlab plan TARGET -o plan.json") from None
    return loads(text, str(path))


def _change(row: Any, source: str) -> Change:
    if not isinstance(row, dict):
        raise SettingsError(f"{source} is no object", hint="make the plan again")
    known = set(Change.__dataclass_fields__)
    extra = sorted(set(row) - known)
    if extra or "where" not in row:
        raise SettingsError(f"{source} has {'unknown key ' + extra[0] if extra else 'no key where'}", hint=f"keys: {', '.join(known)}")
    try:
        plan = Plan(**row["plan"]) if "plan" in row else Plan("fp32", "fp32", "fp32")
        return Change(**{**row, "where": Where(row["where"]), "plan": plan})
    except (TypeError, ValueError) as error:
        raise SettingsError(f"{source}: {error}", hint=f"where: {', '.join(str(w) for w in Where)}") from None
