"""What a check is: one finding code, in one file, whose docstring is the explain text, the docs page and the SARIF help."""

from __future__ import annotations

from dataclasses import dataclass, field

from precisionlab.errors import RegistryError
from precisionlab.records import EventRecord, Kind, SinkRecord, Verdict


@dataclass(frozen=True)
class Fault:
    """One fault as the judge sees it: the root event and what became of it.

    ``event`` is None when a sink shows a material difference that no event explains. ``sink`` is the worst consequence,
    ``sinks`` are all of them, worst first. ``sink`` is None for an event that reached no sink materially.
    """

    event: EventRecord | None
    sink: SinkRecord | None
    verdict: Verdict
    sinks: tuple[SinkRecord, ...] = field(default=())

    def number(self, name: str, default: float = 0.0) -> float:
        """A number of the event's evidence, else of the sink's, else ``default``."""
        for record in (self.event, self.sink):
            if record is not None and name in record.evidence:
                found = record.evidence[name]
                if isinstance(found, (int, float)):
                    return float(found)
        return default

    def text(self, name: str, default: str = "") -> str:
        """A word of the event's evidence, else of the sink's, else ``default``."""
        for record in (self.event, self.sink):
            if record is not None and name in record.evidence:
                return str(record.evidence[name])
        return default


class Check:
    """Base of the checks. Subclasses set the class attributes and override the three functions; they are never instantiated.

    The docstring has the headings: What it means · Why it hurts · How it is measured · Smallest example · Fix · When to ignore ·
    Known limits.
    """

    code: str
    title: str
    kind: Kind

    @classmethod
    def claims(cls, fault: Fault) -> bool:
        """Whether this check is the one that describes ``fault``. Of the checks that claim one, the first by ``order`` wins."""
        raise NotImplementedError

    @classmethod
    def message(cls, fault: Fault) -> str:
        """What happened, with its numbers, in one sentence. The consequence is added by the judge."""
        raise NotImplementedError

    @classmethod
    def advice(cls, fault: Fault) -> str:
        """What to change, concretely: which expression, which dtype, and why that repairs it."""
        raise NotImplementedError

    order: int = 100
    """Smaller is asked first: specific checks before general ones."""


_CHECKS: dict[str, type[Check]] = {}


def check(cls: type[Check]) -> type[Check]:
    """Class decorator: registers a check under its code. Raises ``RegistryError`` on a duplicate code."""
    if cls.code in _CHECKS:
        raise RegistryError(f"{cls.code} is registered twice: {_CHECKS[cls.code].__name__} and {cls.__name__}")
    _CHECKS[cls.code] = cls
    return cls


def all_checks() -> dict[str, type[Check]]:
    """Code -> check, in the order of the codes."""
    return dict(sorted(_CHECKS.items()))


def check_for(fault: Fault) -> type[Check] | None:
    """The check that describes a fault, or None."""
    return min((c for c in _CHECKS.values() if c.claims(fault)), key=lambda c: (c.order, c.code), default=None)
