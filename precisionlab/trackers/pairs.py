"""Numbers of a real tensor beside its twin, and what dtypes are called."""

from __future__ import annotations

import math

import torch

from precisionlab.shadow.call import OpCall, Pair
from precisionlab.shadow.measure import measure

NAMES = {
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.complex64: "complex64",
    torch.complex128: "complex128",
    torch.float8_e5m2: "fp8_e5m2",
    torch.float8_e4m3fn: "fp8_e4m3fn",
    torch.float8_e5m2fnuz: "fp8_e5m2fnuz",
    torch.float8_e4m3fnuz: "fp8_e4m3fnuz",
}
"""How reports spell dtypes."""


def relative(diff_sq: float, hi_sq: float) -> float:
    """||lo - hi|| / ||hi||: 0 when equal, infinite when only hi vanishes."""
    if diff_sq <= 0.0:
        return 0.0
    return math.sqrt(diff_sq / hi_sq) if hi_sq > 0.0 else math.inf


def drift_of(p: Pair) -> float:
    """Normwise drift of a pair, measured now."""
    stats = measure(p.lo, p.hi)
    return relative(stats.diff_sq, stats.hi_sq)


def rms_of(p: Pair) -> float:
    """Root mean square of the real values of a pair; remembered on the twin when the pair is its whole storage."""
    whole = p.lo.numel() * p.lo.element_size() == p.lo.untyped_storage().nbytes()
    if whole and p.twin.lo_rms >= 0.0:
        return p.twin.lo_rms
    stats = measure(p.lo, p.hi)
    rms = math.sqrt(stats.lo_sq / stats.elements) if stats.elements else 0.0
    if whole:
        p.twin.lo_rms = rms
    return rms


def grouped(call: OpCall) -> list[tuple[Pair, list[Pair]]]:
    """For list ops: each result with the operands that belong to it, its own list entries and the single tensors all of them share."""
    lists = [a for a in (*call.args, *call.kwargs.values()) if isinstance(a, (list, tuple)) and a and isinstance(a[0], torch.Tensor)]
    single = [p for p in call.inputs if any(p.lo is a for a in call.args)]
    by_id = {id(p.lo): p for p in call.inputs}
    out = []
    for i, pair in enumerate(call.outputs):
        entries = [by_id[id(entry[i])] for entry in lists if i < len(entry) and id(entry[i]) in by_id]
        out.append((pair, entries + single))
    return out
