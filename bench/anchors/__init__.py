"""Published and derived numbers of low-precision arithmetic, measured again: ``./dev bench science``."""

from __future__ import annotations

from bench.anchors import attention, formulas, scaling, sums, training, updates
from bench.anchors.anchor import ANCHORS, Anchor, Check

__all__ = ["ANCHORS", "Anchor", "Check", "attention", "formulas", "scaling", "sums", "training", "updates"]
