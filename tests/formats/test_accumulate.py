"""Emulated sums: identical to rational arithmetic, to numpy's and torch's own narrow types, and within their bounds."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from accumulate_references import reference_sum, running
from hypothesis import given, settings
from hypothesis import strategies as st

from precisionlab import formats as f
from precisionlab.errors import SettingsError

Order, Rounding, Plan = f.AccumulationOrder, f.SumRounding, f.AccumulationPlan
ZERO, STOCHASTIC = Rounding.TOWARD_ZERO, Rounding.STOCHASTIC

FORMATS = [f.FP16, f.BF16, f.FP32, f.TF32, f.FP8_E5M2, f.FP8_E4M3FN, f.FP8_E4M3FNUZ]


def plans_in(fmt: f.Format) -> list[f.AccumulationPlan]:
    """Every order with every deterministic rounding it allows."""
    found = [Plan(Order.KAHAN, fmt), Plan(Order.NEUMAIER, fmt)]
    for rounding in (Rounding.NEAREST_EVEN, ZERO):
        found += [
            Plan(Order.SEQUENTIAL, fmt, rounding=rounding),
            Plan(Order.PAIRWISE, fmt, rounding=rounding),
            Plan(Order.BLOCKED, fmt, block=3, rounding=rounding),
            Plan(Order.BLOCKED, fmt, block=4, outer=f.FP32, rounding=rounding),
            Plan(Order.SPLIT_K, fmt, splits=3, rounding=rounding),
            Plan(Order.SPLIT_K, fmt, splits=4, stored=f.BF16, outer=f.FP32, rounding=rounding),
            Plan(Order.BLOCK_FMA, fmt, block=4, bits=6, rounding=rounding),
            Plan(Order.BLOCK_FMA, fmt, block=3, bits=24, rounding=rounding, promote_every=6),
        ]
    return found


ALL_PLANS = [plan for fmt in FORMATS for plan in plans_in(fmt)]

# Halves and their products around 1, far apart, near the ends of fp8 and fp16, and numbers no format holds.
wild = st.one_of(
    st.floats(-8, 8, width=16),
    st.floats(-70000, 70000),
    st.floats(-(2.0**-13), 2.0**-13),
    st.integers(-(2**12), 2**12).map(float),
    st.builds(lambda m, e: m * 2.0**e, st.integers(-(2**22), 2**22), st.integers(-60, 0)),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0**-24, 65504.0, -65504.0, 448.0]),
)
tables = st.integers(1, 3).flatmap(
    lambda m: st.integers(0, 13).flatmap(lambda n: st.lists(st.lists(wild, min_size=n, max_size=n), min_size=m, max_size=m))
)


def as_table(rows: list[list[float]]) -> np.ndarray:
    return np.array(rows, np.float64).reshape(len(rows), -1)


@settings(max_examples=600, deadline=None)
@given(tables, st.sampled_from(ALL_PLANS))
def test_every_plan_gives_the_sums_of_rational_arithmetic(rows: list[list[float]], plan: f.AccumulationPlan) -> None:
    sums = f.accumulate(as_table(rows), plan)
    assert sums.shape == (len(rows),)
    np.testing.assert_array_equal(sums, [reference_sum(row, plan) for row in rows])


@pytest.mark.parametrize("plan", ALL_PLANS, ids=str)
def test_long_sums_give_the_sums_of_rational_arithmetic(plan: f.AccumulationPlan) -> None:
    rng = np.random.default_rng(1)
    terms = np.stack([rng.uniform(0, 1, 150), rng.normal(size=150), np.exp(rng.normal(0, 4, 150)), rng.normal(3, 1, 150) * 1e-4])
    np.testing.assert_array_equal(f.accumulate(terms, plan), [reference_sum(row.tolist(), plan) for row in terms])


@settings(max_examples=300, deadline=None)
@given(tables, st.sampled_from(FORMATS), st.sampled_from([Rounding.NEAREST_EVEN, ZERO]))
def test_diagnostics_of_a_running_sum_are_counted_term_by_term(rows: list[list[float]], fmt: f.Format, rounding: f.SumRounding) -> None:
    found = f.emulate(as_table(rows), Plan(Order.SEQUENTIAL, fmt, rounding=rounding))
    for i, row in enumerate(rows):
        sums = [0.0, *running(row, fmt, rounding)]
        steps = list(zip(sums, row, sums[1:], strict=False))
        beyond = [
            math.isfinite(s) and abs(s + x) > fmt.max and (not math.isfinite(t) or _beyond(s + x, fmt, rounding)) for s, x, t in steps
        ]
        lost = [x != 0 and s == t and math.isfinite(s) and not over for (s, x, t), over in zip(steps, beyond, strict=True)]
        assert found.nonzero[i] == sum(x != 0 for x in row)
        assert found.stagnated[i] == sum(lost)
        assert found.overflowed[i] == any(beyond)
        np.testing.assert_equal(found.largest_partial[i], np.max(np.abs(sums)))


def _beyond(x: float, fmt: f.Format, rounding: f.SumRounding) -> bool:
    if rounding is ZERO:
        return abs(x) >= fmt.max + fmt.ulp(fmt.max)
    return abs(x) > fmt.overflow_threshold or (abs(x) == fmt.overflow_threshold and fmt.specials is not f.Specials.FN)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(-1000, 1000, width=16), min_size=1, max_size=300))
def test_sequential_fp16_is_numpy_float16_accumulate(row: list[float]) -> None:
    terms = np.array(row, np.float16)
    with np.errstate(over="ignore"):
        theirs = np.add.accumulate(terms)[-1]
    np.testing.assert_array_equal(f.accumulate(terms, Plan(Order.SEQUENTIAL, f.FP16)), theirs)


@pytest.mark.parametrize(("fmt", "dtype"), [(f.FP16, torch.float16), (f.BF16, torch.bfloat16), (f.FP32, torch.float32)], ids=str)
def test_sequential_sums_are_those_of_a_torch_loop(fmt: f.Format, dtype: torch.dtype) -> None:
    terms = torch.rand(40, 700, generator=torch.Generator().manual_seed(2)).to(dtype)
    total = torch.zeros(40, dtype=dtype)
    for k in range(terms.shape[1]):
        total += terms[:, k]
    np.testing.assert_array_equal(f.accumulate(terms.double().numpy(), Plan(Order.SEQUENTIAL, fmt)), total.double().numpy())


@pytest.mark.parametrize(("fmt", "dtype"), [(f.BF16, ml_dtypes.bfloat16), (f.FP8_E5M2, ml_dtypes.float8_e5m2)], ids=str)
def test_sequential_sums_are_those_of_ml_dtypes(fmt: f.Format, dtype: Any) -> None:
    terms = np.random.default_rng(3).normal(size=(20, 200)).astype(dtype)
    total = np.zeros(20, dtype)
    for k in range(200):
        total = total + terms[:, k]
    np.testing.assert_array_equal(f.accumulate(terms.astype(np.float64), Plan(Order.SEQUENTIAL, fmt)), total.astype(np.float64))


def test_compensated_fp32_sums_are_those_of_numpy_float32() -> None:
    terms = np.random.default_rng(4).normal(size=(5, 1000)).astype(np.float32)
    s, c = np.zeros(5, np.float32), np.zeros(5, np.float32)
    for k in range(1000):
        y = terms[:, k] - c
        t = s + y
        c = (t - s) - y
        s = t
    np.testing.assert_array_equal(f.accumulate(terms, Plan(Order.KAHAN, f.FP32)), s)


def test_a_narrow_sum_of_wide_terms_rounds_once() -> None:
    """1 + 2^-8 is half way between two bf16 numbers; 2^-100 decides, and fp64 alone would lose it."""
    assert f.accumulate([2.0**-100, 1 + 2.0**-8], Plan(Order.SEQUENTIAL, f.BF16)) == 1 + 2.0**-7
    assert f.accumulate([1.0, -(2.0**-60)], Plan(Order.SEQUENTIAL, f.FP32, rounding=ZERO)) == 1 - 2.0**-24


# ---- the claims of the literature -----------------------------------------------------------------------------------------------------


def test_a_running_sum_of_ones_stalls_at_2048_in_fp16_and_256_in_bf16() -> None:
    ones = np.ones((1, 5000))
    half = f.emulate(ones, Plan(Order.SEQUENTIAL, f.FP16))
    brain = f.emulate(ones, Plan(Order.SEQUENTIAL, f.BF16))
    assert (half.sums[0], brain.sums[0]) == (2048, 256)
    assert (half.stagnated[0], brain.stagnated[0]) == (5000 - 2048, 5000 - 256)
    assert half.stagnated_share[0] == 2952 / 5000


def test_blocks_with_a_wide_outer_sum_do_not_stall() -> None:
    found = f.emulate(np.ones((1, 5000)), Plan(Order.BLOCKED, f.BF16, block=128, outer=f.FP32))
    assert found.sums[0] == 5000
    assert found.stagnated[0] == 0


def test_a_block_whose_partial_sum_is_lost_loses_all_its_terms() -> None:
    terms = np.concatenate([[4096.0, 0, 0, 0], [0.25] * 8])
    found = f.emulate(terms, Plan(Order.BLOCKED, f.FP16, block=4))
    assert found.sums == 4096
    assert found.stagnated == 8
    assert found.nonzero == 9


def test_a_tree_loses_the_smaller_operand() -> None:
    found = f.emulate([1e-4, 2048.0, 1.0, 1.0], Plan(Order.PAIRWISE, f.FP16))
    assert found.sums == 2050
    assert found.stagnated == 1


def test_a_block_fma_loses_what_alignment_cuts_off() -> None:
    found = f.emulate([1.0, 2.0**-24, 2.0**-23, 0.0], Plan(Order.BLOCK_FMA, f.FP32, block=4, bits=24, rounding=ZERO))
    assert found.sums == 1 + 2.0**-23
    assert (found.stagnated, found.nonzero) == (1, 3)


def test_tensor_cores_are_not_monotonic() -> None:
    """Growing one addend can shrink the sum. Source: Fasi, Higham, Mikaitis & Pranesh 2021, §3.4."""
    small = [2.0**-24] * 4
    below = f.accumulate([1.0 - 2.0**-24, *small[1:]], f.V100)
    above = f.accumulate([1.0, *small[1:]], f.V100)
    assert below == 1 + 2.0**-23
    assert above == 1


def test_fp16_accumulation_of_products_of_300_overflows() -> None:
    found = f.dot(np.full((1, 4), 300.0), np.full((1, 4), 100.0), Plan(Order.SEQUENTIAL, f.FP16))
    assert found.overflowed[0]
    assert found.sums[0] == math.inf
    fine = f.dot(np.full((1, 4), 300.0), np.full((1, 4), 100.0), Plan(Order.SEQUENTIAL, f.FP32))
    assert fine.sums[0] == 120000
    assert not fine.overflowed[0]


def test_a_saturating_sum_says_that_it_overflowed() -> None:
    found = f.emulate([[448.0, 448.0, -448.0], [448.0, 1.0, 0.0]], Plan(Order.SEQUENTIAL, f.FP8_E4M3FN))
    assert found.sums.tolist() == [0, 448]
    assert found.overflowed.tolist() == [True, False]
    assert found.stagnated.tolist() == [0, 1]


def test_products_rounded_first_differ_from_fused_ones() -> None:
    a = np.array([1 + 2.0**-10, -1.0])
    fused = f.dot(a, [1 + 2.0**-10, 1 + 2.0**-9], Plan(Order.SEQUENTIAL, f.FP32))
    apart = f.dot(a, [1 + 2.0**-10, 1 + 2.0**-9], Plan(Order.SEQUENTIAL, f.FP32), products=f.FP16)
    assert fused.sums == 2.0**-20
    assert apart.sums == 0


def test_stochastic_rounding_takes_neighbours_and_is_right_on_average() -> None:
    terms = np.tile([2048.0, 0.5], (20_000, 1))
    sums = f.accumulate(terms, Plan(Order.SEQUENTIAL, f.FP16, rounding=STOCHASTIC), np.random.default_rng(5))
    assert set(sums) == {2048, 2050}
    assert abs(sums.mean() - 2048.5) < 4 * sums.std() / math.sqrt(len(sums))
    exact = f.accumulate(np.tile([2048.0, 2.0], (100, 1)), Plan(Order.SEQUENTIAL, f.FP16, rounding=STOCHASTIC))
    assert set(exact) == {2050}


def test_stochastic_sums_do_not_stall() -> None:
    sums = f.accumulate(np.ones((200, 4096)), Plan(Order.SEQUENTIAL, f.BF16, rounding=STOCHASTIC))
    assert abs(sums.mean() / 4096 - 1) < 0.02


def test_stochastic_sums_repeat_with_their_generator() -> None:
    terms = np.random.default_rng(6).uniform(0, 1, (4, 100))
    plan = Plan(Order.SEQUENTIAL, f.FP16, rounding=STOCHASTIC)
    np.testing.assert_array_equal(f.accumulate(terms, plan), f.accumulate(terms, plan))
    assert (f.accumulate(terms, plan) != f.accumulate(terms, plan, np.random.default_rng(7))).any()


@pytest.mark.parametrize("fmt", [f.FP16, f.BF16, f.FP32], ids=str)
def test_sums_stay_within_the_bound_of_their_plan(fmt: f.Format) -> None:
    rng = np.random.default_rng(8)
    for n in (1, 2, 7, 64, 100):
        for draw in (rng.uniform(0, 1, (200, n)), rng.normal(size=(200, n)), 10.0 ** rng.uniform(-2, 2, (200, n))):
            exact, size = [math.fsum(row) for row in draw], np.abs(draw).sum(-1)
            for plan in [*plans_in(fmt), Plan(Order.SEQUENTIAL, fmt, rounding=STOCHASTIC)]:
                error = np.abs(f.accumulate(draw, plan) - exact)
                assert (error <= plan.bound_factor(n) * size + n * fmt.min_subnormal).all(), (str(plan), n)


def test_bounds_by_hand() -> None:
    u = f.FP16.u
    assert Plan(Order.SEQUENTIAL, f.FP16).bound_factor(10) == f.gamma(10, u)
    assert Plan(Order.SEQUENTIAL, f.FP16, rounding=ZERO).bound_factor(10) == f.gamma(10, f.FP16.eps)
    assert Plan(Order.PAIRWISE, f.FP16).bound_factor(1024) == f.gamma(11, u)
    assert Plan(Order.BLOCKED, f.FP16, block=64, outer=f.FP32).bound_factor(4096) == pytest.approx(
        f.gamma(64, u) + f.gamma(64, f.FP32.u) * (1 + f.gamma(64, u)), rel=1e-12
    )
    assert Plan(Order.SEQUENTIAL, f.FP16).bound_factor(2048) == math.inf
    assert [plan.bound_factor(0) for plan in ALL_PLANS] == [0.0] * len(ALL_PLANS)


def test_inf_and_nan_go_through() -> None:
    terms = np.array([[1.0, math.inf, 1.0, 0.0], [math.inf, -math.inf, 0.0, 0.0], [1.0, math.nan, 1.0, 2.0]])
    for plan in plans_in(f.FP16):
        if plan.order in (Order.KAHAN, Order.NEUMAIER):
            continue  # Inf - Inf in the compensation
        found = f.emulate(terms, plan)
        np.testing.assert_array_equal(found.sums, [math.inf, math.nan, math.nan], err_msg=str(plan))
        assert not found.overflowed.any(), plan


def test_empty_sums_are_zero_and_sums_of_minus_zero_keep_their_sign() -> None:
    assert f.accumulate(np.zeros((3, 0)), f.V100).tolist() == [0, 0, 0]
    for plan in plans_in(f.FP16):
        total = f.accumulate([-0.0, -0.0, -0.0, -0.0, -0.0], plan)
        assert total == 0
        if plan.order not in (Order.KAHAN, Order.NEUMAIER, Order.BLOCK_FMA):
            assert np.signbit(total), plan
    assert f.accumulate(np.zeros((0, 5)), f.V100).shape == (0,)


def test_names_of_plans() -> None:
    assert str(Plan(Order.SEQUENTIAL, f.FP16)) == "sequential fp16"
    assert str(Plan(Order.BLOCKED, f.FP16, block=128, outer=f.FP32)) == "blocks of 128 in fp16, outer fp32"
    assert str(Plan(Order.SPLIT_K, f.FP32, splits=8, stored=f.BF16)) == "8 splits in fp32, stored in bf16"
    assert str(f.V100) == "block FMA of 4 in fp32, 24 bits, toward zero"
    assert str(f.H100_FP8_PROMOTED) == "block FMA of 32 in e8m13, 14 bits, toward zero, promoted to fp32 every 128"
    assert str(Plan(Order.SEQUENTIAL, f.BF16, rounding=STOCHASTIC)) == "sequential bf16, stochastic"
    assert len({str(plan) for plan in ALL_PLANS}) == len(ALL_PLANS)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Plan(Order.BLOCKED, f.FP16),
        lambda: Plan(Order.BLOCKED, f.FP16, block=0),
        lambda: Plan(Order.SEQUENTIAL, f.FP16, block=4),
        lambda: Plan(Order.SEQUENTIAL, f.FP16, outer=f.FP32),
        lambda: Plan(Order.SEQUENTIAL, f.FP16, promote_every=4),
        lambda: Plan(Order.BLOCKED, f.FP16, block=4, stored=f.BF16),
        lambda: Plan(Order.BLOCK_FMA, f.FP16, block=4),
        lambda: Plan(Order.BLOCK_FMA, f.FP32, block=16, bits=52),
        lambda: Plan(Order.KAHAN, f.FP16, rounding=ZERO),
        lambda: Plan(Order.SEQUENTIAL, f.FP64, rounding=STOCHASTIC),
        lambda: f.accumulate(np.zeros((2, 2, 2)), f.V100),
        lambda: f.accumulate(1.0, f.V100),
        lambda: f.dot(np.zeros((2, 3)), np.zeros((3, 2)), f.V100),
        lambda: f.V100.bound_factor(-1),
    ],
)
def test_what_cannot_be_emulated_is_refused(wrong: Any) -> None:
    with pytest.raises(SettingsError):
        wrong()
