"""Dtype plans: what an op could be stored, computed and accumulated in, and what another choice would have done. No torch."""

from __future__ import annotations

from precisionlab.plans.trials import Share, Trial, clopper_pearson, dot_trials, sample_outputs, trials

__all__ = ["Share", "Trial", "clopper_pearson", "dot_trials", "sample_outputs", "trials"]
