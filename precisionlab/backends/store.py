"""Profiles as strict JSON, and those that are shipped with the package. Needs no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from enum import Enum
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from precisionlab.backends.profile import Entry, FlagEffect, Order, Origin, Profile, Rounding, SizeClass, significand_bits
from precisionlab.errors import PrecisionLabError, SettingsError
from precisionlab.formats.catalogue import get_format

VERSION = 1
"""Of the file format; raised when its meaning changes."""
_Word = TypeVar("_Word", bound=Enum)


class ProfileError(PrecisionLabError):
    """A profile that does not exist, cannot be read, or says something that no profile can say."""


def dumps(profile: Profile) -> str:
    """Strict JSON, one entry a line, the same bytes for the same profile."""
    head: dict[str, Any] = {
        "profile_version": VERSION,
        "name": profile.name,
        "device": profile.device,
        "hardware": profile.hardware,
        "torch": profile.torch,
        "origin": str(profile.origin),
        "notes": list(profile.notes),
    }
    lists = {
        "entries": [_row(entry, ("op", "dtype", "size_class", "accumulation")) for entry in profile.entries],
        "flags": [_row(effect, ("flag", "op", "dtype", "changes")) for effect in profile.flags],
    }
    parts = [f"  {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in head.items()]
    for key, rows in lists.items():
        lines = ",\n".join(f"    {json.dumps(row, ensure_ascii=False, allow_nan=False)}" for row in rows)
        parts.append(f'  "{key}": [\n{lines}\n  ]' if rows else f'  "{key}": []')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _row(item: Entry | FlagEffect, always: tuple[str, ...]) -> dict[str, Any]:
    """The fields of an entry, without those that say nothing."""
    row: dict[str, Any] = {}
    for part in fields(item):
        value = getattr(item, part.name)
        value = str(value) if isinstance(value, Enum) else dict(value) if isinstance(value, Mapping) else value
        if part.name in always or value not in (None, "", {}, str(Order.UNKNOWN)):
            row[part.name] = value
    return row


def loads(text: str, origin: str = "profile") -> Profile:
    """The profile that ``dumps`` wrote. Raises ``ProfileError``, naming ``origin`` (a file) and the place, for anything else."""
    try:
        data = json.loads(text, parse_constant=_no_constant)
    except ValueError as error:
        raise ProfileError(f"{origin} is not strict JSON: {error}", hint="precisionlab probe -o FILE writes one") from None
    if not isinstance(data, dict) or "profile_version" not in data:
        raise ProfileError(f"{origin} is no profile: it has no profile_version", hint="precisionlab probe -o FILE writes one")
    if data["profile_version"] != VERSION:
        raise ProfileError(
            f"{origin} has profile version {data['profile_version']!r} and this precisionlab reads {VERSION}",
            hint="probe again, or use the precisionlab that wrote it",
        )
    reader = _Reader(origin, data)
    entries = tuple(_entry(reader.inside("entries", i, row)) for i, row in enumerate(reader.rows("entries")))
    flags = tuple(_flag(reader.inside("flags", i, row)) for i, row in enumerate(reader.rows("flags")))
    return Profile(
        reader.text("name"),
        reader.text("device"),
        reader.text("hardware"),
        reader.text("torch"),
        reader.word("origin", Origin),
        entries,
        flags,
        tuple(str(note) for note in reader.rows("notes")),
    )


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not allowed")


class _Reader:
    """One JSON object, with an error for each way it can be wrong."""

    def __init__(self, where: str, data: Any) -> None:
        if not isinstance(data, dict):
            raise ProfileError(f"{where} is not an object", hint="precisionlab probe -o FILE writes profiles")
        self.where, self.data = where, data

    def inside(self, key: str, index: int, data: Any) -> _Reader:
        return _Reader(f"{self.where}: {key}[{index}]", data)

    def rows(self, key: str) -> list[Any]:
        found = self.data.get(key, [])
        return found if isinstance(found, list) else self._wrong(key, "a list")

    def text(self, key: str, default: str | None = None) -> str:
        found = self.data.get(key, default)
        return found if isinstance(found, str) else self._wrong(key, "text")

    def word(self, key: str, words: type[_Word], default: str | None = None) -> _Word:
        found = self.data.get(key, default)
        if found not in {word.value for word in words}:
            self._wrong(key, " or ".join(str(word.value) for word in words))
        return words(found)

    def mapping(self, key: str) -> dict[str, Any]:
        found = self.data.get(key, {})
        return found if isinstance(found, dict) else self._wrong(key, "an object")

    def optional(self, key: str, kind: type[Any], words: str) -> Any:
        found = self.data.get(key)
        if found is None or (isinstance(found, kind) and (kind is bool or not isinstance(found, bool))):
            return found
        return self._wrong(key, words)

    def only(self, known: set[str]) -> None:
        for key in self.data:
            if key not in known:
                raise ProfileError(f"{self.where} has an unknown field {key!r}", hint=f"one of {', '.join(sorted(known))}")

    def _wrong(self, key: str, wanted: str) -> Any:
        found = repr(self.data[key]) if key in self.data else "nothing"
        raise ProfileError(f"{self.where}: {key} must be {wanted}, not {found}", hint="precisionlab probe -o FILE writes profiles")


def _entry(row: _Reader) -> Entry:
    row.only({part.name for part in fields(Entry)})
    accumulation = row.text("accumulation")
    try:
        significand_bits(accumulation)
        dtype = get_format(row.text("dtype")).name
    except SettingsError as error:
        raise ProfileError(f"{row.where}: {error.message}", hint=error.hint) from None
    block = row.optional("block", int, "a whole number")
    if block is not None and block < 1:
        raise ProfileError(f"{row.where}: block must be at least 1, not {block}", hint="leave it out where there are no blocks")
    return Entry(
        row.text("op"),
        dtype,
        row.word("size_class", SizeClass),
        accumulation,
        row.word("order", Order, str(Order.UNKNOWN)),
        block,
        row.word("rounding", Rounding, str(Rounding.UNKNOWN)),
        row.optional("flushes_subnormals", bool, "true or false"),
        row.text("case", ""),
        row.mapping("evidence"),
    )


def _flag(row: _Reader) -> FlagEffect:
    row.only({part.name for part in fields(FlagEffect)})
    return FlagEffect(row.text("flag"), row.text("op"), row.text("dtype"), row.mapping("changes"))


def shipped_names() -> list[str]:
    """Names of the profiles that come with the package."""
    return sorted(file.name.removesuffix(".json") for file in _folder().iterdir() if file.name.endswith(".json"))


def load_profile(target: str | Path) -> Profile:
    """The profile in a file (anything that ends in ``.json`` or has a folder), or a shipped one by its name.

    Raises ``ProfileError``: no such file, no such name (with the shipped ones), not a profile.
    """
    text = str(target)
    if text.endswith(".json") or isinstance(target, Path) or "/" in text:
        try:
            return loads(Path(target).read_text(encoding="utf-8"), text)
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise ProfileError(f"the profile {text} cannot be read: {reason}", hint="precisionlab probe -o FILE writes one") from None
    known = shipped_names()
    if text not in known:
        near = get_close_matches(text, known, n=1)
        hint = (f"{near[0]!r}; " if near else "") + f"shipped are {', '.join(known)}; or a file written by precisionlab probe -o FILE"
        raise ProfileError(f"there is no profile {text!r}", hint=hint)
    return loads((_folder() / f"{text}.json").read_text(encoding="utf-8"), f"the shipped profile {text}")


def _folder() -> Any:
    return resources.files("precisionlab.backends") / "profiles"
