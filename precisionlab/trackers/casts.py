"""Casts: what is known of them without a look, and what they do to integers and to sums that are rounded back to a narrow format."""

from __future__ import annotations

import math

import torch

from precisionlab.records import EventKind, Evidence, OpRecord
from precisionlab.shadow.call import OpCall, Pair
from precisionlab.shadow.measure import Stats
from precisionlab.shadow.memory import UNIT_ROUNDOFF
from precisionlab.trackers.addends import lost_evidence
from precisionlab.trackers.log import RunLog
from precisionlab.trackers.pairs import NAMES
from precisionlab.trackers.plans import HALVES

Tensor = torch.Tensor

_WIDENING = frozenset(
    (narrow, wide)
    for narrow, wide in (
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float64),
        (torch.bfloat16, torch.float64),
        (torch.float32, torch.float64),
        (torch.float32, torch.float32),
    )
)
"""(from, to) of casts that change no value."""
_SMALL_CAST = 4096


def known_cast(
    call: OpCall, record: OpRecord, pair: Pair, inputs: list[Pair], in_drift: float, tainted: bool, carried: frozenset[int]
) -> bool:
    """Casts whose effect is known without a look: to a wider format nothing rounds; fp32 to bf16 rounds once and keeps the range."""
    source = call.args[0]
    if len(inputs) != 1 or source.dtype not in UNIT_ROUNDOFF or inputs[0].lo is not source:
        return False
    origin, twin, lo = inputs[0].twin, pair.twin, pair.lo
    if (source.dtype, lo.dtype) in _WIDENING:
        rounding = 0.0
    elif source.dtype is torch.float32 and lo.dtype is torch.bfloat16 and lo.numel() > _SMALL_CAST and origin.pending is None:
        rounding = 0.5 * UNIT_ROUNDOFF[torch.bfloat16]
    else:
        return False
    twin.drift = math.hypot(in_drift, rounding)
    twin.nonfinite, twin.events, twin.lo_rms, twin.error_rms = tainted, carried, origin.lo_rms, origin.error_rms
    if rounding == 0.0 and source.dtype in HALVES:
        twin.narrow = source.dtype
    drift_u = twin.drift / twin.u
    record.drift_u_sum += drift_u
    record.drift_u_max = max(record.drift_u_max, drift_u)
    return True


def cast_events(log: RunLog, call: OpCall, pair: Pair, inputs: list[Pair], stats: Stats, carried: frozenset[int]) -> list[int]:
    """Events of a cast: integers that the format cannot hold, and a step that rounding back to a narrow format loses."""
    site = log.site(call.module, call.info.name, call.phase, call.place)
    raised: list[int] = []
    lo, twin = pair.lo, pair.twin
    source = call.args[1] if call.info.in_place and len(call.args) > 1 else call.args[0]
    if not isinstance(source, Tensor):
        return raised
    if source.dtype not in UNIT_ROUNDOFF:
        if stats.diff_sq > 0 or stats.introduced:
            different = lo.double() != source
            inexact = int(different.sum())
            if inexact and not stats.introduced:
                first = int(different.flatten().to(torch.uint8).argmax())
                evidence: Evidence = {
                    "inexact": inexact,
                    "elements": lo.numel(),
                    "example_from": float(source.expand_as(lo).reshape(-1)[first]),
                    "example_to": float(lo.reshape(-1)[first]),
                    "dtype": NAMES.get(lo.dtype, str(lo.dtype)),
                }
                raised.append(log.event(EventKind.CAST, site, carried, evidence, "integer to float"))
        return raised
    origin = next((p.twin for p in inputs if p.lo is source), None)
    if origin is None:
        return raised
    if source.dtype in HALVES and lo.dtype not in HALVES and not call.info.in_place:
        twin.narrow = source.dtype
    if origin.pending is not None and origin.pending[0] is lo.dtype:
        raised.append(log.event(EventKind.LOST, site, carried, lost_evidence(origin.pending[1], lo), "write-back"))
    return raised
