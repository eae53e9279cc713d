"""The generator of the reference, which is no package: loaded from its folder."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs" / "tools"))

import generate

__all__ = ["generate"]
