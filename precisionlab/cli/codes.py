"""What the command line returns."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """0 to 3 are the contract; 130 is what shells return for Ctrl-C."""

    NOTHING_FOUND = 0
    """Ran; nothing at or above ``--fail-on``."""
    FINDINGS = 1
    """Ran; something at or above ``--fail-on``."""
    WRONG_USE = 2
    """Wrong use, a subject that cannot be loaded or raises, or an internal error."""
    UNTRUSTWORTHY = 3
    """Ran, but the answer cannot be trusted."""
    INTERRUPTED = 130
