"""The options of ``audit``: defaults, then the nearest ``[tool.precisionlab]``, then the command line. No torch in here."""

from __future__ import annotations

import difflib
import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any

from precisionlab.errors import SettingsError
from precisionlab.subjects.words import Kernels, LowDtype, Mode, parse_dtype
from precisionlab.thresholds import Thresholds


class _Word(str, Enum):
    def __str__(self) -> str:
        return str(self.value)


class OutputFormat(_Word):
    """How the report is written."""

    TABLE = "table"
    JSON = "json"


class FailOn(_Word):
    """The mildest verdict that makes the exit code 1."""

    BROKEN = "broken"
    RISKY = "risky"
    NEVER = "never"


class Preset(_Word):
    """How much is measured, and so what an audit costs."""

    QUICK = "quick"
    STANDARD = "standard"
    FULL = "full"


class Resync(_Word):
    """When the twins of weights and optimizer state restart from the real values."""

    STEP = "step"
    NEVER = "never"


ENGINE_SETTINGS: dict[str, type[Any]] = {"max_shadow_bytes": int}
"""Settings of ``pl.audit`` that are set with ``--set`` besides the thresholds."""


@dataclass(frozen=True)
class AuditOptions:
    """One field an option that a configuration file may set too. None leaves the choice to the engine."""

    dtype: LowDtype = LowDtype.FP16
    mode: Mode = Mode.AMP
    steps: int = 2
    format: OutputFormat | None = None
    fail_on: FailOn = FailOn.BROKEN
    kernels: Kernels = Kernels.AUTO
    preset: Preset | None = None
    resync: Resync | None = None
    seed: int = 0
    all: bool = False
    min_coverage: float = 0.8
    input_size: str | None = None
    input_dtype: str | None = None
    input_high: int | None = None
    target: str | None = None
    """A profile: the name of a shipped one, or a file."""
    settings: dict[str, float] = field(default_factory=dict)
    """Thresholds and engine settings by name."""

    def engine_settings(self) -> dict[str, Any]:
        """What ``pl.audit`` gets."""
        chosen: dict[str, Any] = dict(self.settings)
        if self.preset is not None:
            chosen["preset"] = str(self.preset)
        if self.resync is not None:
            chosen["resync"] = str(self.resync)
        if self.target is not None:
            chosen["target"] = self.target
        return chosen

    def command(self, target: str) -> str:
        """The command line that repeats this audit, whatever the configuration file says by then."""
        words = ["precisionlab", "audit", target]
        for name in ("dtype", "mode", "steps", "seed", "kernels", "preset", "resync", "input_size", "input_dtype", "input_high", "target"):
            value = getattr(self, name)
            if value is not None:
                words += [f"--{name.replace('_', '-')}", str(value)]
        for name, value in sorted(self.settings.items()):
            words += ["--set", f"{name}={value:g}"]
        return shlex.join(words)


_TYPES: dict[str, type[Any]] = {
    "mode": Mode,
    "steps": int,
    "format": OutputFormat,
    "fail_on": FailOn,
    "kernels": Kernels,
    "preset": Preset,
    "resync": Resync,
    "seed": int,
    "all": bool,
    "min_coverage": float,
    "input_size": str,
    "input_dtype": str,
    "input_high": int,
    "target": str,
}


def known_settings() -> list[str]:
    """Names that ``--set`` takes: thresholds and engine settings."""
    return sorted([*(f.name for f in fields(Thresholds)), *ENGINE_SETTINGS])


def known_keys() -> list[str]:
    """Keys of ``[tool.precisionlab]``: the options and everything that ``--set`` takes."""
    return sorted(["dtype", *_TYPES, *known_settings()])


def merged(options: AuditOptions, values: Mapping[str, Any], origin: str) -> AuditOptions:
    """``options`` overridden by ``values``; those that are None are left alone.

    Raises ``SettingsError``, naming ``origin``, for an unknown key (with the nearest) or a value of the wrong type.
    """
    changes: dict[str, Any] = {}
    settings = dict(options.settings)
    for raw, value in values.items():
        if value is None:
            continue
        name = raw.replace("-", "_")
        if name == "dtype":
            changes[name] = parse_dtype(value)
        elif name in _TYPES:
            changes[name] = _typed(name, value, _TYPES[name], origin)
        elif name in known_settings():
            settings[name] = _typed(name, value, ENGINE_SETTINGS.get(name, float), origin)
        else:
            raise _unknown(raw, known_keys(), origin)
    return replace(options, settings=settings, **changes)


def parse_assignments(texts: list[str]) -> dict[str, float]:
    """``["rho=16", "max_shadow_bytes=2e9"]``. Raises ``SettingsError`` for a form, name or value that is wrong."""
    chosen: dict[str, float] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise SettingsError(f"--set needs name=value, got {text!r}", hint="--set rho=16")
        if name not in known_settings():
            raise _unknown(name, known_settings(), "--set")
        try:
            chosen[name] = ENGINE_SETTINGS.get(name, float)(float(value))
        except (ValueError, OverflowError):
            raise SettingsError(f"--set {name} needs a number, got {value!r}", hint=f"--set {name}=16") from None
    return chosen


def _typed(name: str, value: Any, wanted: type[Any], origin: str) -> Any:
    if issubclass(wanted, Enum):
        try:
            return wanted(value)
        except ValueError:
            raise SettingsError(f"{origin}: {name} cannot be {value!r}", hint=" or ".join(str(word) for word in wanted)) from None
    if name == "input_size" and isinstance(value, list):
        return ",".join(str(part) for part in value)
    if not isinstance(value, bool) and isinstance(value, (int, float)) and wanted in (int, float) and value == wanted(value):
        value = wanted(value)
    if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
        raise SettingsError(f"{origin}: {name} needs a {_PLAIN_NAMES[wanted]}, got {value!r}", hint=f"{name} = {_EXAMPLES[wanted]}")
    lowest, highest = _RANGES.get(name, (-math.inf, math.inf))
    if wanted in (int, float) and not lowest <= value <= highest:
        raise SettingsError(f"{origin}: {name} cannot be {value}", hint=f"{name} = {_EXAMPLES[wanted]}")
    return value


_RANGES: dict[str, tuple[float, float]] = {
    "steps": (1, math.inf),
    "input_high": (1, math.inf),
    "min_coverage": (0, 1),
    "max_shadow_bytes": (0, math.inf),
}


_PLAIN_NAMES: dict[type, str] = {int: "whole number", float: "number", str: "text", bool: "true or false"}
_EXAMPLES: dict[type, str] = {int: "2", float: "0.5", str: '"..."', bool: "true"}


def _unknown(name: str, known: list[str], origin: str) -> SettingsError:
    near = difflib.get_close_matches(name.replace("-", "_"), known, n=1)
    return SettingsError(f"{origin} has no setting {name!r}", hint=f"did you mean {near[0]!r}?" if near else ", ".join(known))
