"""The classifier of dtype plans: what is safe, what is broken, and that wider is never worse."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precisionlab import formats as f
from precisionlab.formats import AccumulationOrder as Order
from precisionlab.formats import AccumulationPlan
from precisionlab.plans import DtypePlan, dot_trials, sample_outputs
from precisionlab.plans.classify import classify, format_of, matrix, plan_of, trial_verdict, usual_plans
from precisionlab.records import OpRecord, Phase, Plan, Site, TrialRecord, TrialRole, Verdict
from precisionlab.thresholds import Thresholds

LIMITS = Thresholds()
HALF, BRAIN = DtypePlan(f.FP16, f.FP32, f.FP32), DtypePlan(f.BF16, f.FP32, f.FP32)


def op(family: str = "dot", plan: Plan | None = None, phase: Phase = Phase.FORWARD, **numbers: object) -> OpRecord:
    found = OpRecord(Site("", "aten.mm", phase, "model.py:1"), plan or HALF.record(), family, count=1)
    for name, value in numbers.items():
        setattr(found, name, value)
    return found


def trial(accumulation: str, order: str = "sequential", role: TrialRole = TrialRole.CANDIDATE, **numbers: float) -> TrialRecord:
    known = {"terms": 4096, "outputs": 32, "emulated": True, "error_u": 0.4, "error_max_u": 1.0, "rho_max": 0.9, "rho_p99": 0.9}
    return TrialRecord(f"{order} {accumulation}", role, order, accumulation, **{**known, "stagnated_terms": 0.0, **numbers})  # type: ignore[arg-type]


BAD = {"error_u": 120.0, "error_max_u": 170.0, "rho_max": 300.0, "rho_p99": 290.0, "stagnated_terms": 0.3, "stagnated": 30}


def tried(plan: AccumulationPlan, a: np.ndarray, b: np.ndarray) -> TrialRecord:
    found = dot_trials(*sample_outputs(a, b, 32, np.random.default_rng(0)), f.FP16, [plan])[0]
    return trial(
        plan.format.name,
        plan.order.value,
        error_u=found.error_rms_u,
        error_max_u=found.error_max_u,
        rho_max=found.rho_max,
        rho_p99=found.rho_p99,
        stagnated_terms=found.stagnated_terms,
        stagnated=found.stagnated.count,
        overflowed=found.overflowed.count,
    )


def test_a_product_of_4096_positive_terms_is_broken_in_an_fp16_accumulator_and_safe_in_fp32() -> None:
    rng = np.random.default_rng(0)
    a, b = (f.round_to(rng.uniform(0, 1, shape), f.FP16) for shape in ((8, 4096), (4096, 8)))
    narrow, wide = (tried(AccumulationPlan(Order.SEQUENTIAL, fmt), a, b) for fmt in (f.FP16, f.FP32))
    assert narrow.stagnated == 32 and narrow.error_u > 100
    assert (trial_verdict(narrow, LIMITS), trial_verdict(wide, LIMITS)) == (Verdict.BROKEN, Verdict.SAFE)
    judged = matrix(op(trials=[wide, narrow], true_max_abs=1100.0, true_rms=1000.0))
    assert judged[HALF] is Verdict.SAFE
    assert judged[DtypePlan(f.FP16, f.FP32, f.FP16)] is Verdict.BROKEN
    assert judged[DtypePlan.uniform(f.FP32)] is Verdict.SAFE


def test_overflow_of_partial_sums_alone_is_broken() -> None:
    assert trial_verdict(trial("fp16", overflowed=1, error_u=0.4), LIMITS) is Verdict.BROKEN
    assert trial_verdict(trial("fp16", largest=8, largest_overflowed=1), LIMITS) is Verdict.BROKEN


def test_stagnation_that_costs_nothing_is_not_broken() -> None:
    assert trial_verdict(trial("bf16", stagnated=4, error_u=3.0, rho_max=5.0, rho_p99=4.0), LIMITS) is Verdict.RISKY
    assert trial_verdict(trial("bf16", stagnated=4, error_u=9.0, rho_max=5.0, rho_p99=4.0), LIMITS) is Verdict.BROKEN


def test_storage_follows_from_the_largest_magnitude() -> None:
    big = op("pointwise", DtypePlan.uniform(f.FP32).record(), true_max_abs=70000.0, true_rms=10.0)
    near = op("pointwise", DtypePlan.uniform(f.FP32).record(), true_max_abs=60000.0, true_rms=10.0)
    assert [classify(big, LIMITS, plan).storage.verdict for plan in (HALF, BRAIN)] == [Verdict.BROKEN, Verdict.SAFE]
    assert classify(near, LIMITS, HALF).storage.verdict is Verdict.RISKY
    assert classify(near, LIMITS, HALF).storage.evidence["headroom_log2"] == pytest.approx(np.log2(65504 / 60000))


def test_storage_follows_from_what_lies_below_the_smallest_number() -> None:
    fine = DtypePlan.uniform(f.FP32).record()
    tiny, small, fair = (op("pointwise", fine, true_max_abs=top, true_rms=rms) for top, rms in ((1e-9, 1e-10), (1.0, 1e-8), (1.0, 1e-3)))
    assert classify(tiny, LIMITS, HALF).storage.verdict is Verdict.BROKEN  # all of it becomes zero
    assert classify(small, LIMITS, HALF).storage.verdict is Verdict.UNKNOWN  # some of it may
    assert classify(fair, LIMITS, HALF).storage.verdict is Verdict.SAFE
    assert classify(tiny, LIMITS, BRAIN).storage.verdict is Verdict.SAFE


def test_the_range_of_scaled_gradients_is_not_judged() -> None:
    scaled = op(phase=Phase.BACKWARD, true_max_abs=1e6, true_rms=1.0)
    assert classify(scaled, LIMITS).storage.verdict is Verdict.SAFE
    assert classify(scaled, LIMITS, BRAIN).storage.verdict is Verdict.UNKNOWN  # bf16 has the range and not the digits of fp16
    assert classify(scaled, LIMITS, DtypePlan.uniform(f.FP32)).storage.verdict is Verdict.SAFE


def test_what_was_not_tried_is_unknown_and_never_safe() -> None:
    untried = op("reduction", true_max_abs=1.0, true_rms=1.0)
    assert classify(untried, LIMITS, DtypePlan(f.FP16, f.FP32, f.FP16)).accumulation.verdict is Verdict.UNKNOWN
    assert classify(untried, LIMITS, HALF).accumulation.verdict is Verdict.SAFE
    assert classify(op("pointwise", true_max_abs=0.0), LIMITS, BRAIN).storage.verdict is Verdict.UNKNOWN


def test_an_accumulator_wider_than_a_broken_one_is_unknown_until_tried() -> None:
    tf32 = DtypePlan(f.FP16, f.FP32, f.TF32)
    assert classify(op(trials=[trial("fp16", **BAD)]), LIMITS, tf32).accumulation.verdict is Verdict.UNKNOWN


def test_an_op_is_judged_as_the_target_runs_it_not_in_the_worst_order() -> None:
    split = trial("fp16", "split-k", TrialRole.TARGET)
    record = op(plan=Plan("fp16", "fp32", "fp16"), trials=[split, trial("fp16", **BAD), trial("fp32")])
    assert classify(record, LIMITS).accumulation.verdict is Verdict.SAFE
    assert classify(record, LIMITS, plan_of(record)).accumulation.verdict is Verdict.BROKEN


def test_measured_errors_count_although_the_emulation_is_clean() -> None:
    record = op(trials=[trial("fp32", role=TrialRole.EXECUTED)], rho_max=20.0, rho_p99=15.0, local_error_u=12.0)
    assert classify(record, LIMITS).accumulation.verdict is Verdict.BROKEN
    pointwise = op("pointwise", rho_max=20.0, rho_p99=15.0, local_error_u=12.0, true_max_abs=1.0, true_rms=1.0)
    assert classify(pointwise, LIMITS).compute.verdict is Verdict.BROKEN
    assert classify(pointwise, LIMITS).accumulation.verdict is Verdict.SAFE


def test_integers_and_complex_numbers_have_no_plan() -> None:
    record = op(plan=Plan("complex64", "complex64", "complex64"))
    assert matrix(record) == {} and classify(record, LIMITS).verdict is Verdict.UNKNOWN


def test_accumulators_of_no_format_have_the_digits_their_name_says() -> None:
    assert format_of("14-bit") == f.H100_FP8.format == format_of("e8m13")


def test_the_matrix_holds_the_usual_plans_and_that_of_the_op() -> None:
    odd = DtypePlan(f.FP8_E4M3FN, f.FP32, f.FP32)
    assert list(matrix(op(plan=odd.record()))) == [*usual_plans(), odd]


# Wider is never worse.

ANY_FORMAT = st.sampled_from(f.FORMATS)
ANY_PLAN = st.builds(DtypePlan, ANY_FORMAT, ANY_FORMAT, ANY_FORMAT)
SIZE = st.one_of(st.just(0.0), st.floats(1e-40, 1e38))
ERROR = st.sampled_from([0.0, 0.9, 3.0, 7.0, 20.0, float("inf")])
TRIALS = st.lists(
    st.builds(
        trial,
        st.sampled_from(["fp32", "bf16", "fp16", "tf32", "fp8_e5m2", "e8m13"]),
        st.sampled_from(["sequential", "split-k", "blocked"]),
        st.sampled_from(list(TrialRole)),
        error_u=ERROR,
        rho_max=ERROR,
        rho_p99=ERROR,
        stagnated=st.integers(0, 2),
        overflowed=st.integers(0, 1),
    ),
    max_size=6,
)
RECORDS = st.builds(
    op,
    st.sampled_from(["dot", "pointwise", "indexing", "normalisation"]),
    ANY_PLAN.map(DtypePlan.record),
    st.sampled_from([Phase.FORWARD, Phase.BACKWARD]),
    true_max_abs=SIZE,
    true_rms=SIZE,
    flushed_energy_share=st.floats(0, 1),
    rho_max=ERROR,
    rho_p99=ERROR,
    local_error_u=ERROR,
    trials=TRIALS,
    trials_skipped=st.sampled_from(["", "the budget for trials was spent"]),
)


@settings(max_examples=400, deadline=None)
@given(RECORDS, st.lists(ANY_PLAN, min_size=2, max_size=8))
def test_a_wider_plan_is_never_judged_worse(record: OpRecord, plans: list[DtypePlan]) -> None:
    plans = [*plans, *usual_plans(), DtypePlan.of(record.plan)]
    judged = {plan: classify(record, LIMITS, plan) for plan in plans}
    for narrow in plans:
        for wide in plans:
            if narrow <= wide:
                for column in ("storage", "compute", "accumulation"):
                    verdicts = [getattr(judged[plan], column).verdict for plan in (narrow, wide)]
                    assert verdicts[0].severity >= verdicts[1].severity, (column, str(narrow), str(wide), verdicts)
