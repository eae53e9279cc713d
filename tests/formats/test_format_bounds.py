"""Error bounds: hand values, and simulated sums that must stay within them (or, where a bound is void, must not)."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from precisionlab import formats as f
from precisionlab.errors import SettingsError

Order = f.SummationOrder


def _running_sum(terms: np.ndarray, fmt: f.Format, mode: f.RoundingMode = f.RoundingMode.NEAREST_EVEN) -> np.ndarray:
    """Sums over the last axis, one rounding per addition."""
    total = terms[..., 0]
    for k in range(1, terms.shape[-1]):
        total = f.round_to(total + terms[..., k], fmt, mode)
    return total


def _sum(terms: np.ndarray, fmt: f.Format, order: f.SummationOrder, block: int) -> np.ndarray:
    if order is Order.SEQUENTIAL:
        return _running_sum(terms, fmt)
    if order is Order.TRUNCATING:
        return _running_sum(terms, fmt, f.RoundingMode.TOWARD_ZERO)
    if order is Order.BLOCKED:
        return _running_sum(_running_sum(terms.reshape(*terms.shape[:-1], -1, block), fmt), fmt)
    while terms.shape[-1] > 1:
        terms = f.round_to(terms[..., ::2] + terms[..., 1::2], fmt)
    return terms[..., 0]


def test_gamma_is_void_from_2048_roundings_in_fp16_and_256_in_bf16() -> None:
    assert f.gamma(2048, f.FP16.u) == f.gamma(256, f.BF16.u) == math.inf
    assert f.gamma(2047, f.FP16.u) == 2047
    assert f.gamma(255, f.BF16.u) == 255


def test_gamma_of_few_roundings_is_n_u() -> None:
    assert f.gamma(0, f.FP16.u) == 0
    assert f.gamma(1, f.FP16.u) == 1 / 2047
    assert f.gamma(100, f.FP64.u) == pytest.approx(100 * 2**-53, rel=1e-13)


def test_heights_by_hand() -> None:
    assert [f.summation_height(n, Order.SEQUENTIAL) for n in (0, 1, 2, 4096)] == [0, 0, 1, 4095]
    assert [f.summation_height(n, Order.PAIRWISE) for n in (0, 1, 2, 3, 4, 5, 4096)] == [0, 0, 1, 2, 2, 3, 12]
    assert [f.summation_height(n, Order.BLOCKED, 64) for n in (1, 64, 65, 4096)] == [0, 63, 64, 126]
    assert f.summation_height(4096, Order.TRUNCATING) == 4095


def test_growth_factors_by_hand() -> None:
    assert f.growth_factor(4096, Order.SEQUENTIAL) == 64
    assert f.growth_factor(4096, Order.BLOCKED, 64) == 16
    assert f.growth_factor(65536, Order.PAIRWISE) == 4
    assert f.growth_factor(4096, Order.TRUNCATING) == 4096


def test_one_block_longer_than_the_sum_is_a_running_sum() -> None:
    assert f.summation_height(100, Order.BLOCKED, 1000) == f.summation_height(100, Order.SEQUENTIAL)
    assert f.growth_factor(100, Order.BLOCKED, 1000) == 11


@pytest.mark.parametrize("order", list(Order), ids=lambda order: order.value)
def test_growth_starts_at_one_and_never_falls(order: f.SummationOrder) -> None:
    factors = [f.growth_factor(n, order, 16) for n in range(200)]
    assert factors[0] == 0
    assert factors[1] >= 1
    assert factors == sorted(factors)


def test_pairwise_grows_least_and_truncation_most() -> None:
    factors = [f.growth_factor(10_000, order, 100) for order in (Order.PAIRWISE, Order.BLOCKED, Order.SEQUENTIAL, Order.TRUNCATING)]
    assert factors == sorted(factors)


@pytest.mark.parametrize("order", list(Order), ids=lambda order: order.value)
@pytest.mark.parametrize("fmt", [f.FP16, f.BF16, f.FP32], ids=str)
def test_simulated_sums_stay_within_the_deterministic_bound(order: f.SummationOrder, fmt: f.Format) -> None:
    rng = np.random.default_rng(10)
    n, block = 64, 8
    u = fmt.eps if order is Order.TRUNCATING else fmt.u
    factor = f.gamma(f.summation_height(n, order, block), u)
    for draw in (rng.uniform(0, 1, (300, n)), rng.normal(size=(300, n)), 10.0 ** rng.uniform(-3, 3, (300, n))):
        terms = f.round_to(draw, fmt)
        errors = np.abs(_sum(terms, fmt, order, block) - [math.fsum(row) for row in terms])
        assert (errors <= factor * np.abs(terms).sum(-1)).all()


@pytest.mark.parametrize("n", [64, 256, 1024])
def test_lambda_one_covers_two_hundred_sums_of_uniform_numbers(n: int) -> None:
    terms = f.round_to(np.random.default_rng(11).uniform(0, 1, (200, n)), f.FP16)
    errors = np.abs(_running_sum(terms, f.FP16) - terms.sum(-1)) / terms.sum(-1)
    assert errors.max() <= f.probabilistic_bound(n, f.FP16.u)


def test_the_probabilistic_bound_is_first_order_and_void_from_one() -> None:
    assert f.probabilistic_bound(4096, f.FP16.u) == 64 * 2**-11
    assert f.probabilistic_bound(4096, f.FP16.u, lam=4) == 256 * 2**-11
    assert f.probabilistic_bound(65536, f.BF16.u) == math.inf


def test_the_failure_probability_is_vacuous_at_lambda_one_and_tiny_at_ten() -> None:
    assert f.probabilistic_failure(1000, f.FP16.u, 1) == 1
    assert f.probabilistic_failure(1000, f.FP16.u, 10) < 1e-18


def test_truncation_bias_grows_with_n_where_nearest_does_not() -> None:
    """An fp32 accumulator that truncates products of U[0,1] halves (single halves would add up exactly for hundreds of terms)."""
    a, b = f.round_to(np.random.default_rng(12).uniform(0, 1, (2, 64, 2048)), f.FP16)
    terms = a * b

    def bias(n: int, mode: f.RoundingMode) -> float:
        exact = terms[:, :n].sum(-1)
        return float(((_running_sum(terms[:, :n], f.FP32, mode) - exact) / exact).mean())

    truncated = [bias(n, f.RoundingMode.TOWARD_ZERO) for n in (512, 2048)]
    assert truncated[0] < 0
    assert truncated[1] / truncated[0] == pytest.approx(4, rel=0.15)
    assert abs(bias(2048, f.RoundingMode.NEAREST_EVEN)) < 0.05 * abs(truncated[1])


@pytest.mark.parametrize("fmt", [f.FP16, f.BF16, f.FP8_E5M2, f.FP8_E4M3FN], ids=str)
@pytest.mark.parametrize("term", [1.0, 0.75, 3.0, 2**-5])
def test_a_running_sum_of_equal_terms_stalls_at_the_stagnation_point(fmt: f.Format, term: float) -> None:
    assert f.represents(term, fmt)
    total = 0.0
    for _ in range(6000):
        total = float(f.round_to(total + term, fmt))
    assert total == f.stagnation_point(term, fmt)


def test_ones_stall_at_2048_in_fp16_and_256_in_bf16() -> None:
    assert f.stagnation_point(1.0, f.FP16) == 2048
    assert f.stagnation_point(-1.0, f.BF16) == 256
    for dtype, point in ((torch.float16, 2048), (torch.bfloat16, 256)):
        total = torch.tensor(0.0, dtype=dtype)
        for _ in range(3000):
            total += 1
        assert total.item() == point


def test_sums_that_overflow_first_or_never_begin_have_no_ordinary_stagnation_point() -> None:
    assert f.stagnation_point(60.0, f.FP16) == math.inf
    assert f.stagnation_point(1e-8, f.FP16) == 0
    assert f.stagnation_point(2**-25, f.FP16) == 0
    assert f.stagnation_point(2**-24, f.FP16) == 2**-13
    assert [f.stagnation_point(x, f.FP16) for x in (0.0, -0.0, math.inf, math.nan)] == [math.inf] * 4


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: f.gamma(-1, f.FP16.u),
        lambda: f.gamma(math.nan, f.FP16.u),
        lambda: f.gamma(1, 0.0),
        lambda: f.gamma(1, 1.0),
        lambda: f.probabilistic_bound(1, f.FP16.u, lam=0),
        lambda: f.probabilistic_failure(1, f.FP16.u, lam=-1),
        lambda: f.growth_factor(-1, Order.SEQUENTIAL),
        lambda: f.growth_factor(10, Order.BLOCKED),
        lambda: f.summation_height(10, Order.BLOCKED, 0),
    ],
)
def test_meaningless_arguments_are_refused(wrong: object) -> None:
    with pytest.raises(SettingsError):
        wrong()  # type: ignore[operator]
