"""What ``precisionlab probe`` does: measure or load a profile, and write it as a table or as JSON."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from precisionlab.backends.profile import Entry, FlagEffect, Order, Origin, Profile
from precisionlab.backends.store import dumps, load_profile
from precisionlab.cli.guard import say
from precisionlab.cli.options import OutputFormat
from precisionlab.errors import SettingsError
from precisionlab.formats.catalogue import get_format

if TYPE_CHECKING:
    import torch


def run(
    show: str | None,
    ops: list[str],
    dtypes: list[str],
    device: str,
    flags: bool,
    wanted: OutputFormat | None,
    output: Path | None,
    quiet: bool,
) -> None:
    """The whole command. ``show``: a profile to load instead of measuring."""
    profile = load_profile(show) if show is not None else _measured(ops, dtypes, device, flags, output, quiet)
    _write(profile, wanted, output)


def _measured(ops: list[str], dtypes: list[str], device: str, flags: bool, output: Path | None, quiet: bool) -> Profile:
    names = [get_format(word).name for word in dtypes]

    import torch

    from precisionlab.backends.flags import known_ops, with_flags
    from precisionlab.backends.probe import matches
    from precisionlab.backends.probe import probe as measure

    unknown = [pattern for pattern in ops if not any(matches(known, pattern) for known in known_ops())]
    if unknown:
        raise SettingsError(f"the probe has no case for {unknown[0]!r}", hint=f"a glob that matches one of {', '.join(known_ops())}")
    chosen = _dtypes(names)
    _check_device(device, torch)
    profile = measure(ops, chosen, device, name=output.stem if output else "", progress=None if quiet else _Progress())
    return with_flags(profile, chosen, device) if flags else profile


def _dtypes(names: list[str]) -> tuple[torch.dtype, ...]:
    from precisionlab.backends.cases import DTYPES

    known = {get_format(dtype).name: dtype for dtype in DTYPES}
    for name in names:
        if name not in known:
            raise SettingsError(f"the probe has no cases in {name}", hint=" or ".join(known))
    return tuple(known[name] for name in names) or DTYPES


def _check_device(device: str, torch: object) -> None:
    try:
        torch.zeros(1, device=device)  # type: ignore[attr-defined]
    except (RuntimeError, AssertionError) as error:
        raise SettingsError(f"there is no device {device!r} here: {str(error).splitlines()[0]}", hint="--device cpu") from None


class _Progress:
    """One line per op on a terminal, none elsewhere."""

    def __init__(self) -> None:
        self.last = ""

    def __call__(self, op: str) -> None:
        if op != self.last and sys.stderr.isatty():
            say(f"probing {op}")
        self.last = op


def _write(profile: Profile, wanted: OutputFormat | None, output: Path | None) -> None:
    as_json = wanted is OutputFormat.JSON or (wanted is None and output is not None and output.suffix == ".json")
    text = dumps(profile) if as_json else render(profile)
    if output is None:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{output} cannot be written: {error.strerror}", hint="another path") from None
    say(f"{len(profile.entries)} entries are in {os.fspath(output)}")


def render(profile: Profile) -> str:
    """A table, one row for each sum and dtype: accumulator and order by class of lengths, rounding, subnormals; then flags and notes."""
    from tabulate import tabulate

    how = "measured here" if profile.origin is Origin.PROBED else "declared from publications, not probed"
    title = f"{profile.name}: {profile.hardware}{f', torch {profile.torch}' if profile.torch else ''} ({how})"
    rows = [
        [f"{name}, {case}" if case else name, dtype, *_columns(list(entries))]
        for (name, case, dtype), entries in groupby(profile.entries, key=lambda e: (e.op, e.case, e.dtype))
    ]
    table = tabulate(rows, headers=["sum", "dtype", "accumulates in", "order", "rounds", "subnormals"], disable_numparse=True)
    legend = (
        "* narrower than fp32.  order: for short / medium / long sums where they differ, with the terms that one partial sum takes in turn."
    )
    parts = [title, table, legend]
    parts += ["\n".join(["flags", *_flag_lines(profile.flags)])] if profile.flags else []
    parts += ["\n".join(["notes", *(f"  {note}" for note in profile.notes)])] if profile.notes else []
    return "\n\n".join(parts) + "\n"


def _columns(entries: list[Entry]) -> list[str]:
    accumulation = _joined(f"{e.accumulation}{' *' if e.bits < 24 else ''}" for e in entries)
    order = _joined(f"{e.order} {e.block}" if e.block else "unknown" if e.order is Order.UNKNOWN else str(e.order) for e in entries)
    subnormals = _joined("" if e.flushes_subnormals is None else "flushed" if e.flushes_subnormals else "kept" for e in entries)
    return [accumulation, order, _joined("" if str(e.rounding) == "unknown" else str(e.rounding) for e in entries), subnormals]


def _joined(words: Iterator[str]) -> str:
    """The words, once where all are the same."""
    found = list(words)
    return found[0] if len(set(found)) == 1 else " / ".join(found)


def _flag_lines(effects: tuple[FlagEffect, ...]) -> list[str]:
    lines = []
    for flag, group in groupby(effects, key=lambda effect: effect.flag):
        lines.append(f"  {flag}")
        by_change: dict[str, list[str]] = {}
        for effect in group:
            change = ", ".join(f"{name} {words}" for name, words in effect.changes.items()) or "changes nothing"
            by_change.setdefault(change, []).append(f"{effect.op} {effect.dtype}")
        lines += [f"    {change}" + ("" if change == "changes nothing" else f": {_few(ops)}") for change, ops in by_change.items()]
    return lines


def _few(ops: list[str], most: int = 4) -> str:
    """The first of them, and how many more; the JSON has all."""
    return ", ".join(ops if len(ops) <= most else [*ops[: most - 1], f"and {len(ops) - most + 1} more"])
