"""Lost addends: sums whose rounding discards most of one operand (swamping).

With base b and exact increment d, the stored sum s moves by e = s - b. The share lost is ||e - d|| / ||d||. Rounding can lose at most
u |s| per element, so a sum with ||d|| > 2 u ||s|| needs no look (Higham 2002, section 4.2).
"""

from __future__ import annotations

import math
from typing import Any

import torch

from precisionlab.records import Evidence, Site
from precisionlab.shadow.call import OpCall, Pair
from precisionlab.shadow.measure import Displacement, LostStats, Stats, lost_addend
from precisionlab.shadow.memory import UNIT_ROUNDOFF
from precisionlab.trackers.pairs import NAMES, rms_of

Tensor = torch.Tensor

_PAIRWISE = frozenset(
    f"aten.{name}" for name in ("add", "add_", "sub", "sub_", "rsub", "_foreach_add_", "_foreach_sub_", "_foreach_add", "_foreach_sub")
)
_GENERAL = frozenset(
    f"aten.{prefix}{name}{suffix}" for prefix in ("", "_foreach_") for name in ("lerp", "addcmul", "addcdiv") for suffix in ("", "_")
)
_DECAYS = frozenset(("aten.mul_", "aten._foreach_mul_"))
"""Multiplication by a number near 1 adds (c - 1) x to x: the first half of a decaying average."""
ADDITIVE = _PAIRWISE | _GENERAL | _DECAYS
"""Ops that add an increment to a base."""

COUNTED = "accumulator"
"""Beginning of the mark that accumulators leave on a twin."""

_SMALL = 1 << 16
_NEAR_ONE = 0.125


def lost_in_sum(call: OpCall, pair: Pair, stats: Stats, limit: float, site: Site) -> LostStats | None:
    """Numbers of the lost addend when its lost share passes ``limit``; None otherwise, or where the op adds no second tensor.

    ``site``: where the op ran. A number that is added there to what was made there is a counter's.
    """
    if (stats.elements > _SMALL or not call.info.in_place) and not _suspicious(call, pair, stats):
        return None
    if stats.max_abs > torch.finfo(pair.lo.dtype).max / 2:
        return None  # a mask: what is added to the end of the range is meant to vanish
    found = increments(call, pair, site)
    if found is None:
        return None
    base, addend, alpha = found
    lost = lost_addend(base, addend, pair.lo, alpha)
    if not call.info.in_place and lost.addend_sq > lost.base_sq and call.info.name in _PAIRWISE and alpha == 1.0:
        lost = lost_addend(addend, base, pair.lo, 1.0)
    return lost if lost.addend_sq > 0 and lost.lost_sq > limit * limit * lost.addend_sq else None


def lost_evidence(lost: LostStats, lo: Tensor) -> Evidence:
    """The numbers of a lost addend, for its event: shares, sizes of addend and base, and the spacing at the base."""
    n = max(lo.numel(), 1)
    base = math.sqrt(lost.base_sq / n)
    return {
        "lost_share": math.sqrt(lost.lost_sq / lost.addend_sq),
        "swamped": lost.swamped,
        "elements": n,
        "addend_rms": math.sqrt(lost.addend_sq / n),
        "base_rms": base,
        "spacing": 2.0 ** math.floor(math.log2(base)) * 2 * UNIT_ROUNDOFF[lo.dtype] if base > 0 else 0.0,
        "dtype": NAMES.get(lo.dtype, str(lo.dtype)),
    }


def stalled_evidence(moved: Displacement, value: Tensor) -> Evidence:
    """The same numbers where the addend is known from how far a value should have moved."""
    return {
        "lost_share": moved.error,
        "swamped": moved.stalled,
        "elements": moved.elements,
        "addend_rms": math.sqrt(moved.hi_sq / max(moved.elements, 1)),
        "base_rms": float(value.detach().double().square().mean().sqrt()),
        "dtype": NAMES.get(value.dtype, str(value.dtype)),
    }


def pending_write_back(call: OpCall, pair: Pair, limit: float) -> tuple[torch.dtype, LostStats] | None:
    """For a wide sum whose base is an exact copy of a narrow tensor: what rounding it back to that format would lose."""
    if call.info.in_place or all(p.twin.narrow is None for p in call.inputs):
        return None
    found = increments(call, pair)
    if found is None:
        return None
    base, addend, alpha = found
    twins = {id(p.lo): p.twin for p in call.inputs}
    state = twins.get(id(base))
    if state is None or state.narrow is None:
        if call.info.name not in _PAIRWISE or alpha != 1.0:
            return None
        base, addend = addend, base
        state = twins.get(id(base))
        if state is None or state.narrow is None:
            return None
    rounded = pair.lo.to(state.narrow).to(pair.lo.dtype)
    exact = pair.lo.double() - base.double()
    lost = lost_addend(base, exact, rounded, 1.0)
    worth = lost.addend_sq > 0 and lost.lost_sq > limit * limit * lost.addend_sq
    return (state.narrow, lost) if worth else None


def increments(call: OpCall, pair: Pair, site: Site | None = None) -> tuple[Tensor, Tensor, float] | None:
    """``(base, addend, alpha)`` with base + alpha * addend the exact sum."""
    name, args = call.info.name, call.args
    if name in _PAIRWISE:
        first, second = args[0], args[1] if len(args) > 1 else None
        if isinstance(first, (list, tuple)):
            index = next((i for i, p in enumerate(call.outputs) if p is pair), 0)
            if not isinstance(second, (list, tuple)) or index >= len(second):
                return None
            first, second = first[index], second[index]
        if isinstance(first, Tensor) and isinstance(second, (int, float)) and _counts(call, first, site):
            second = torch.full_like(first, float(second), dtype=torch.float64)
        if not (isinstance(first, Tensor) and isinstance(second, Tensor)) or (second.numel() == 1 and first.numel() > 1):
            return None
        if not (first.dtype in UNIT_ROUNDOFF and second.dtype in UNIT_ROUNDOFF) or first.is_complex() or second.is_complex():
            return None
        alpha = call.kwargs.get("alpha", args[2] if len(args) > 2 else 1)
        if not isinstance(alpha, (int, float)):
            return None
        if "rsub" in name:
            first, second = second, first
        base = call.before.get(id(first), first)
        if call.info.in_place and base is first:
            return None
        return base, second, -float(alpha) if "sub" in name else float(alpha)
    index = next((i for i, p in enumerate(call.outputs) if p is pair), 0)
    operands = [a[index] if isinstance(a, (list, tuple)) and index < len(a) else a for a in args]
    base = operands[0]
    if not isinstance(base, Tensor):
        return None
    if call.info.in_place:
        if id(base) not in call.before:
            return None
        base = call.before[id(base)]
    if name in _DECAYS:
        factor = operands[1]
        factor = float(factor) if isinstance(factor, Tensor) and factor.numel() == 1 and not factor.is_complex() else factor
        if not isinstance(factor, (int, float)) or not 0.0 < abs(factor - 1.0) < _NEAR_ONE:
            return None
        return base, base.double(), float(factor) - 1.0
    exact = _exact(name, [base, *operands[1:]], call.kwargs)
    if exact is None:
        return None
    if "lerp" in name and not call.info.in_place:
        end = operands[1]
        if isinstance(end, Tensor) and end.shape == pair.lo.shape and _distance(exact, end) < _distance(exact, base):
            base = end
    if base.shape != pair.lo.shape:
        base = base.expand_as(pair.lo)
    return base, exact - base.double(), 1.0


def _counts(call: OpCall, base: Tensor, site: Site | None) -> bool:
    """A number added to a value that the same line had added to before: a counter. An eps goes to a fresh denominator."""
    twin = next((p.twin for p in call.inputs if p.lo is base), None)
    if twin is None:
        return False
    if call.info.in_place:
        return twin.marks is not None and any(key.startswith(COUNTED) for key in twin.marks)
    return site is not None and twin.site is site


def _exact(name: str, operands: list[Any], kwargs: dict[str, Any]) -> Tensor | None:
    """The exact result on the rounded operands of lerp, addcmul and addcdiv."""
    wide: list[Any] = [a.double() if isinstance(a, Tensor) and a.dtype in UNIT_ROUNDOFF else a for a in operands]
    if len(wide) < 3 or not all(isinstance(a, (Tensor, int, float)) for a in wide[:3]):
        return None
    if "lerp" in name:
        mixed: Tensor = wide[0] + wide[2] * (wide[1] - wide[0])
        return mixed
    value = kwargs.get("value", wide[3] if len(wide) > 3 else 1)
    if not isinstance(value, (int, float)):
        return None
    combined: Tensor = wide[0] + value * (wide[1] * wide[2] if "addcmul" in name else wide[1] / wide[2])
    return combined


def _distance(a: Tensor, b: Tensor) -> float:
    return float((a - b.double()).square().sum())


def _suspicious(call: OpCall, pair: Pair, stats: Stats) -> bool:
    """Whether the smaller operand is small enough against the result to be lost at all."""
    rounding = 2.0 * UNIT_ROUNDOFF[pair.lo.dtype] * math.sqrt(stats.lo_sq / stats.elements)
    for p in call.inputs:
        twin = p.twin
        rms = twin.lo_rms if twin.lo_rms >= 0.0 and p.hi is twin.hi else rms_of(p)
        if rms < rounding:
            return True
    return not call.inputs
