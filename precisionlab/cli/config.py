"""``[tool.precisionlab]`` of the nearest ``pyproject.toml``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from precisionlab.errors import SettingsError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def nearest_table(start: Path) -> tuple[dict[str, Any], str]:
    """The table and the file it is in, looking in ``start`` and the folders above; ``({}, "")`` where there is none.

    Files without the table are passed over. Raises ``SettingsError`` for one that is no TOML.
    """
    for folder in [start, *start.parents]:
        path = folder / "pyproject.toml"
        if not path.is_file():
            continue
        try:
            tools = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {})
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
            raise SettingsError(f"{path} cannot be read: {error}", hint="correct it, or run from another folder") from None
        table = tools.get("precisionlab")
        if isinstance(table, dict):
            return table, str(path)
        if table is not None:
            raise SettingsError(f"{path}: tool.precisionlab must be a table", hint="[tool.precisionlab]")
    return {}, ""
