"""The adjoint ledger as plain data: what part of the loss error each forward call made."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from precisionlab.records.run import Site


@dataclass(frozen=True, slots=True)
class LedgerShare:
    """One call site. ``site.op`` is the function that was called (``torch.nn.functional.linear``)."""

    site: Site
    op: Site | None
    """The last op that ran in the call, to find it in the table of ops."""
    share: float | None
    """sum <adjoint, delta> over the actual loss error: signed, of this run's rounding draw. None where the loss error is 0."""
    rss: float
    """sqrt(sum (adjoint delta)^2), in units of the loss: the size to expect of another draw."""
    rss_share: float
    """rss over the root-sum-of-squares of all sites."""
    calls: int


@dataclass(slots=True)
class LedgerRecord:
    """The whole account. Shares are by root-sum-of-squares, largest first."""

    loss_error: float
    """Real loss minus that of the fp64 twins, loss scale divided out, summed over all backward passes."""
    predicted: float
    """What the ledger says it should be, to first order."""
    explained: float | None
    """predicted / loss_error; None where it is undefined."""
    method: str
    shares: list[LedgerShare] = field(default_factory=list)
    missing: dict[str, int] = field(default_factory=dict)
    """Calls that could not be repeated in fp64, by name."""
    undefined: str = ""
    """Why nothing can be explained (a non-finite value), or empty."""
    losses: int = 0

    TRUSTED: ClassVar[float] = 0.8
    """Share that must be explained before sites are ranked."""

    @property
    def expected_size(self) -> float:
        """Root-sum-of-squares of all sites: the loss error to expect of another rounding draw, in units of the loss."""
        return math.sqrt(sum(share.rss**2 for share in self.shares))

    @property
    def ranks(self) -> bool:
        """Whether it explains enough to say which call matters most.

        What is left over is compared with the loss error or, where that is small because contributions happened to cancel, with its
        expected size.
        """
        if self.explained is None:
            return False
        return abs(self.predicted - self.loss_error) <= (1 - self.TRUSTED) * max(abs(self.loss_error), self.expected_size)
