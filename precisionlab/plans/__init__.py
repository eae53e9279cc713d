"""Dtype plans: what an op could be stored, computed and accumulated in, and what another choice would have done. No torch."""

from __future__ import annotations

from precisionlab.plans.plan import DtypePlan, holds, join_formats, meet_formats
from precisionlab.plans.trials import Sample, Share, Trial, clopper_pearson, dot_trials, sample_outputs, sample_trials, trials

__all__ = [
    "DtypePlan",
    "Sample",
    "Share",
    "Trial",
    "clopper_pearson",
    "dot_trials",
    "holds",
    "join_formats",
    "meet_formats",
    "sample_outputs",
    "sample_trials",
    "trials",
]
