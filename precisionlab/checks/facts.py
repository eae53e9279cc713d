"""What the checks ask of a fault: its event, phase, sink and numbers. One vocabulary, so that claims read as sentences."""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import TYPE_CHECKING

from precisionlab.checks.base import Fault
from precisionlab.errors import SettingsError
from precisionlab.records import EventKind, Phase, SinkKind

if TYPE_CHECKING:
    from precisionlab.formats import Format


def event_is(fault: Fault, *kinds: EventKind) -> bool:
    """Whether the root event exists and is of one of ``kinds``."""
    return fault.event is not None and fault.event.kind in kinds


def detail_is(fault: Fault, *details: str) -> bool:
    """Whether the root event exists and its detail is one of ``details``."""
    return fault.event is not None and fault.event.detail in details


def phase_is(fault: Fault, *phases: Phase) -> bool:
    """Whether the root event exists and happened in one of ``phases``."""
    return fault.event is not None and fault.event.site.phase in phases


def sink_is(fault: Fault, *kinds: SinkKind) -> bool:
    """Whether the worst consequence exists and is of one of ``kinds``."""
    return fault.sink is not None and fault.sink.kind in kinds


def unexplained(fault: Fault, *kinds: SinkKind) -> bool:
    """Whether no event explains the fault, and (where ``kinds`` are given) its sink is one of them."""
    return fault.event is None and (not kinds or sink_is(fault, *kinds))


def measured(fault: Fault, name: str) -> float | None:
    """A number that was measured at the root event (at the sink when there is no event); None when it is missing or NaN.

    Unlike ``fault.number`` it never takes a sink's count for the event's: "32 of 64 values" must not mix the two.
    """
    record = fault.event if fault.event is not None else fault.sink
    found = record.evidence.get(name) if record is not None else None
    return _number(found)


def at_sink(fault: Fault, name: str) -> float | None:
    """A number that was measured at the worst sink; None when it is missing or NaN."""
    return _number(fault.sink.evidence.get(name)) if fault.sink is not None else None


def anywhere(fault: Fault, name: str) -> float | None:
    """A number of the event, else of the sink; None when both lack it or it is NaN."""
    return _number(fault.number(name, math.nan))


def _number(found: object) -> float | None:
    if isinstance(found, bool) or not isinstance(found, (int, float)) or math.isnan(found):
        return None
    return float(found)


def op_stem(fault: Fault) -> str:
    """The op without namespace, overload, ``_foreach`` and in-place marks: ``aten._foreach_addcdiv_`` gives ``addcdiv``."""
    site = fault.event.site if fault.event is not None else (fault.sink.site if fault.sink is not None else None)
    if site is None:
        return ""
    parts = site.op.replace("::", ".").split(".")
    name = parts[1] if len(parts) > 1 else parts[0]
    return name.strip("_").removeprefix("foreach_").removeprefix("fused_").strip("_")


def mentions(fault: Fault, *fragments: str) -> bool:
    """Whether the module path, the function name or the source line of the event speaks of one of ``fragments``.

    A fragment of up to four letters must be a whole word (``gate`` is not in ``aggregate``), a longer one the beginning of a word
    (``score`` is in ``scores``), one with other characters may be anywhere. Words end at digits, ``_``, ``.`` and camelCase humps.
    """
    if fault.event is None:
        return False
    site = fault.event.site
    text = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", f"{site.module} {site.function} {site.line_text}").lower()
    return any(_speaks_of(text, fragment) for fragment in fragments)


def _speaks_of(text: str, fragment: str) -> bool:
    if not fragment.isalpha():
        return fragment in text
    return re.search(rf"(?<![a-z]){fragment}" + (r"(?![a-z])" if len(fragment) <= 4 else ""), text) is not None


def limits(fault: Fault) -> Format | None:
    """The format in which the root event happened; None when it is not recorded or not a known one."""
    name = _dtype(fault)
    return _format(name) if name else None


@lru_cache(maxsize=64)
def _format(name: str) -> Format | None:
    from precisionlab.formats import get_format  # numpy: only when a finding is worded, so that ``explain`` starts without it

    try:
        return get_format(name)
    except SettingsError:
        return None


def dtype_name(fault: Fault) -> str:
    """Short name of the format in which the root event happened (``fp16``); empty when it is not recorded."""
    known = limits(fault)
    return known.name if known is not None else _dtype(fault).removeprefix("torch.")


def _dtype(fault: Fault) -> str:
    record = fault.event if fault.event is not None else fault.sink
    return str(record.evidence.get("dtype", "")) if record is not None else ""


def narrow_range(fault: Fault) -> bool:
    """Whether the format has less range than fp32, so that bf16 or fp32 helps: true for fp16 and fp8, and when it is unknown."""
    known = limits(fault)
    return known is None or known.emax < 127
