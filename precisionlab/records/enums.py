"""Closed sets of words used everywhere: verdicts, kinds of fault, phases, events and sinks."""

from __future__ import annotations

from enum import Enum


class _Word(str, Enum):
    """A string enum whose ``str()`` is its value, so that it prints and serialises as the plain word."""

    def __str__(self) -> str:
        return str(self.value)

    # Enum hashes the member's name in Python; the word itself hashes in C, and words are dictionary keys in the per-op path
    __hash__ = str.__hash__


class Verdict(_Word):
    """What an audit says of an op, a column or a whole run."""

    SAFE = "safe"
    RISKY = "risky"
    BROKEN = "broken"
    UNKNOWN = "unknown"

    @property
    def severity(self) -> int:
        """0 safe, 1 unknown, 2 risky, 3 broken: larger is worse."""
        return _SEVERITY[self]

    @staticmethod
    def worst(verdicts: list[Verdict] | tuple[Verdict, ...]) -> Verdict:
        """The worst of several verdicts; ``SAFE`` of none."""
        return max(verdicts, key=lambda v: v.severity, default=Verdict.SAFE)


_SEVERITY = {Verdict.SAFE: 0, Verdict.UNKNOWN: 1, Verdict.RISKY: 2, Verdict.BROKEN: 3}


class Kind(_Word):
    """The kind of a fault, by cause."""

    OVERFLOW = "overflow"
    UNDERFLOW = "underflow"
    SWAMPING = "swamping"
    CANCELLATION = "cancellation"
    ACCUMULATION = "accumulation"
    DISCRETE_FLIP = "discrete-flip"
    DOMAIN = "domain"
    RANGE_CAST = "range-cast"
    PRECISION_LOSS = "precision-loss"
    ERROR_GROWTH = "error-growth"
    SCALER = "scaler"
    OPTIMIZER_STATE = "optimizer-state"
    SEMANTICS = "semantics"


class Phase(_Word):
    """The part of a training step in which an op ran."""

    FORWARD = "forward"
    BACKWARD = "backward"
    CLIP = "clip"
    SCALER = "scaler"
    OPTIMIZER = "optimizer"
    OTHER = "other"


class EventKind(_Word):
    """What one op did to its numbers. An event is no fault yet: its consequence at a sink decides."""

    OVERFLOW = "overflow"
    """A non-finite result of finite operands whose exact value is finite."""
    DOMAIN = "domain"
    """A non-finite result because rounded operands left the domain of the function (log 0, acos 1.001, 0/0)."""
    FLUSH = "flush"
    """A material share of the energy of the result became zero in storage."""
    LOST = "lost"
    """An addition that lost most of one addend (swamping)."""
    CAST = "cast"
    """An integer, or an exactly integral value, that the target format cannot hold."""
    CONSTANT = "constant"
    """A constant that its format rounds to something that acts differently (0, 1, or infinity)."""
    RHO = "rho"
    """A local error above the condition-aware bound of the op: its accumulation or internal arithmetic is too narrow."""
    GAIN = "gain"
    """Inherited error that this op amplified (cancellation, a function near a zero or a pole)."""
    FLIP = "flip"
    """A comparison or selection that the fp64 twin decides otherwise."""
    TIE = "tie"
    """A selection among candidates that are equal only in the low precision."""
    PROTOCOL = "protocol"
    """The training loop used scaler, clipping, gradients or optimizer in an order that changes the result."""
    GROWTH = "growth"
    """Over several sizes: an error that grows exponentially, or a limit that is reached before the size that is wanted."""


class SinkKind(_Word):
    """A place where a number leaves the arithmetic and does something."""

    OUTPUT = "output"
    """An output of an outermost module."""
    LOSS = "loss"
    """A value on which backward was called."""
    EXIT = "exit"
    """A tensor still referenced when the audit ended."""
    GRADIENT = "gradient"
    """The gradient of a parameter, when an optimizer uses it or when the audit ends."""
    UPDATE = "update"
    """The change of a parameter made by one optimizer step."""
    STATE = "state"
    """A tensor of optimizer state."""
    ACCUMULATOR = "accumulator"
    """A long-lived tensor updated in place (EMA, running statistics, counters)."""
    DECISION = "decision"
    """A bool or integer where it is used: a Python condition, an index, a selected expert."""
    ITEM = "item"
    """A value read into Python by ``.item()``."""
