"""What other accumulations would have done to one op, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

from precisionlab.records.enums import _Word


class TrialRole(_Word):
    """Why a plan was tried."""

    EXECUTED = "executed"
    """What the kernel that ran does, by the profile of this machine."""
    TARGET = "target"
    """What the machine of ``--target`` would do."""
    CANDIDATE = "candidate"
    """What hardware or a kernel may do."""


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """One accumulation plan on sampled outputs of one op site. Errors are in u of the storage format, as stored results have them.

    Shares and root mean squares are those of outputs drawn uniformly; outputs chosen for their size count in maxima only.
    """

    plan: str
    """In words: ``sequential fp16``."""
    role: TrialRole
    order: str
    """Of the additions: ``sequential``, ``blocked``, ``split-k``, ``block-fma``, ..."""
    accumulation: str
    """The narrowest format in which a partial sum is kept at any time."""
    terms: int
    """Terms of the longest sum tried: its first ones, where the op sums more."""
    outputs: int
    """Drawn uniformly."""
    emulated: bool
    """False where the sums provably stay inside the rounding of storing them."""
    error_u: float
    """||stored - exact|| / ||exact||."""
    error_max_u: float
    rho_max: float
    """Largest error over half an ulp plus what a running fp32 sum may add."""
    rho_p99: float
    stagnated_terms: float
    """Mean share of non-zero terms that left the running sum as it was."""
    stagnated: int = 0
    """Outputs with more than 1 % of such terms that are wrong by more than 8 u."""
    stagnated_low: float = 0.0
    stagnated_high: float = 1.0
    """Clopper-Pearson interval of their share among all outputs, 95 %."""
    overflowed: int = 0
    """Outputs of which a partial sum, or the result, exceeded its format."""
    overflowed_low: float = 0.0
    overflowed_high: float = 1.0
    largest: int = 0
    """Outputs tried besides because they are the largest."""
    largest_stagnated: int = 0
    largest_overflowed: int = 0

    @property
    def stalls(self) -> bool:
        """Whether any output that was tried stagnated."""
        return self.stagnated + self.largest_stagnated > 0

    @property
    def overflows(self) -> bool:
        """Whether any output that was tried overflowed."""
        return self.overflowed + self.largest_overflowed > 0
