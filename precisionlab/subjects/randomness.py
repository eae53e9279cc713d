"""Seeding for repeatable audits, and giving the caller's random state back."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator

import torch


def seed_everything(seed: int) -> None:
    """Seeds torch (every device), Python and, where it is imported, numpy."""
    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds inside, and restores the caller's random state after."""
    numpy = sys.modules.get("numpy")
    python_state, numpy_state = random.getstate(), numpy.random.get_state() if numpy else None
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() and torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    try:
        with torch.random.fork_rng(devices=devices):
            seed_everything(seed)
            yield
    finally:
        random.setstate(python_state)
        if numpy is not None and numpy_state is not None:
            numpy.random.set_state(numpy_state)
