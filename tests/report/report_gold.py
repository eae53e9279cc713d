"""Golden files: compare, or rewrite them with ``./dev gold`` (``PRECISIONLAB_UPDATE_GOLD=1``)."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).with_name("gold")


def assert_gold(name: str, actual: str) -> None:
    path = FOLDER / name
    if os.environ.get("PRECISIONLAB_UPDATE_GOLD"):
        path.write_text(actual, encoding="utf-8")
    assert path.exists(), f"{path} does not exist: ./dev gold writes it"
    assert actual == path.read_text(encoding="utf-8"), f"{path} differs: look at the difference, then ./dev gold"
