"""Every rule's scale S, length n and internal rounding R, against the native kernels of this machine.

Each case (op_cases.py, op_cases_indexing.py) is one call, run in fp16, bf16 and fp32 where the kernel exists. Healthy kernels stay
at rho <= 1.5; the kernels that do not are listed by name in ``INACCURATE`` and asserted to be seen.
"""

from __future__ import annotations

import op_cases_indexing  # noqa: F401  adds its cases
import pytest
import torch
from op_cases import ALL, CASES, HALF, PLAIN, Case, n
from torch import Tensor

import precisionlab.ops.catalogue  # noqa: F401  registers all rules
from precisionlab.ops.local import LocalError, flat, local_error, map_tensors, to_fp64
from precisionlab.ops.registry import Family, How, all_rules, find_rule

aten = torch.ops.aten

INACCURATE = {
    "addbmm": "adds the batch up in the result's dtype",
    "conv transposed": "adds the taps of the kernel up in the result's dtype",
    "conv backward": "grad_input adds taps up, grad_weight the batch, in the result's dtype",
    "conv transposed backward": "grad_weight adds the batch up in the result's dtype",
    "conv_tbc": "adds the taps up in the result's dtype",
    "conv_tbc backward": "adds the taps up in the result's dtype",
    "prod": "multiplies in the storage dtype",
    "layer_norm backward": "adds rows of grad_weight and grad_bias up in bf16 or fp16",
    "layer_norm backward shifted": "as above",
    "_masked_softmax": "exponentials and their sum in the storage dtype",
    "_masked_softmax backward": "sum in the storage dtype",
    "nll 1": "partial sums in the storage dtype",
    "nll weighted 1": "partial sums in the storage dtype",
    "nll2d 1": "partial sums in the storage dtype",
    "nll weighted 2": "partial sums in the storage dtype",
    "nll2d 2": "partial sums in the storage dtype",
    "huber_loss backward": "an intermediate product is subnormal in fp16",
    "segment_reduce sum": "adds up in the storage dtype",
    "segment_reduce mean": "adds up in the storage dtype",
    "segment_reduce prod": "multiplies in the storage dtype",
    "segment_reduce backward prod": "multiplies in the storage dtype",
    "col2im": "adds up in the storage dtype",
    "reflection_pad2d backward": "adds up in the storage dtype",
    "replication_pad2d backward": "adds up in the storage dtype",
    "max_pool2d backward": "adds up in the storage dtype",
    "adaptive_max_pool2d backward": "adds up in the storage dtype",
    "avg_pool2d backward": "adds up in the storage dtype",
    "adaptive_avg_pool2d backward": "adds up in the storage dtype",
    "adaptive_avg_pool3d": "adds up in the storage dtype",
    "adaptive_avg_pool3d backward": "adds up in the storage dtype",
    "grid_sampler_2d 0": "positions in the storage dtype",
    "grid_sampler_2d backward 0": "positions in the storage dtype",
    "grid_sampler_2d 1": "positions in the storage dtype: another pixel is taken",
    "grid_sampler_2d backward 1": "positions in the storage dtype",
    "grid_sampler_2d 2": "positions in the storage dtype",
    "grid_sampler_2d backward 2": "positions in the storage dtype",
    "grid_sampler_3d": "positions in the storage dtype",
}
"""CPU kernels of torch 2.13 whose half results are worse than one rounding and an fp32 accumulator, with what they do."""

BY_NAME = {c.name: c for c in CASES}
FAMILIES = {Family.DOT, Family.CONVOLUTION, Family.REDUCTION, Family.NORMALISATION, Family.SOFTMAX, Family.ATTENTION, Family.LOSS}
FAMILIES |= {Family.INDEXING, Family.SCAN, Family.LINALG}


def run(c: Case, dtype: torch.dtype) -> LocalError | None:
    """The local error of one case, None where this machine has no such kernel."""
    torch.manual_seed(0)
    try:
        args, kwargs = c.build(dtype)
        before = map_tensors(torch.clone, (args, kwargs))
        with torch.no_grad():
            out = c.func(*args, **kwargs)
    except (RuntimeError, NotImplementedError) as error:
        if "not implemented" not in str(error) and "upport" not in str(error):
            raise
        return None
    found = local_error(c.func, before[0], before[1], out, find_rule(c.func))
    assert found is not None
    return found


@pytest.mark.parametrize("name", [c.name for c in CASES if c.name not in INACCURATE])
def test_a_healthy_kernel_stays_within_its_bound(name: str) -> None:
    for dtype in BY_NAME[name].dtypes:
        found = run(BY_NAME[name], dtype)
        assert found is None or found.rho_max is None or found.rho_max <= 1.5, dtype
        assert found is None or found.introduced == 0, dtype


@pytest.mark.parametrize("name", INACCURATE)
def test_an_inaccurate_half_kernel_is_seen_while_its_fp32_twin_is_quiet(name: str) -> None:
    found = {dtype: run(BY_NAME[name], dtype) for dtype in ALL}
    assert found[torch.float32].rho_max <= 1.5
    assert max(found[d].rho_max for d in HALF if found[d] is not None) > 1.5


@pytest.mark.parametrize("name", BY_NAME)
def test_scales_and_inner_roundings_are_shaped_like_the_result(name: str) -> None:
    torch.manual_seed(0)
    c = BY_NAME[name]
    args, kwargs = to_fp64(*c.build(torch.float32), c.func)
    rule = find_rule(c.func)
    assert rule is not None and rule.how is How.RERUN
    with torch.no_grad():
        y = (rule.reference or (lambda func, a, k: func(*a, **k)))(c.func, *map_tensors(torch.clone, (args, kwargs)))
        ys = flat(y)
        assert isinstance(rule.length(c.func, args, kwargs, y) if rule.length else 1, int)
        for made in (
            rule.condition and rule.condition(c.func, args, kwargs, y),
            rule.internal and rule.internal(c.func, args, kwargs, y, 2.0**-8),
        ):
            for part, result in zip(flat(made), ys, strict=False):
                if isinstance(part, Tensor):
                    assert part.shape == result.shape
                    assert part.dtype == torch.float64
                    assert not (part < 0).any()
                    assert not torch.isnan(part[torch.isfinite(result)]).any()


def test_every_rule_of_these_modules_has_a_case_here() -> None:
    own = {id(rule): (target, rule) for target, rule in all_rules().items() if rule.family in FAMILIES}
    used = {id(find_rule(c.func)) for c in CASES}
    missing = [str(target) for key, (target, _) in own.items() if key not in used]
    assert missing == [str(aten._fused_rms_norm_backward)]  # no CPU kernel: its reference is tested below
    assert all(rule.how is How.RERUN for _, rule in own.values())


# Hand values.
def test_scale_of_a_product_is_the_product_of_absolute_values() -> None:
    a, b = torch.tensor([[1.0, -2.0]], dtype=torch.float64), torch.tensor([[3.0], [1.5]], dtype=torch.float64)
    rule = find_rule(aten.mm.default)
    assert rule.condition(aten.mm.default, (a, b), {}, a @ b).item() == 6.0
    assert rule.length(aten.mm.default, (a, b), {}, a @ b) == 2


def test_length_of_an_embedding_gradient_is_the_count_of_the_most_frequent_index() -> None:
    rule = find_rule(aten.embedding_dense_backward.default)
    args = (torch.ones(5, 2, dtype=torch.float64), torch.tensor([3, 3, 0, 3, 1]), 4, -1, False)
    assert rule.length(aten.embedding_dense_backward.default, args, {}, None) == 3


def test_length_of_a_grouped_convolution_counts_the_channels_of_its_group() -> None:
    rule = find_rule(aten.convolution.default)
    x, w = torch.zeros(1, 8, 5, 5, dtype=torch.float64), torch.zeros(4, 2, 3, 3, dtype=torch.float64)
    assert rule.length(aten.convolution.default, (x, w, None, *PLAIN, 4), {}, None) == 18


def test_accumulating_index_put_has_its_rule_while_index_put_itself_may_stay_a_copy() -> None:
    assert find_rule(aten.index_put.default).family is Family.INDEXING
    assert find_rule(aten.index_put_.default).family is Family.INDEXING
    assert find_rule(aten.scatter.reduce).family is Family.INDEXING


def test_condition_of_an_in_place_op_leaves_its_operands_alone() -> None:
    args = (n(4, 3).double(), n(4, 5).double(), n(5, 3).double())
    kept = [a.clone() for a in args]
    find_rule(aten.addmm_.default).condition(aten.addmm_.default, args, {}, args[0])
    assert all(torch.equal(a, b) for a, b in zip(args, kept, strict=True))


# References of ops without an fp64 kernel.
def test_references_of_gpu_attention_agree_with_the_cpu_kernel_and_with_autograd() -> None:
    torch.manual_seed(0)
    q, k, v = (n(2, 3, 20, 8).double().requires_grad_() for _ in range(3))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    grad = torch.randn_like(expected)
    gradients = torch.autograd.grad(expected, (q, k, v), grad)
    with torch.no_grad():
        efficient = aten._scaled_dot_product_efficient_attention
        out, lse = find_rule(efficient.default).reference(efficient.default, (q, k, v, None, True, 0.0, True), {})
        back = aten._scaled_dot_product_efficient_attention_backward.default
        padded = torch.nn.functional.pad(lse, (0, 12))
        found = find_rule(back).reference(back, (grad, q, k, v, None, out, padded, None, None, 0.0, [True] * 4, True), {})
    assert torch.allclose(out, expected, atol=1e-14)
    assert all(torch.allclose(a, b, atol=1e-13) for a, b in zip(found, gradients, strict=True))


def test_reference_of_attention_refuses_dropout_it_cannot_know() -> None:
    flash = aten._scaled_dot_product_flash_attention.default
    with pytest.raises(NotImplementedError):
        find_rule(flash).reference(flash, (*(n(1, 1, 4, 8).double() for _ in range(3)), 0.1), {})


def test_reference_shares_key_heads_in_grouped_query_attention() -> None:
    torch.manual_seed(0)
    q, k, v = n(1, 4, 6, 8).double(), n(1, 2, 6, 8).double(), n(1, 2, 6, 8).double()
    flash = aten._scaled_dot_product_flash_attention.default
    out = find_rule(flash).reference(flash, (q, k, v), {})[0]
    assert torch.allclose(out, torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True))


def test_reference_of_the_rms_norm_gradient_agrees_with_autograd() -> None:
    torch.manual_seed(0)
    x, w, grad = n(2, 5, 16).double().requires_grad_(), n(16).double().requires_grad_(), n(2, 5, 16).double()
    expected = torch.autograd.grad(torch.nn.functional.rms_norm(x, (16,), w, 1e-6), (x, w), grad)
    func = aten._fused_rms_norm_backward.default
    with torch.no_grad():
        rstd = x.square().mean(-1, keepdim=True).add(1e-6).rsqrt()
        args = (grad, x, [16], rstd, w, [True, True])
        found = find_rule(func).reference(func, args, {})
        scales = find_rule(func).condition(func, args, {}, found)
    assert all(torch.allclose(a, b, atol=1e-13) for a, b in zip(found, expected, strict=True))
    assert [s.shape for s in scales] == [x.shape, w.shape]
    assert find_rule(func).length(func, args, {}, found) == 16


def test_reference_of_a_half_product_with_fp32_result_is_the_plain_product() -> None:
    a, b = n(4, 5).double(), n(5, 3).double()
    func = aten.mm.dtype
    rule = find_rule(func)
    assert torch.equal(rule.reference(func, (a, b, torch.float64), {}), a @ b)
    assert torch.allclose(rule.condition(func, (a, b, torch.float64), {}, a @ b), a.abs() @ b.abs())


@pytest.mark.parametrize("name", ["cudnn_convolution", "miopen_convolution"])
def test_references_of_backend_convolutions_are_the_generic_one(name: str) -> None:
    func = getattr(aten, name).default
    x, w = n(1, 4, 6, 6).double(), n(3, 4, 3, 3).double()
    given = {"self": x, "weight": w, "bias": None, "padding": [1, 1], "stride": [1, 1], "dilation": [1, 1], "groups": 1}
    args = [given.get(a.name, False) for a in func._schema.arguments]
    assert torch.allclose(find_rule(func).reference(func, args, {}), torch.conv2d(x, w, None, 1, 1))


def test_softmax_of_half_to_float_runs_in_fp64() -> None:
    x = n(4, 6).double()
    func = aten._softmax.default
    assert torch.allclose(find_rule(func).reference(func, (x, -1, True), {}), x.softmax(-1))
