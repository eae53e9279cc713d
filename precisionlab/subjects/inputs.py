"""What ``--input-size 8,128 --input-dtype int64 --input-high 50257`` asks for. No torch in here."""

from __future__ import annotations

from dataclasses import dataclass

from precisionlab.errors import SettingsError


@dataclass(frozen=True)
class InputSpec:
    """One random input tensor. Integers are drawn from [0, high), other values from N(0, 1)."""

    size: tuple[int, ...]
    dtype: str = "float32"
    high: int | None = None


def parse_size(text: str) -> tuple[int, ...]:
    """``8,128`` or ``8x128``. Raises ``SettingsError`` for anything but positive integers."""
    try:
        size = tuple(int(part) for part in text.lower().replace("x", ",").split(","))
    except ValueError:
        size = ()
    if not size or min(size) < 1:
        raise SettingsError(f"--input-size needs positive integers, got {text!r}", hint="--input-size 8,128")
    return size
