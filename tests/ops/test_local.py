"""The local error ratio: what it measures by hand, what it refuses, and the faults it sees in this machine's kernels."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import precisionlab.ops.catalogue  # noqa: F401  registers all rules
from precisionlab.ops.local import (
    LocalError,
    default_rms_eps,
    half_ulp,
    is_random,
    judge_output,
    local_error,
    map_tensors,
    named,
    on_absolute,
    to_fp64,
    work,
)
from precisionlab.ops.registry import Family, How, OpRule, find_rule

aten = torch.ops.aten
HALF = [torch.float16, torch.bfloat16]


def measure(func: Any, *args: Any, sample: int | None = None, **kwargs: Any) -> LocalError:
    """Run an op, then its local error; operands are copied first, as the mode does for in-place ops."""
    before = map_tensors(torch.clone, (list(args), kwargs))
    out = func(*args, **kwargs)
    found = local_error(func, before[0], before[1], out, find_rule(func), sample=sample)
    assert found is not None
    return found


def scalar(value: float, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor([value], dtype=dtype)


# The spacing.
@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        (torch.float16, 1.0, 2.0**-11),
        (torch.float16, 1.999, 2.0**-11),
        (torch.float16, 2.0, 2.0**-10),
        (torch.float16, -1000.0, 0.25),
        (torch.float16, 2.0**-14, 2.0**-25),
        (torch.float16, 2.0**-20, 2.0**-25),
        (torch.float16, 0.0, 2.0**-25),
        (torch.bfloat16, 1.0, 2.0**-8),
        (torch.bfloat16, 0.0, 2.0**-134),
        (torch.float32, 1.0, 2.0**-24),
        (torch.float32, 0.0, 2.0**-150),
        (torch.float64, 1.0, 2.0**-53),
    ],
)
def test_half_the_spacing_includes_the_subnormal_floor(dtype: torch.dtype, value: float, expected: float) -> None:
    assert half_ulp(scalar(value), dtype).item() == expected


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_half_the_spacing_of_float8_is_found_by_its_finfo(dtype: torch.dtype) -> None:
    assert half_ulp(scalar(1.0), dtype).item() == torch.finfo(dtype).eps / 2
    assert half_ulp(scalar(0.0), dtype).item() == torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps / 2


# One output by hand.
def test_a_correctly_rounded_result_has_rho_at_most_one() -> None:
    y = torch.randn(10000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for dtype in (*HALF, torch.float32):
        found = judge_output(y.to(dtype), y, torch.zeros_like(y), 0.0, 1)
        assert 0.9 < found.rho_max <= 1.0
        assert found.local_u < 1.0


def test_rho_of_a_result_one_spacing_off_is_two() -> None:
    found = judge_output(scalar(1.0 + 2**-10, torch.float16), scalar(1.0), scalar(0.0), 0.0, 1)
    assert found.rho_max == 2.0
    assert found.local_u == 2.0


def test_accumulation_term_is_four_root_n_u_times_the_scale() -> None:
    error, bound = 2.0**-10, 2.0**-11 + 4 * math.sqrt(16) * 2.0**-24 * 1000.0
    found = judge_output(scalar(1.0 + error, torch.float16), scalar(1.0), scalar(1000.0), 0.0, 16)
    assert found.rho_max == pytest.approx(error / bound)


def test_declared_inner_roundings_widen_the_bound() -> None:
    found = judge_output(scalar(1.0 + 2**-10, torch.float16), scalar(1.0), scalar(0.0), 2.0**-11, 1)
    assert found.rho_max == 1.0


def test_errors_far_below_the_rms_are_immaterial() -> None:
    y = torch.tensor([1.0, 1e-6], dtype=torch.float64)
    assert judge_output(torch.tensor([1.0, 3e-6], dtype=torch.float16), y, y * 0, 0.0, 1).rho_max == 0.0


def test_an_overflow_is_counted_and_has_no_rho() -> None:
    out = torch.tensor([math.inf, math.nan, 1.0, 5.0], dtype=torch.float16)
    y = torch.tensor([1e6, 3.0, 1.0, math.nan], dtype=torch.float64)
    found = judge_output(out, y, y.abs(), 0.0, 1)
    assert (found.introduced, found.out_of_range, found.lifted) == (2, 1, 1)
    assert found.rho_max == 0.0


def test_share_of_flushed_energy_and_the_sign_of_zero() -> None:
    out = torch.tensor([0.0, -0.0, 1.0], dtype=torch.float16)
    y = torch.tensor([1e-9, 0.0, 1.0], dtype=torch.float64)
    assert judge_output(out, y, y, 0.0, 1).flushed_energy_share == pytest.approx(1e-18)
    assert judge_output(out[:1], y[:1], y[:1], 0.0, 1).flushed_energy_share == 1.0


def test_a_structural_zero_is_measured_against_the_noise_of_its_terms() -> None:
    found = judge_output(scalar(1e-4, torch.float32), scalar(2e-14), scalar(100.0), 0.0, 100)
    assert found.local_u < 1.0
    assert found.rho_max < 1.0


# Operands.
def test_to_fp64_copies_widens_and_translates_dtypes() -> None:
    half, whole, wide = torch.ones(2).half(), torch.arange(2), torch.ones(2, dtype=torch.float64)
    args, kwargs = to_fp64(([half, None], (wide, whole), torch.bfloat16, 3), {"dtype": torch.float32, "memory": torch.int32})
    assert args[0][0].dtype == torch.float64
    assert args[0][1] is None
    assert args[1][0].data_ptr() != wide.data_ptr()
    assert args[1][1].dtype == torch.int64
    assert args[2:] == (torch.float64, 3)
    assert kwargs == {"dtype": torch.float64, "memory": torch.int32}
    assert to_fp64((torch.ones(1, dtype=torch.complex64),), {})[0][0].dtype == torch.complex128


@pytest.mark.parametrize("dtype", [*HALF, torch.float32])
def test_default_epsilon_of_rms_norm_is_that_of_the_kernel(dtype: torch.dtype) -> None:
    tiny = torch.full((1, 64), 2.0**-14, dtype=dtype)
    out = float(torch.nn.functional.rms_norm(tiny, (64,))[0, 0])
    assert 2.0**-14 / math.sqrt(2.0**-28 + default_rms_eps(dtype)) == pytest.approx(out, rel=2**-8)
    assert measure(aten.rms_norm.default, tiny, [64]).rho_max <= 1.0


def test_named_fills_in_schema_defaults() -> None:
    given = named(aten.addmm.default, ("bias", "a"), {"mat2": "b", "alpha": 2})
    assert given == {"self": "bias", "mat1": "a", "mat2": "b", "beta": 1, "alpha": 2}


def test_on_absolute_takes_absolute_tensors_and_factors_but_no_indices() -> None:
    x, source = torch.tensor([-1.0, 2.0]).double(), torch.tensor([-3.0]).double()
    assert on_absolute(aten.index_add.default, (x, 0, torch.tensor([1]), source), {"alpha": -2}).tolist() == [1.0, 8.0]


# What is not judged.
def test_random_ops_are_never_run_again() -> None:
    x = torch.ones(8).half()
    state = torch.get_rng_state()
    assert local_error(aten.bernoulli.default, (x,), {}, x, None) is None
    assert local_error(aten.native_dropout.default, (x, 0.5, True), {}, (x, x > 0), None) is None
    assert torch.equal(torch.get_rng_state(), state)


def test_attention_counts_as_random_only_with_dropout() -> None:
    flash = aten._scaled_dot_product_flash_attention_for_cpu.default
    assert not is_random(flash, (1, 2, 3), {})
    assert is_random(flash, (1, 2, 3, 0.1), {})


def test_views_reads_integers_and_empty_results_are_not_judged() -> None:
    x = torch.ones(4, 4).half()
    assert local_error(aten.view.default, (x, [16]), {}, x.view(16), find_rule(aten.view.default)) is None
    assert local_error(aten.argmax.default, (x,), {}, x.argmax(), find_rule(aten.argmax.default)) is None
    assert local_error(aten.mm.default, (x[:0], x), {}, x[:0] @ x, find_rule(aten.mm.default)) is None
    assert local_error(aten.add.Tensor, (x, x), {}, x + x, OpRule(Family.RANDOM, How.REAL)) is None


def test_an_op_without_a_rule_has_no_rho_and_one_without_a_condition_is_judged_on_its_result() -> None:
    x = torch.randn(50).half()
    found = local_error(aten.sinh.default, (x,), {}, torch.sinh(x), None)
    assert found is not None and found.rho_max is None
    assert 0.0 < found.local_u < 1.0
    assert local_error(aten.sinh.default, (x,), {}, torch.sinh(x), OpRule(Family.POINTWISE)).rho_max <= 1.0


def test_an_op_of_another_library_without_a_rule_is_not_run_again() -> None:
    class Foreign:
        namespace = "c10d"
        tags = ()

    assert local_error(Foreign(), (), {}, torch.ones(1), None) is None


def test_an_op_without_an_fp64_kernel_gives_nothing() -> None:
    def missing(func: Any, args: Any, kwargs: Any) -> Any:
        raise NotImplementedError

    x = torch.ones(2).half()
    assert local_error(aten.exp.default, (x,), {}, x.exp(), OpRule(Family.POINTWISE, reference=missing)) is None


def test_a_mistake_in_a_rule_is_not_swallowed() -> None:
    def wrong(func: Any, args: Any, kwargs: Any) -> Any:
        raise RuntimeError("shapes do not match")

    x = torch.ones(2).half()
    with pytest.raises(RuntimeError, match="shapes"):
        local_error(aten.exp.default, (x,), {}, x.exp(), OpRule(Family.POINTWISE, reference=wrong))


# No side effects.
def test_operands_gradients_modes_and_random_state_are_left_alone() -> None:
    bias, a, b = torch.randn(3, 5), torch.randn(3, 4).requires_grad_(), torch.randn(4, 5)
    kept, state = [t.detach().clone() for t in (bias, a, b)], torch.get_rng_state()
    with torch.autocast("cpu", torch.bfloat16):
        out = (bias + a @ b).detach()
        found = local_error(aten.addmm_.default, (bias, a, b), {}, out, find_rule(aten.addmm_.default))
        assert torch.is_autocast_enabled("cpu")
    assert found is not None and found.y.dtype == torch.float64
    assert torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(t.detach(), k) for t, k in zip((bias, a, b), kept, strict=True))
    assert a.grad is None


def test_batch_norm_does_not_move_its_running_statistics_twice() -> None:
    x, w, mean, var = torch.randn(8, 3, 4).half(), torch.ones(3), torch.zeros(3), torch.ones(3)
    out = aten.native_batch_norm.default(x, w, w, mean, var, True, 0.1, 1e-5)
    moved = mean.clone()
    local_error(aten.native_batch_norm.default, (x, w, w, mean, var, True, 0.1, 1e-5), {}, out, find_rule(aten.native_batch_norm.default))
    assert torch.equal(mean, moved)


def test_out_overloads_and_in_place_ones_are_judged_like_the_functional_one() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(9, 30).half(), torch.randn(30, 7).half()
    plain = measure(aten.mm.default, a, b)
    assert measure(aten.mm.out, a, b, out=torch.empty(9, 7).half()).rho_max == plain.rho_max


# Cost and sampling.
def test_work_of_a_product_counts_multiply_adds_and_of_the_rest_elements() -> None:
    a, b = torch.ones(10, 20), torch.ones(20, 30)
    assert work(aten.mm.default, (a, b), {}, a @ b, find_rule(aten.mm.default)) == 10 * 20 * 30
    assert work(aten.sum.default, (a,), {}, a.sum(), find_rule(aten.sum.default)) == 201


@pytest.mark.parametrize("dtype", HALF)
def test_a_large_product_is_judged_on_a_sample_of_rows_and_columns(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    bias, a, b = torch.randn(300, dtype=dtype), torch.randn(200, 64, dtype=dtype), torch.randn(64, 300, dtype=dtype)
    for func, args in (
        (aten.mm.default, (a, b)),
        (aten.addmm.default, (bias, a, b)),
        (aten.bmm.default, (a.reshape(4, 50, 64), b.expand(4, 64, 300))),
        (aten.mv.default, (a, b[:, 0])),
    ):
        found = measure(func, *args, sample=6000)
        assert 0.0 < found.share < 1.0
        assert found.y is None
        assert found.rho_max <= 1.0
        assert measure(func, *args, sample=10**9).share == 1.0


def test_a_sampled_product_still_shows_a_wrong_kernel() -> None:
    a, b = torch.randn(200, 64).half(), torch.randn(64, 300).half()
    found = local_error(aten.mm.default, (a, b), {}, (a @ b) * 1.1, find_rule(aten.mm.default), sample=5000)
    assert found.rho_max > 50
    assert found.local_u > 100


def test_other_costly_ops_are_skipped_over_the_budget() -> None:
    x = torch.randn(1000).half()
    assert local_error(aten.sum.default, (x,), {}, x.sum(), find_rule(aten.sum.default), sample=100) is None


# Healthy accumulators of this machine, and faults planted or found. Numbers: torch 2.13, CPU.
@pytest.mark.parametrize("dtype", HALF)
def test_half_sums_and_products_have_an_fp32_accumulator(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = (torch.rand(4, 50000) * 0.1).to(dtype)
    assert measure(aten.sum.dim_IntList, x, [1]).rho_max <= 1.0
    assert measure(aten.cumsum.default, x, 1).rho_max <= 1.0
    assert measure(aten.mm.default, x, x.t()).rho_max <= 1.0


@pytest.mark.parametrize("dtype", HALF)
def test_a_sum_that_runs_in_the_storage_dtype_is_seen(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.rand(4, 4096).to(dtype)
    total = torch.zeros(4, dtype=dtype)
    for column in x.T:
        total.add_(column)
    found = local_error(aten.sum.dim_IntList, (x, [1]), {}, total, find_rule(aten.sum.dim_IntList))
    assert found.rho_max > 8
    assert found.local_u > 8


@pytest.mark.parametrize("dtype", HALF)
def test_embedding_gradient_with_60000_hits_on_8_rows_stalls_unless_in_fp32(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    found = measure(
        aten.embedding_dense_backward.default, (torch.rand(60000, 16) * 0.01).to(dtype), torch.randint(0, 8, (60000,)), 8, -1, False
    )
    assert found.rho_max > 100
    assert found.local_u > 100
    assert found.length > 7000
    assert measure(aten.embedding_dense_backward.default, torch.rand(60000, 16), torch.randint(0, 8, (60000,)), 8, -1, False).rho_max < 1.0


@pytest.mark.parametrize("dtype", HALF)
def test_index_add_with_many_duplicates_stalls_in_one_dimension_and_along_inner_ones_only(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    index = torch.randint(0, 4, (20000,))
    flat = measure(aten.index_add.default, torch.zeros(4, dtype=dtype), 0, index, torch.rand(20000).to(dtype))
    inner = measure(aten.index_add.default, torch.zeros(2, 4, 5, dtype=dtype), 1, index[:2000], torch.rand(2, 2000, 5).to(dtype))
    rows = measure(aten.index_add.default, torch.zeros(4, 16, dtype=dtype), 0, index, torch.rand(20000, 16).to(dtype))
    assert flat.rho_max > 100 and inner.rho_max > 8
    assert rows.rho_max <= 1.0


@pytest.mark.parametrize("dtype", HALF)
def test_accumulating_index_put_stalls_while_scatter_add_does_not(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    index, values, zeros = torch.randint(0, 4, (20000,)), torch.rand(20000, 16).to(dtype), torch.zeros(4, 16, dtype=dtype)
    assert measure(aten.index_put.default, zeros, [index], values, True).rho_max > 100
    assert measure(aten.scatter_add.default, zeros, 0, index[:, None].expand(20000, 16), values).rho_max <= 1.0


@pytest.mark.parametrize("weight_dtype", ["same", "fp32"])
@pytest.mark.parametrize("dtype", HALF)
def test_layer_norm_gradients_of_weight_and_bias_lose_digits_over_20000_rows(dtype: torch.dtype, weight_dtype: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(20000, 64).to(dtype)
    w = torch.randn(64).to(dtype if weight_dtype == "same" else torch.float32)
    _, mean, rstd = aten.native_layer_norm.default(x, [64], w, w, 1e-5)
    grad = torch.randn(20000, 64).to(dtype)
    found = measure(aten.native_layer_norm_backward.default, grad, x, [64], mean, rstd, w, w, [True] * 3)
    grad_input, grad_weight, grad_bias = found.outputs
    assert grad_input.rho_max <= 1.0
    assert grad_weight.rho_max > 8
    assert grad_bias.rho_max > 8
    assert max(grad_weight.local_u, grad_bias.local_u) > (20 if dtype == torch.bfloat16 else 4)


def test_layer_norm_bias_gradient_of_one_sign_stalls_in_fp16() -> None:
    torch.manual_seed(0)
    x, w = torch.randn(20000, 16).half(), torch.ones(16).half()
    _, mean, rstd = aten.native_layer_norm.default(x, [16], w, w, 1e-5)
    found = measure(aten.native_layer_norm_backward.default, torch.rand(20000, 16).half(), x, [16], mean, rstd, w, w, [True] * 3)
    assert found.outputs[2].local_u > 1000


@pytest.mark.parametrize("dtype", HALF)
def test_group_and_batch_norm_gradients_keep_fp32_sums(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, grad, w = torch.randn(32, 8, 20, 20).to(dtype), torch.rand(32, 8, 20, 20).to(dtype), torch.randn(8)
    _, mean, rstd = aten.native_group_norm.default(x, w.to(dtype), None, 32, 8, 400, 4, 1e-5)
    assert measure(aten.native_group_norm_backward.default, grad, x, mean, rstd, w.to(dtype), 32, 8, 400, 4, [True] * 3).rho_max <= 1.0
    _, mean, rstd = aten.native_batch_norm.default(x, w, w, None, None, True, 0.1, 1e-5)
    assert measure(aten.native_batch_norm_backward.default, grad, x, w, None, None, mean, rstd, True, 1e-5, [True] * 3).rho_max <= 1.0


def test_mean_negative_log_likelihood_over_32768_tokens_overflows_inside_in_fp16() -> None:
    torch.manual_seed(0)
    log_p = torch.randn(32768, 10).log_softmax(1).half()
    found = measure(aten.nll_loss_forward.default, log_p, torch.randint(0, 10, (32768,)), None, 1, -100)
    assert (found.introduced, found.out_of_range) == (1, 0)  # the mean is near 2.7; its sum is not representable


def test_logsumexp_over_a_wide_row_overflows_inside_in_fp16() -> None:
    found = measure(aten.logsumexp.default, torch.zeros(2, 70000).half(), [1])
    assert (found.introduced, found.out_of_range) == (2, 0)


def test_fp32_vector_norm_of_ten_million_tens_is_seen() -> None:
    found = measure(aten.linalg_vector_norm.default, torch.full((10_000_000,), 10.0))
    assert found.rho_max > 8
    assert found.local_u > 8


def test_an_fp32_norm_off_by_a_thousandth_is_seen_and_a_blocked_one_is_not() -> None:
    x = torch.rand(10_000_000, generator=torch.Generator().manual_seed(0))
    func, rule = aten.linalg_vector_norm.default, find_rule(aten.linalg_vector_norm.default)
    exact = torch.linalg.vector_norm(x.double())
    assert local_error(func, (x,), {}, (exact * (1 - 2**-10)).float(), rule).rho_max > 8
    blocked = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(part) for part in x.split(1 << 12)]))
    assert local_error(func, (x,), {}, blocked, rule).rho_max <= 1.0


def test_attention_without_its_declared_rounding_would_be_a_false_alarm() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 100, 32).bfloat16() for _ in range(3))
    flash = aten._scaled_dot_product_flash_attention_for_cpu.default
    rule = find_rule(flash)
    bare = OpRule(rule.family, rule.how, reference=rule.reference, condition=rule.condition, length=rule.length)
    out = flash(q, k, v)
    assert local_error(flash, (q, k, v), {}, out, rule).rho_max <= 1.0
    assert local_error(flash, (q, k, v), {}, out, bare).rho_max > 8


def test_cancellation_is_the_datas_doing_and_costs_nothing() -> None:
    torch.manual_seed(0)
    a = torch.randn(50, 400)
    b = torch.cat([torch.ones(400, 1), -torch.ones(400, 1)])
    found = measure(aten.mm.default, torch.cat([a, a], 1), b)
    assert found.rho_max < 1.0
