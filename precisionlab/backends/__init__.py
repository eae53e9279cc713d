"""What the kernels of a machine sum in: probed here (``probe``), or read from a profile (``store``).

current()                    the profile in force for CPU ops of this process
load_profile("h100")         a shipped one, or a file
profile.accumulation_of("aten.mm", "bf16", 4096)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from precisionlab.backends.profile import Entry, FlagEffect, Order, Origin, Profile, Rounding, SizeClass
from precisionlab.backends.store import ProfileError, dumps, load_profile, loads, shipped_names

if TYPE_CHECKING:
    from precisionlab.backends.live import LiveProfile

__all__ = [
    "Entry",
    "FlagEffect",
    "Order",
    "Origin",
    "Profile",
    "ProfileError",
    "Rounding",
    "SizeClass",
    "current",
    "dumps",
    "load_profile",
    "loads",
    "shipped_names",
]


def current() -> Profile | LiveProfile:
    """The profile of the CPU at hand. Imports torch; see ``backends.live``."""
    from precisionlab.backends.live import current as found

    return found()
