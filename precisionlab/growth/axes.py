"""What ``--along seq_len=128:4096:x2`` and ``--target seq_len=32768`` ask for. No torch in here."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass

from precisionlab.errors import SettingsError
from precisionlab.growth.fits import MIN_SIZES

SCALE = "scale"
"""The axis that multiplies the floating inputs; its sizes may be fractions."""
BATCH = "batch_size"
MOST_SIZES = 200


@dataclass(frozen=True)
class Axis:
    """A name and the sizes to run, ascending."""

    name: str
    sizes: tuple[float, ...]


def parse_axis(text: str) -> Axis:
    """``NAME=FIRST:LAST:xFACTOR``, ``NAME=FIRST:LAST:STEP`` or ``NAME=A,B,C``.

    Raises ``SettingsError`` for anything else, for fewer than two sizes, for sizes that do not ascend, are not positive or (but for
    ``scale``) not whole.
    """
    name, equals, words = text.partition("=")
    name = name.strip()
    if not equals or not name.isidentifier() or not words.strip():
        raise SettingsError(f"--along needs an axis and its sizes, got {text!r}", hint="--along seq_len=128:4096:x2")
    sizes = _range(name, words) if ":" in words else tuple(_number(name, part) for part in words.split(","))
    if len(sizes) < 2:
        raise SettingsError(
            f"{name} has one size, {sizes[0]:g}: growth needs several, and a law {MIN_SIZES}",
            hint=f"--along {name}={sizes[0]:g}:{sizes[0] * 16:g}:x2",
        )
    if any(b <= a for a, b in itertools.pairwise(sizes)):
        raise SettingsError(
            f"the sizes of {name} must ascend, got {words}", hint=f"--along {name}={','.join(f'{s:g}' for s in sorted(set(sizes)))}"
        )
    return Axis(name, sizes)


def parse_axes(texts: list[str]) -> tuple[Axis, ...]:
    """All of ``--along``. Raises ``SettingsError`` for an axis given twice."""
    axes = tuple(parse_axis(text) for text in texts)
    names = [axis.name for axis in axes]
    for name in names:
        if names.count(name) > 1:
            raise SettingsError(f"--along {name} is given twice", hint=f"--along {name}= with all sizes, separated by commas")
    return axes


def parse_targets(texts: list[str], axes: tuple[Axis, ...]) -> dict[str, float]:
    """``seq_len=32768``: axis -> the size that must hold. Raises ``SettingsError`` for an axis that is not swept."""
    targets = {}
    for text in texts:
        name, equals, word = text.partition("=")
        if not equals or name not in {axis.name for axis in axes}:
            swept = ", ".join(axis.name for axis in axes) or "none"
            raise SettingsError(f"--target {text}: needs a size of an axis of --along (here {swept})", hint="--target seq_len=32768")
        targets[name] = _number(name, word)
    return targets


def _range(name: str, words: str) -> tuple[float, ...]:
    parts = words.split(":")
    step = re.fullmatch(r"(x|\+)?([0-9.eE+]+)", parts[2].strip()) if len(parts) == 3 else None
    if len(parts) == 2:
        parts, step = [*parts, "x2"], re.fullmatch(r"(x|\+)?([0-9.eE+]+)", "x2")
    if step is None:
        raise SettingsError(f"the sizes of {name} cannot be read: {words!r}", hint=f"--along {name}=128:4096:x2, or {name}=4:16:+4")
    first, last = _number(name, parts[0]), _number(name, parts[1])
    by = _positive(name, step.group(2))
    if last < first:
        raise SettingsError(f"the sizes of {name} must ascend, got {words}", hint=f"--along {name}={parts[1]}:{parts[0]}:x2")
    if step.group(1) == "x" and by <= 1:
        raise SettingsError(f"a factor of {by:g} makes no new sizes of {name}", hint=f"--along {name}={parts[0]}:{parts[1]}:x2")
    sizes: list[float] = []
    size = first
    while size <= last * (1 + 1e-9) and len(sizes) <= MOST_SIZES:
        sizes.append(size if name == SCALE else float(round(size)))
        size = size * by if step.group(1) == "x" else size + by
    if len(sizes) > MOST_SIZES:
        raise SettingsError(f"{words} makes more than {MOST_SIZES} sizes of {name}", hint=f"--along {name}={parts[0]}:{parts[1]}:x2")
    return tuple(dict.fromkeys(sizes))


def _positive(name: str, word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not (value > 0 and math.isfinite(value)):
        raise SettingsError(f"{word.strip()!r} is no size of {name}: sizes are positive numbers", hint=f"--along {name}=128:4096:x2")
    return value


def _number(name: str, word: str) -> float:
    value = _positive(name, word)
    if name != SCALE and value != round(value):
        raise SettingsError(f"{word.strip()} is no size of {name}: only scale takes fractions", hint=f"--along {name}=128:4096:x2")
    return value
