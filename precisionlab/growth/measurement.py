"""What one audit of a sweep measured, as plain numbers. No torch in here."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from precisionlab.formats import BF16, FP16, FP32

UNIT_ROUNDOFFS = {fmt.name: fmt.u for fmt in (FP16, BF16, FP32)}


class Quantity(str, Enum):
    """What is followed along an axis."""

    DRIFT = "drift_u"
    """Normwise drift of everything the outermost module returned, in u of the format under audit."""
    GRADIENT = "gradient_error_u"
    """The same of all gradients of parameters together, when the optimizer uses them, else at the end."""
    PEAK = "peak"
    """Largest exact magnitude at one place of the program that is stored in the format: the headroom is what is left above it."""
    FLUSHED = "flushed_energy_share"
    """Largest share of the energy of one result or gradient that became zero."""
    LOST = "lost_u"
    """Share of an addend that a rounded sum lost, in u: stagnation begins where it is near 1/u."""
    SWAMPED = "swamped_share"
    """Share of the additions, or of the weights that should move, that changed nothing; the worst place."""

    def __str__(self) -> str:
        return str(self.value)


PLACED = (Quantity.PEAK, Quantity.LOST)
"""Quantities that are followed place by place, since another place may lead at another size."""


@dataclass(frozen=True)
class Block:
    """One execution of a module: drift of its output forward, and of the gradients that left it backward, in u; None if not measured."""

    path: str
    signature: str
    """Class and shapes of its own parameters: equal for repeated blocks, whatever they are called."""
    parameters: int
    """How many numbers it holds, those of its children included."""
    drift_u: float
    gradient_drift_u: float | None


@dataclass(frozen=True)
class Measurement:
    """One size, one seed."""

    size: float
    seed: int
    totals: dict[Quantity, float]
    """Quantities of the whole program; those that could not be measured are missing."""
    places: dict[Quantity, dict[str, float]]
    """Quantity -> place (``aten.mm (model.py:41)``) -> value."""
    blocks: tuple[Block, ...] = ()
    tokens_u: tuple[float, ...] = ()
    """Drift per position along the sequence of the outermost output, in u; empty where it has no such dimension."""
    steps_u: tuple[float, ...] = ()
    """Drift of the outputs step by step, in u."""
    parameters: int = 0
    batch_shapes: tuple[tuple[int, ...], ...] = ()
    ops: int = 0
    elements: int = 0
    seconds: float = 0.0
    peak_bytes: int = 0
    nonfinite: str = ""
    """Where the run overflowed first; empty where it did not."""


@dataclass
class Sweep:
    """Measurements along one axis, with what was left out and why."""

    axis: str
    dtype: str
    measurements: list[Measurement] = field(default_factory=list)
    skipped: dict[float, str] = field(default_factory=dict)
    """Size -> why it has no measurement."""
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False
    deterministic: bool = False
    """The seeds changed nothing at the smallest size."""

    @property
    def u(self) -> float:
        """Unit roundoff of the format under audit."""
        return UNIT_ROUNDOFFS[self.dtype]

    @property
    def sizes(self) -> list[float]:
        """Sizes measured, ascending."""
        return sorted({m.size for m in self.measurements})

    def at(self, size: float) -> list[Measurement]:
        """The measurements of one size, by seed."""
        return [m for m in self.measurements if m.size == size]

    def series(self, quantity: Quantity, place: str | None = None) -> tuple[list[float], list[list[float]]]:
        """``(sizes, values per seed)`` of a quantity, at one place for those that have places; sizes without it are left out."""
        rows = []
        for size in self.sizes:
            found = [m.places.get(quantity, {}).get(place) if place is not None else m.totals.get(quantity) for m in self.at(size)]
            kept = [value for value in found if value is not None]
            if kept:
                rows.append((size, kept))
        return [size for size, _ in rows], [row for _, row in rows]

    def places(self, quantity: Quantity) -> list[str]:
        """Every place at which the quantity was measured."""
        return sorted({place for m in self.measurements for place in m.places.get(quantity, {})})
