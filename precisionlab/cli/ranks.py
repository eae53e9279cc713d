"""Several processes that train together: which of them this is, and where its report goes.

``torchrun`` (and launchers that imitate it) sets ``RANK`` and ``WORLD_SIZE``. Source: documentation of ``torch.distributed.run``,
"Environment variables".
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Rank:
    """Process ``number`` (from 0) of ``count``."""

    number: int
    count: int

    def own(self, path: Path) -> Path:
        """``report.json`` -> ``report.rank1.json``."""
        return path.with_name(f"{path.stem}.rank{self.number}{path.suffix}")


def this_rank() -> Rank | None:
    """The rank that the environment tells; None for a process on its own."""
    try:
        number, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        return None
    return Rank(number, count) if count > 1 and 0 <= number < count else None
