"""Trials on sampled outputs: they agree with emulating every output, and skip only what is invisible."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

from precisionlab import formats as f
from precisionlab.errors import SettingsError
from precisionlab.formats import AccumulationOrder as Order
from precisionlab.formats import AccumulationPlan as Plan
from precisionlab.plans import Sample, Trial, clopper_pearson, dot_trials, sample_outputs, sample_trials, trials

SEQUENTIAL_FP16 = Plan(Order.SEQUENTIAL, f.FP16)
SEQUENTIAL_FP32 = Plan(Order.SEQUENTIAL, f.FP32)
PLANS = [
    SEQUENTIAL_FP16,
    Plan(Order.SEQUENTIAL, f.BF16),
    Plan(Order.BLOCKED, f.FP16, block=32, outer=f.FP32),
    Plan(Order.PAIRWISE, f.BF16),
    f.H100_FP8,
]
EVERYTHING = 10**9


def matrices(case: int) -> tuple[np.ndarray, np.ndarray, f.Format]:
    """Operands of a random product: size, distribution and storage format differ with ``case``."""
    rng = np.random.default_rng(100 + case)
    k = int(rng.choice([96, 250, 512]))
    storage = f.FP16 if case % 2 else f.BF16
    shapes = ((48, k), (k, 40))
    kind = case % 5
    if kind == 0:
        drawn = [rng.normal(size=s) for s in shapes]
    elif kind == 1:
        drawn = [rng.uniform(0, 1, s) for s in shapes]
    elif kind == 2:
        drawn = [rng.normal(0.5, 1.0, s) for s in shapes]
    elif kind == 3:
        drawn = [np.exp(rng.normal(0, 0.8, s)) for s in shapes]
    else:
        drawn = [rng.normal(size=s) * (rng.random(s) < 0.3) * 80 for s in shapes]
    a, b = (f.round_to(x, storage) for x in drawn)
    return a, b, storage


@cache
def everything(case: int) -> tuple[Trial, ...]:
    """Every plan on every output."""
    a, b, storage = matrices(case)
    return dot_trials(*sample_outputs(a, b, EVERYTHING, np.random.default_rng(0)), storage, PLANS)


@cache
def sampled(case: int, m: int) -> tuple[Trial, ...]:
    a, b, storage = matrices(case)
    return dot_trials(*sample_outputs(a, b, m, np.random.default_rng(case)), storage, PLANS)


def test_a_sample_of_everything_is_everything() -> None:
    a, b, _ = matrices(0)
    left, right = sample_outputs(a, b, EVERYTHING, np.random.default_rng(0))
    assert len(left) == 48 * 40
    np.testing.assert_allclose(np.sort((left * right).sum(1)), np.sort((a @ b).ravel()), rtol=1e-9, atol=1e-9)


def test_the_rms_error_of_512_outputs_is_on_average_that_of_all_to_two_percent() -> None:
    """The rms of m independent errors is known to 1 / sqrt(2 m), 3 % for 512: only the mean over the reductions is as good as 2 %."""
    for i, plan in enumerate(PLANS):
        pairs = [(sampled(case, 512)[i].error_rms_u, everything(case)[i].error_rms_u) for case in range(20)]
        ratios = [few / full for few, full in pairs if math.isfinite(full)]
        assert len(ratios) >= 16
        assert np.mean(ratios) == pytest.approx(1.0, abs=0.02), plan


@pytest.mark.parametrize("m", [32, 128, 512])
def test_the_rms_errors_of_all_lie_in_the_intervals_of_the_samples(m: int) -> None:
    inside = []
    for case in range(20):
        for few, full in zip(sampled(case, m), everything(case), strict=True):
            low, high = few.error_rms_interval
            if math.isfinite(few.error_rms_u) and math.isfinite(full.error_rms_u):
                inside.append(low <= full.error_rms_u <= high)
    assert len(inside) >= 80
    assert np.mean(inside) >= 0.85  # 95 % nominal; five plans share a sample, so twenty independent ones: two standard errors are 10 %


@pytest.mark.parametrize("m", [32, 128, 512])
def test_the_shares_of_all_lie_in_the_intervals_of_the_samples(m: int) -> None:
    inside = []
    for case in range(20):
        for few, full in zip(sampled(case, m), everything(case), strict=True):
            for share, true in ((few.stagnated, full.stagnated), (few.overflowed, full.overflowed)):
                inside.append(true.value in share)
                low, high = clopper_pearson(share.count, share.total, 0.99999)
                assert low <= true.value <= high, (case, few.plan)
    assert np.mean(inside) >= 0.95


def test_the_twenty_reductions_hold_stagnation_and_overflow_and_neither() -> None:
    stagnated = [full.stagnated.value for case in range(20) for full in everything(case)]
    overflowed = [full.overflowed.value for case in range(20) for full in everything(case)]
    for shares in (stagnated, overflowed):
        assert min(shares) == 0
        assert any(0 < share < 1 for share in shares)


def test_the_largest_ratio_of_a_sample_never_exceeds_that_of_all() -> None:
    for case in range(20):
        for few, full in zip(sampled(case, 512), everything(case), strict=True):
            assert few.error_p99_u <= few.error_max_u
            assert few.rho_p99 <= few.rho_max <= full.rho_max


@pytest.mark.parametrize(("count", "total"), [(0, 512), (1, 512), (32, 32), (7, 40), (0, 1)])
def test_intervals_are_those_of_scipy(count: int, total: int) -> None:
    theirs = binomtest(count, total).proportion_ci(0.95, method="exact")
    assert clopper_pearson(count, total) == pytest.approx((theirs.low, theirs.high), rel=1e-12)


def test_none_of_512_means_less_than_072_percent() -> None:
    assert clopper_pearson(0, 512)[1] == pytest.approx(0.0072, abs=5e-5)


def test_a_plan_is_skipped_only_where_its_roundings_are_invisible() -> None:
    terms = f.round_to(np.random.default_rng(1).uniform(0, 1, (200, 64)), f.BF16)
    (skipped,) = trials(terms, f.BF16, [SEQUENTIAL_FP32])
    assert not skipped.emulated
    assert skipped.bound_u < 1 / 8
    stored = f.round_to(f.accumulate(terms, SEQUENTIAL_FP32), f.BF16)
    error = np.abs(stored - terms.sum(1)) / f.BF16.u
    assert skipped.error_rms_u == pytest.approx(math.sqrt((error**2).mean()) / math.sqrt((terms.sum(1) ** 2).mean()), rel=0.01)
    (narrow,) = trials(terms, f.BF16, [SEQUENTIAL_FP16])
    assert narrow.emulated
    (stored_wide,) = trials(terms, f.FP32, [SEQUENTIAL_FP32])
    assert stored_wide.emulated


def test_cancelling_sums_are_not_skipped() -> None:
    terms = np.tile([1000.0, -1000.0, 0.001], (50, 1))
    (cancelling,) = trials(terms, f.BF16, [SEQUENTIAL_FP32])
    assert cancelling.emulated


def test_sums_that_could_overflow_on_the_way_are_not_skipped() -> None:
    terms = np.tile([60000.0, 60000.0, -60000.0, -59000.0], (50, 1))
    plan = Plan(Order.SEQUENTIAL, f.FP16)
    (found,) = trials(terms, f.FP8_E5M2, [plan])
    assert found.emulated
    assert found.overflowed.value == 1
    assert found.error_max_u == math.inf


def test_results_that_the_storage_cannot_hold_count_as_overflow() -> None:
    terms = np.vstack([np.full(4, 300.0), np.full(4, 20000.0)])
    (found,) = trials(terms, f.FP16, [SEQUENTIAL_FP32])
    assert (found.overflowed.count, found.overflowed.total) == (1, 2)
    (saturated,) = trials(terms, f.FP8_E4M3FN, [SEQUENTIAL_FP32])
    assert saturated.overflowed.count == 2


def test_stalled_sums_are_reported_with_their_terms() -> None:
    (found,) = trials(np.ones((10, 4096)), f.FP16, [SEQUENTIAL_FP16])
    assert found.stagnated_terms == 0.5
    assert found.stagnated.value == 1
    assert found.error_max_u == 0.5 / f.FP16.u
    (fine,) = trials(np.ones((10, 4096)), f.FP16, [Plan(Order.BLOCKED, f.FP16, block=64, outer=f.FP32)])
    assert fine.error_max_u == fine.stagnated_terms == fine.stagnated.value == 0


def test_structural_zeros_are_measured_against_noise() -> None:
    half = np.random.default_rng(2).normal(size=(100, 50))
    terms = np.hstack([half, -half[:, ::-1]])
    (found,) = trials(f.round_to(terms, f.FP32), f.BF16, [SEQUENTIAL_FP32])
    assert found.error_max_u < 1


def test_rho_is_one_for_a_running_fp32_sum_and_large_for_a_narrow_one() -> None:
    terms = f.round_to(np.random.default_rng(3).uniform(0, 1, (200, 1024)), f.FP16)
    wide, narrow = trials(terms, f.FP16, [SEQUENTIAL_FP32, SEQUENTIAL_FP16])
    assert wide.rho_max <= 1.0
    assert narrow.rho_p99 > 8


def test_outputs_that_are_not_finite_are_left_out() -> None:
    terms = np.vstack([np.ones(4), [1.0, math.inf, 1.0, 1.0], [math.nan, 0, 0, 0]])
    (found,) = trials(terms, f.FP16, [SEQUENTIAL_FP16])
    assert found.overflowed.total == 1


def test_stochastic_trials_repeat() -> None:
    terms = np.random.default_rng(4).uniform(0, 1, (20, 300))
    plan = Plan(Order.SEQUENTIAL, f.BF16, rounding=f.SumRounding.STOCHASTIC)
    assert trials(terms, f.BF16, [plan]) == trials(terms, f.BF16, [plan])


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: trials(np.zeros(3), f.FP16, [SEQUENTIAL_FP16]),
        lambda: trials(np.full((2, 2), math.nan), f.FP16, [SEQUENTIAL_FP16]),
        lambda: trials(np.zeros((0, 4)), f.FP16, [SEQUENTIAL_FP16]),
        lambda: dot_trials(np.zeros((2, 3)), np.zeros((3, 2)), f.FP16, [SEQUENTIAL_FP16]),
        lambda: sample_outputs(np.zeros((2, 3)), np.zeros((2, 3)), 4, np.random.default_rng(0)),
        lambda: sample_outputs(np.zeros((2, 3)), np.zeros((3, 2)), 0, np.random.default_rng(0)),
        lambda: clopper_pearson(3, 2),
        lambda: clopper_pearson(1, 2, 1.0),
    ],
)
def test_meaningless_arguments_are_refused(wrong: Any) -> None:
    with pytest.raises(SettingsError):
        wrong()


def test_reductions_tried_together_are_judged_as_if_alone() -> None:
    rng = np.random.default_rng(7)
    groups = [f.round_to(rng.normal(size=(m, n)) * scale, f.FP16) for m, n, scale in ((4, 96, 1.0), (7, 96, 300.0), (3, 40, 1e-6))]
    plans = [SEQUENTIAL_FP16, SEQUENTIAL_FP32, f.V100]
    together = sample_trials([(Sample(terms, f.FP16), plans) for terms in groups])
    assert together == [trials(terms, f.FP16, plans) for terms in groups]


def test_a_mean_that_fits_is_no_overflow_though_its_sum_does_not_fit_storage() -> None:
    terms = np.full((2, 4096), 100.0)
    wide, narrow = sample_trials([(Sample(terms, f.FP16, divisor=4096.0), [SEQUENTIAL_FP32, SEQUENTIAL_FP16])])[0]
    assert wide.overflowed.count == 0 and wide.error_rms_u == 0.0
    assert narrow.overflowed.count == 2  # 409600 passes through an fp16 accumulator
    assert trials(terms, f.FP16, [SEQUENTIAL_FP32])[0].overflowed.count == 2  # a plain sum is stored


def test_a_norm_has_half_the_relative_error_of_its_sum_of_squares() -> None:
    squares = np.ones((1, 4096))
    as_sum, as_norm = sample_trials([(Sample(squares, f.FP16, root=root), [SEQUENTIAL_FP16]) for root in (False, True)])
    # the sum stalls at 2048 of 4096, its root at sqrt(2048) of 64
    assert as_sum[0].error_max_u * f.FP16.u == pytest.approx(0.5)
    assert as_norm[0].error_max_u * f.FP16.u == pytest.approx(1.0 - math.sqrt(0.5), rel=f.FP16.u)


def test_outputs_chosen_for_their_size_stay_out_of_shares() -> None:
    terms = np.vstack([np.full((3, 600), 1.0), np.full((2, 600), 1000.0)])
    found = sample_trials([(Sample(terms, f.FP16, divisor=600.0, uniform=3), [SEQUENTIAL_FP16])])[0][0]
    assert (found.overflowed.count, found.overflowed.total) == (0, 3)
    assert (found.largest, found.largest_overflowed) == (2, 2)
    assert found.error_rms_u == 0.0 and found.error_max_u == math.inf
