"""How numbers, places and counts are written in messages. A number that is missing leaves its phrase out; it is never guessed."""

from __future__ import annotations

import math

from precisionlab.checks.base import Fault
from precisionlab.checks.facts import anywhere, dtype_name, measured
from precisionlab.records import Phase, Site


def number(value: float) -> str:
    """Three significant digits; whole numbers below ten million in full; ``4.85e8`` rather than ``4.85e+08``."""
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value == int(value) and abs(value) < 1e7:
        return str(int(value))
    text = f"{value:.3g}"
    mantissa, found, exponent = text.partition("e")
    return f"{mantissa}e{int(exponent)}" if found else text


def percent(share: float) -> str:
    """A share as a percentage: ``62 %``, ``0.31 %``; shares that round to 0 or 100 but are neither say so."""
    if 0.0 < share < 1e-4:
        return "less than 0.01 %"
    if 0.995 < share < 1.0:
        return "more than 99 %"
    return f"{100.0 * share:.2g} %" if share < 0.995 else f"{100.0 * share:.0f} %"


def place(fault: Fault) -> str:
    """Op and module of the root event (of the sink when there is none): ``aten.exp in sinkhorn``."""
    if fault.event is not None:
        return _at(fault.event.site)
    if fault.sink is None:
        return "the program"
    if fault.sink.name:
        return fault.sink.name
    return _at(fault.sink.site) if fault.sink.site is not None else f"the {fault.sink.kind}"


def _at(site: Site) -> str:
    op = site.op or "an op"
    if site.module:
        return f"{op} in {site.module}"
    return f"{op} in {site.function}()" if site.function and site.function.isidentifier() else op


def passing(fault: Fault) -> str:
    """The phase as an adverb: `` in the backward pass``; empty for forward and other."""
    if fault.event is None:
        return ""
    return {
        Phase.BACKWARD: " in the backward pass",
        Phase.CLIP: " during gradient clipping",
        Phase.SCALER: " in the gradient scaler",
        Phase.OPTIMIZER: " in the optimizer step",
    }.get(fault.event.site.phase, "")


def fmt(fault: Fault, otherwise: str = "its format") -> str:
    """The format of the root event, or ``otherwise`` when it is not known."""
    return dtype_name(fault) or otherwise


def counted(fault: Fault, name: str, noun: str = "values") -> str:
    """``12 of 64 values``, ``12 values``, or just ``values`` when the count is missing."""
    count, total = measured(fault, name), measured(fault, "elements")
    if count is None:
        return noun
    if total is None or total < count:
        return f"{number(count)} {singular(noun) if count == 1 else noun}"
    return f"{number(count)} of {number(total)} {singular(noun) if total == 1 else noun}"


def singular(noun: str) -> str:
    """``value`` of ``values``."""
    if noun.endswith("ies"):
        return noun[:-3] + "y"
    return noun.removesuffix("s")


def when_known(fault: Fault, name: str, template: str) -> str:
    """``template`` with ``{}`` replaced by the number, or nothing when it is missing."""
    value = anywhere(fault, name)
    return template.format(number(value)) if value is not None else ""


def share_when_known(fault: Fault, name: str, template: str) -> str:
    """``template`` with ``{}`` replaced by the share as a percentage, or nothing when it is missing."""
    value = anywhere(fault, name)
    return template.format(percent(value)) if value is not None else ""


def joined(*parts: str) -> str:
    """The non-empty parts as one clause list: ``a, b, c``."""
    return ", ".join(part for part in parts if part)


def sentence(*parts: str) -> str:
    """The parts joined by spaces, with a capital where the first part begins with an English word, and a full stop."""
    text = " ".join(part.strip() for part in parts if part.strip())
    return text if text.endswith((".", "?")) else f"{text}."


def subnormal_message(fault: Fault) -> str:
    """What a flush that leaves subnormals did: ``... leaves 12 of 16 values below the normal range of fp16, with few digits``."""
    numbers = joined(
        when_known(fault, "flushed", "{} became zero"),
        when_known(fault, "true_max_abs", "largest exact magnitude {}"),
        when_known(fault, "smallest_normal", "full precision ends at {}"),
    )
    text = f"{place(fault)} leaves {counted(fault, 'subnormal')} below the normal range of {fmt(fault)}, with few digits{passing(fault)}"
    return sentence(f"{text} ({numbers})" if numbers else text)


def code_line(fault: Fault) -> str:
    """The source line as `` `h = h + f(h)` `` with a preposition, for advice: `` in `h = h + f(h)` ``; empty when unknown."""
    text = fault.event.site.line_text.strip() if fault.event is not None else ""
    if not text:
        return ""
    return f" in `{text if len(text) <= 80 else text[:77] + '...'}`"


def other_evidence(fault: Fault, *shown: str, most: int = 4) -> str:
    """Free-form evidence of a protocol event: ``scale 65536, norm 3.2e4``; names in ``shown`` and NaN are left out."""
    if fault.event is None:
        return ""
    found = []
    for name, value in fault.event.evidence.items():
        if name in (*shown, "dtype", "elements") or (isinstance(value, float) and math.isnan(value)):
            continue
        words = name.replace("_", " ")
        if isinstance(value, bool):
            found.append(words if value else f"not {words}")
        elif isinstance(value, (int, float)):
            found.append(f"{words} {number(float(value))}")
        elif value:
            found.append(f"{words} {value}")
    return ", ".join(found[:most])
