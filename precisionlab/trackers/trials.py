"""Trials in an audit: what other accumulations would have done to the sums that were made, on a sample of their outputs.

An op site is sampled at its first execution and again at a few later ones, as long as the estimated cost stays within a share of the
estimated cost of the audit. Both estimates count work, not time, so that the same program gives the same report. What is kept between
sampling and emulation are operands of some dozens of outputs; sums of one length are then emulated side by side, when the report is made
or when they fill ``PENDING_BYTES``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from precisionlab.backends.emulation import emulable
from precisionlab.backends.live import current
from precisionlab.backends.lookup import entries_for, entry_for
from precisionlab.formats import FP32, AccumulationOrder, AccumulationPlan, Format, get_format
from precisionlab.ops.registry import Family
from precisionlab.plans import Sample, Trial, clopper_pearson, sample_trials
from precisionlab.records import OpRecord, TrialRecord, TrialRole
from precisionlab.shadow.call import OpCall
from precisionlab.trackers.pairs import NAMES
from precisionlab.trackers.plans import HALVES, Plans
from precisionlab.trackers.terms import NoTerms, Terms, samples, terms_of

SHARE, SHARE_ASKED = 0.03, 0.2
"""Of the estimated cost of the audit that trials may take; where they are what was asked for (a target machine, preset full)."""
AT_FIRST_NS, AT_FIRST_ASKED_NS = 3e7, 2e9
"""What they may take before anything else has been done, so that short programs have trials too."""
OP_NS, ELEMENT_NS = 2.0e5, 4.0
"""Estimated cost of auditing an op: fixed, and for each element of its results. Measured, bench/speed.py: 250 us an op on one core."""
SAMPLING_NS, TERM_NS = 1.0e6, 16.0
"""Estimated cost of a trial: sampling a site and summing up, and adding one term under one plan. Measured on one core."""
SAMPLED_AT = (1, 4, 16)
"""Executions of a site at which it is sampled, or at the first after them that the budget allows."""
PENDING_BYTES = 32 << 20
"""Of operands that wait to be emulated."""

_SUMMING = frozenset(
    str(family.value)
    for family in (
        Family.DOT,
        Family.CONVOLUTION,
        Family.REDUCTION,
        Family.SOFTMAX,
        Family.NORMALISATION,
        Family.SCAN,
        Family.ATTENTION,
        Family.INDEXING,
    )
)


@dataclass(frozen=True)
class _Job:
    """A sample that waits, with the plans to try on it."""

    record: OpRecord
    sample: Sample
    plans: tuple[tuple[AccumulationPlan, TrialRole], ...]


class Trials:
    """Samples ops as they are executed, and writes ``OpRecord.trials``. ``m``: outputs sampled at a time; ``asked``: see ``SHARE``."""

    def __init__(self, plans: Plans, m: int = 32, *, asked: bool = False) -> None:
        self.plans = plans
        self.m = m
        self.spent_ns = 0.0
        self.share, self.earned_ns = (SHARE_ASKED, AT_FIRST_ASKED_NS) if asked else (SHARE, AT_FIRST_NS)
        self._seen: dict[int, int] = {}
        """id of a record -> how often it was sampled."""
        self._pending: list[_Job] = []
        self._bytes = 0
        self._number = 0

    def op(self, call: OpCall, record: OpRecord) -> None:
        """After an op was measured."""
        self.earned_ns += self.share * (OP_NS + ELEMENT_NS * call.outputs[0].lo.numel())
        if record.family not in _SUMMING:
            return
        key = id(record)
        times = self._seen.get(key, 0)
        if times >= len(SAMPLED_AT) or record.count < SAMPLED_AT[times]:
            return
        if not samples(call.info.name) or not any(pair.lo.dtype in HALVES for pair in call.outputs):
            self._seen[key] = len(SAMPLED_AT)
            if call.info.rule.length is not None:  # it sums
                known = samples(call.info.name)
                record.trials_skipped = "no result is stored in half precision" if known else f"the terms of {call.info.name} are not known"
            return
        if self.spent_ns + SAMPLING_NS > self.earned_ns:
            record.trials_skipped = record.trials_skipped or "the budget for trials was spent"
            return
        self._seen[key] = times + 1
        self._number += 1
        self.spent_ns += SAMPLING_NS
        with np.errstate(all="ignore"):  # infinities are data here, and the program's stderr is its own
            self._sample(call, record)

    def _sample(self, call: OpCall, record: OpRecord) -> None:
        rng = np.random.default_rng(self._number)
        try:
            terms = terms_of(call, self.m, rng)
        except NoTerms as reason:
            if not record.trials:
                record.trials_skipped = str(reason)
            return
        if terms.dtype not in HALVES:
            record.trials_skipped = f"the sum is stored in {NAMES.get(terms.dtype, str(terms.dtype))}"
            return
        storage = get_format(NAMES[terms.dtype])
        plans = self._candidates(call, storage)
        cost = TERM_NS * terms.left.size * len(plans)
        if self.spent_ns + cost > self.earned_ns:
            self._seen[id(record)] -= 1
            if not record.trials:
                record.trials_skipped = "the budget for trials was spent"
            return
        self.spent_ns += cost
        record.trials_skipped = ""
        record.reduction_length = max(record.reduction_length, terms.length)
        self._pending.append(_Job(record, _sample(terms, storage, plans), plans))
        self._bytes += 16 * terms.left.size
        if self._bytes > PENDING_BYTES:
            self.finish()

    def _candidates(self, call: OpCall, storage: Format) -> tuple[tuple[AccumulationPlan, TrialRole], ...]:
        """Each plan once, under the first reason for it."""
        plans: dict[AccumulationPlan, TrialRole] = {}
        executed = self._executed(call, storage)
        if executed is not None:
            plans[executed] = TrialRole.EXECUTED
        target = self.plans.target
        if target is not None:
            for entry in entries_for(target, call.info.name, storage.name, call.args, call.kwargs):
                plans.setdefault(emulable(entry), TrialRole.TARGET)
        for candidate in candidates(storage):
            plans.setdefault(candidate, TrialRole.CANDIDATE)
        return tuple(plans.items())

    def _executed(self, call: OpCall, storage: Format) -> AccumulationPlan | None:
        if self.plans.replaces(call):
            return AccumulationPlan(AccumulationOrder.SEQUENTIAL, FP32)
        if call.outputs[0].lo.device.type != "cpu":
            return None
        entry = entry_for(current(), call.info.name, storage.name, call.args, call.kwargs)
        return emulable(entry) if entry is not None else None

    def finish(self) -> None:
        """Emulate what waits, and write it to the records."""
        pending, self._pending, self._bytes = self._pending, [], 0
        able: list[_Job] = []
        for job in pending:
            sample = _storable(job.sample)
            if sample is not None:
                able.append(replace(job, sample=sample))
            elif not job.record.trials:
                job.record.trials_skipped = "no sampled output fits its storage format"
        found = sample_trials([(job.sample, [plan for plan, _ in job.plans]) for job in able])
        for job, results in zip(able, found, strict=True):
            new = [_record(trial, role, job.sample.terms.shape[1]) for trial, (_, role) in zip(results, job.plans, strict=True)]
            job.record.trials = _pooled(job.record.trials, new)


def candidates(storage: Format) -> tuple[AccumulationPlan, ...]:
    """What hardware and kernels do with sums whose results are stored in ``storage``, the widest first."""
    return (
        AccumulationPlan(AccumulationOrder.SEQUENTIAL, FP32),
        AccumulationPlan(AccumulationOrder.BLOCKED, storage, block=128, outer=FP32),
        AccumulationPlan(AccumulationOrder.SPLIT_K, FP32, splits=8, stored=storage, outer=storage),
        AccumulationPlan(AccumulationOrder.SEQUENTIAL, storage),
    )


def _sample(terms: Terms, storage: Format, plans: tuple[tuple[AccumulationPlan, TrialRole], ...]) -> Sample:
    """Products are aligned by their operands, which matters to matrix units alone."""
    aligned = any(plan.order is AccumulationOrder.BLOCK_FMA for plan, _ in plans)
    if terms.right is not None and aligned:
        found = Sample.of_products(terms.left, terms.right, storage, divisor=terms.divisor, uniform=terms.uniform)
        return replace(found, root=terms.root)
    left = terms.left.astype(np.float64)
    products = left if terms.right is None else left * terms.right
    return Sample(products, storage, None, terms.divisor, terms.root, terms.uniform)


def _storable(sample: Sample) -> Sample | None:
    """The outputs whose exact results are finite in storage: where they are not, no accumulation is to blame. None: there are none."""
    with np.errstate(over="ignore", invalid="ignore"):
        sums = sample.terms.sum(1) / sample.divisor
        fits = np.abs(np.sqrt(sums) if sample.root else sums) < sample.storage.overflow_threshold
    if fits.all():
        return sample
    if not fits.any():
        return None
    uniform = None if sample.uniform is None else int(fits[: sample.uniform].sum())
    divisor = sample.divisor[fits] if isinstance(sample.divisor, np.ndarray) else sample.divisor
    alignment = None if sample.alignment is None else sample.alignment[fits]
    return replace(sample, terms=sample.terms[fits], alignment=alignment, divisor=divisor, uniform=uniform)


def _narrowest(plan: AccumulationPlan) -> Format:
    return min((plan.format, plan.outer_format, plan.stored_format), key=lambda fmt: (fmt.precision, fmt.max))


def _record(trial: Trial, role: TrialRole, terms: int) -> TrialRecord:
    stagnated, overflowed = trial.stagnated, trial.overflowed
    return TrialRecord(
        plan=str(trial.plan),
        role=role,
        order=trial.plan.order.value,
        accumulation=_narrowest(trial.plan).name,
        terms=terms,
        outputs=stagnated.total,
        emulated=trial.emulated,
        error_u=trial.error_rms_u,
        error_max_u=trial.error_max_u,
        rho_max=trial.rho_max,
        rho_p99=trial.rho_p99,
        stagnated_terms=trial.stagnated_terms,
        stagnated=stagnated.count,
        stagnated_low=stagnated.low,
        stagnated_high=stagnated.high,
        overflowed=overflowed.count,
        overflowed_low=overflowed.low,
        overflowed_high=overflowed.high,
        largest=trial.largest,
        largest_stagnated=trial.largest_stagnated,
        largest_overflowed=trial.largest_overflowed,
    )


def _pooled(known: list[TrialRecord], new: Iterable[TrialRecord]) -> list[TrialRecord]:
    """Trials of one site at several executions: counts and mean squares of all outputs, the worst of maxima."""
    pooled = {trial.plan: trial for trial in known}
    for trial in new:
        before = pooled.get(trial.plan)
        pooled[trial.plan] = trial if before is None else _both(before, trial)
    return list(pooled.values())


def _both(a: TrialRecord, b: TrialRecord) -> TrialRecord:
    total = a.outputs + b.outputs

    def mean(of_a: float, of_b: float) -> float:
        return (a.outputs * of_a + b.outputs * of_b) / total if total else 0.0

    def share(count: int) -> tuple[float, float]:
        return clopper_pearson(count, total)

    stagnated, overflowed = a.stagnated + b.stagnated, a.overflowed + b.overflowed
    stagnated_low, stagnated_high = share(stagnated)
    overflowed_low, overflowed_high = share(overflowed)
    return replace(
        a,
        terms=max(a.terms, b.terms),
        outputs=total,
        emulated=a.emulated or b.emulated,
        error_u=math.sqrt(mean(a.error_u**2, b.error_u**2)),
        error_max_u=max(a.error_max_u, b.error_max_u),
        rho_max=max(a.rho_max, b.rho_max),
        rho_p99=max(a.rho_p99, b.rho_p99),
        stagnated_terms=mean(a.stagnated_terms, b.stagnated_terms),
        stagnated=stagnated,
        stagnated_low=stagnated_low,
        stagnated_high=stagnated_high,
        overflowed=overflowed,
        overflowed_low=overflowed_low,
        overflowed_high=overflowed_high,
        largest=a.largest + b.largest,
        largest_stagnated=a.largest_stagnated + b.largest_stagnated,
        largest_overflowed=a.largest_overflowed + b.largest_overflowed,
    )
