"""Checks of the loop protocol: one code stands for several faults, each with its words and its repair.

The trackers name a fault; the check that lists the name claims it. No rounding is involved, so the numbers say what was done, not how
far it is off.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from precisionlab.checks.base import Check, Fault, all_checks
from precisionlab.checks.wording import other_evidence, place, sentence
from precisionlab.records import EventKind


class ProtocolCheck(Check):
    """Base of these checks. Subclasses set ``faults`` besides code, title and kind."""

    faults: ClassVar[Mapping[str, tuple[str, str]]]
    """Name of a fault -> what the place does (``clips gradients that ...``), and what to change. The first stands for unknown names."""
    takes_unknown: ClassVar[bool] = False
    """Whether it describes protocol faults that no check lists."""
    order = 10

    @classmethod
    def claims(cls, fault: Fault) -> bool:
        event = fault.event
        if event is None or event.kind is not EventKind.PROTOCOL:
            return False
        return event.detail in cls.faults or (cls.takes_unknown and event.detail not in protocol_codes())

    @classmethod
    def message(cls, fault: Fault) -> str:
        numbers = other_evidence(fault)
        text = f"{place(fault)} {cls._words(fault)[0]}"
        return sentence(f"{text} ({numbers})" if numbers else text)

    @classmethod
    def advice(cls, fault: Fault) -> str:
        return cls._words(fault)[1]

    @classmethod
    def _words(cls, fault: Fault) -> tuple[str, str]:
        name = fault.event.detail if fault.event is not None else ""
        return cls.faults.get(name) or next(iter(cls.faults.values()))


def protocol_codes() -> dict[str, str]:
    """Name of a protocol fault -> the code of the check that describes it."""
    import precisionlab.checks.catalogue  # noqa: F401  registers the checks

    return {name: check.code for check in all_checks().values() if issubclass(check, ProtocolCheck) for name in check.faults}
