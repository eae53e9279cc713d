"""Elementwise rules: native half kernels stay within the bound their rule states; condition numbers against mpmath's derivative."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import pytest
import torch
from mpmath import mpf
from torch import Tensor

from precisionlab.ops import stable
from precisionlab.ops.pointwise import kappa
from precisionlab.ops.registry import Family, How, find_rule

aten = torch.ops.aten
SIZE = 4096
EVERY_THIRD = torch.arange(SIZE) % 3 == 0
HEALTHY = 1.5
"""Largest rho of a healthy native kernel. Source: SCIENCE 5a."""


def draw(dtype: torch.dtype, kind: str, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(SIZE, generator=generator)
    values = {
        "normal": normal,
        "wide": normal * 4,
        "positive": normal.exp(),
        "unit": torch.rand(SIZE, generator=generator).clamp(1e-3, 0.999),
        "signed unit": (torch.rand(SIZE, generator=generator) * 2 - 1) * 0.999,
        "above one": 1 + normal.exp(),
    }[kind]
    return values.to(dtype)


def rho(low: Tensor, y: Tensor, scale: Tensor, internal: Any) -> float:
    """|low - y| over half an ulp, 4 u_acc S and R, above the materiality floor 2^-4 u rms(y). Source: SCIENCE 5a."""
    u = torch.finfo(low.dtype).eps / 2
    tiny = torch.finfo(low.dtype).smallest_normal
    ok = low.isfinite() & y.isfinite()
    low, y, scale, inner = low[ok].double(), y[ok], scale[ok], (internal[ok] if isinstance(internal, Tensor) else internal)
    error = (low - y).abs()
    binade = torch.exp2(torch.floor(torch.log2(y.abs().clamp_min(tiny))))
    ratio = error / (u * binade + 4 * 2.0**-24 * scale + inner)
    material = error >= 2.0**-4 * u * y.square().mean().sqrt()
    return ratio[material].max().item() if bool(material.any()) else 0.0


def judged(func: Any, args: tuple, kwargs: dict[str, Any] | None = None) -> float:
    """rho of a native kernel, by the rule of its op."""
    kwargs = kwargs or {}
    rule = find_rule(func)
    assert rule is not None and rule.family is Family.POINTWISE, f"{func} has no pointwise rule"
    low = func(*args, **kwargs)
    wide = tuple(arg.double() if isinstance(arg, Tensor) and arg.is_floating_point() else arg for arg in args)
    y = func(*wide, **kwargs) if rule.reference is None else rule.reference(func, wide, kwargs)
    scale = y.abs() if rule.condition is None else rule.condition(func, wide, kwargs, y)
    assert scale.shape == y.shape and bool((scale[y.isfinite()] >= 0).all())
    internal = 0.0 if rule.internal is None else rule.internal(func, wide, kwargs, y, torch.finfo(low.dtype).eps / 2)
    return rho(low, y, scale, internal)


UNARY = {
    "exp": "normal", "expm1": "normal", "exp2": "normal", "log": "positive", "log2": "positive", "log10": "positive",
    "log1p": "positive", "sqrt": "positive", "rsqrt": "positive", "reciprocal": "positive", "sin": "wide", "cos": "wide",
    "tan": "normal", "asin": "signed unit", "acos": "signed unit", "atan": "wide", "sinh": "normal", "cosh": "normal",
    "tanh": "wide", "asinh": "wide", "acosh": "above one", "atanh": "signed unit", "sigmoid": "wide", "silu": "wide",
    "gelu": "wide", "mish": "wide", "softplus": "wide", "hardswish": "wide", "hardsigmoid": "wide", "elu": "wide", "celu": "wide",
    "leaky_relu": "wide", "relu": "wide", "hardtanh": "wide", "softshrink": "wide", "hardshrink": "wide", "erf": "normal",
    "erfc": "normal", "erfinv": "signed unit", "logit": "unit", "sinc": "normal", "lgamma": "positive", "digamma": "positive",
    "neg": "wide", "abs": "wide", "sign": "wide", "floor": "wide", "ceil": "wide", "round": "wide", "trunc": "wide",
    "frac": "wide", "deg2rad": "wide", "i0": "normal", "special_i1": "normal", "special_entr": "positive",
}  # fmt: skip
BINARY = {
    "add": ("normal", "normal"), "sub": ("normal", "normal"), "rsub": ("normal", "normal"), "mul": ("normal", "normal"),
    "div": ("normal", "positive"), "pow": ("positive", "normal"), "atan2": ("normal", "normal"), "fmod": ("wide", "positive"),
    "remainder": ("wide", "positive"), "hypot": ("normal", "normal"), "logaddexp": ("wide", "wide"),
    "logaddexp2": ("normal", "normal"), "xlogy": ("normal", "positive"), "special_xlog1py": ("normal", "positive"),
    "maximum": ("normal", "normal"), "minimum": ("normal", "normal"), "fmax": ("normal", "normal"), "fmin": ("normal", "normal"),
    "copysign": ("normal", "normal"), "_prelu_kernel": ("normal", "normal"), "tanh_backward": ("normal", "signed unit"),
    "sigmoid_backward": ("normal", "unit"), "silu_backward": ("normal", "wide"), "gelu_backward": ("normal", "wide"),
    "mish_backward": ("normal", "wide"), "hardswish_backward": ("normal", "wide"), "hardsigmoid_backward": ("normal", "wide"),
}  # fmt: skip
OTHER = [
    (aten.add.Tensor, ("normal", "normal"), {"alpha": -2.5}),
    (aten.rsub.Scalar, ("normal", 1.5, 0.75), {}),
    (aten.add.Scalar, ("normal", 1.5, -0.75), {}),
    (aten.div.Tensor_mode, ("wide", "positive"), {"rounding_mode": "trunc"}),
    (aten.div.Tensor_mode, ("wide", "positive"), {"rounding_mode": "floor"}),
    (aten.pow.Tensor_Scalar, ("positive", -0.5), {}),
    (aten.pow.Tensor_Scalar, ("wide", 3), {}),
    (aten.pow.Scalar, (10.0, "normal"), {}),
    (aten.lerp.Scalar, ("normal", "normal", 0.1), {}),
    (aten.lerp.Scalar, ("normal", "normal", 0.9), {}),
    (aten.lerp.Tensor, ("normal", "normal", "unit"), {}),
    (aten.addcmul.default, ("normal", "normal", "normal"), {"value": -1.5}),
    (aten.addcdiv.default, ("normal", "normal", "positive"), {"value": -1.5}),
    (aten.gelu.default, ("wide",), {"approximate": "tanh"}),
    (aten.gelu_backward.default, ("normal", "wide"), {"approximate": "tanh"}),
    (aten.softplus.default, ("wide", 2.0, 10.0), {}),
    (aten.softplus_backward.default, ("normal", "wide", 1, 20), {}),
    (aten.elu_backward.default, ("normal", 1.0, 1.0, 1.0, False, "wide"), {}),
    (aten.elu_backward.default, ("normal", 1.0, 1.0, 1.0, True, "signed unit"), {}),
    (aten.threshold_backward.default, ("normal", "normal", 0.0), {}),
    (aten.leaky_relu_backward.default, ("normal", "normal", 0.1, False), {}),
    (aten.hardtanh_backward.default, ("normal", "normal", -1.0, 1.0), {}),
    (aten.clamp.default, ("wide", -1.0, 2.0), {}),
    (aten.clamp_min.default, ("wide", 0.3), {}),
    (aten.glu.default, ("wide", 0), {}),
    (aten.masked_fill.Scalar, ("normal", EVERY_THIRD, -5.0), {}),
    (aten.where.self, (EVERY_THIRD, "normal", "wide"), {}),
    (aten.nan_to_num.default, ("normal",), {}),
    (aten.logit.default, ("unit", 1e-2), {}),
]


def _first(name: str) -> Any:
    packet = getattr(aten, name)
    return getattr(packet, "Tensor" if "Tensor" in packet.overloads() else packet.overloads()[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("name", UNARY)
def test_native_unary_kernels_stay_within_their_rules_bound(name: str, dtype: torch.dtype) -> None:
    assert judged(_first(name), (draw(dtype, UNARY[name], 0),)) <= HEALTHY


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("name", BINARY)
def test_native_binary_kernels_stay_within_their_rules_bound(name: str, dtype: torch.dtype) -> None:
    kinds = BINARY[name]
    operands = tuple(draw(dtype, kind, seed) for seed, kind in enumerate(kinds))
    func = aten.pow.Tensor_Tensor if name == "pow" else _first(name)
    assert judged(func, operands) <= HEALTHY


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=lambda d: str(d)[6:])
@pytest.mark.parametrize(("func", "kinds", "kwargs"), OTHER, ids=str)
def test_native_kernels_with_options_stay_within_their_rules_bound(func: Any, kinds: tuple, kwargs: dict, dtype: torch.dtype) -> None:
    operands = tuple(draw(dtype, kind, seed) if isinstance(kind, str) else kind for seed, kind in enumerate(kinds))
    assert judged(func, operands, kwargs) <= HEALTHY


def test_glu_backward_is_judged_on_both_halves() -> None:
    grad, x = draw(torch.bfloat16, "normal", 0), torch.cat((draw(torch.bfloat16, "normal", 1), draw(torch.bfloat16, "wide", 2)))
    assert judged(aten.glu_backward.default, (grad, x, 0)) <= HEALTHY


def test_cancellation_in_a_sum_is_judged_on_its_terms() -> None:
    a, b = torch.tensor([1.0]).double(), torch.tensor([-1.0 + 2.0**-30]).double()
    rule = find_rule(aten.add.Tensor)
    assert rule is not None and rule.condition is not None
    assert rule.condition(aten.add.Tensor, (a, b), {}, a + b).item() == pytest.approx(2.0)
    assert rule.condition(aten.add.Tensor, (a, b), {"alpha": 3}, a + 3 * b).item() == pytest.approx(4.0)


def test_a_reversed_difference_scales_the_operand_it_subtracts() -> None:
    rule = find_rule(aten.rsub.Scalar)
    assert rule is not None and rule.condition is not None
    a = torch.tensor([2.0]).double()
    assert rule.condition(aten.rsub.Scalar, (a, 5.0, 10), {}, 5 - 10 * a).item() == 25.0


def test_sums_with_integers_and_bools_have_a_scale() -> None:
    rule = find_rule(aten.add.Tensor)
    assert rule is not None and rule.condition is not None
    a = torch.tensor([2.0, -2.0]).double()
    for other in (torch.tensor([True, False]), torch.tensor([1, 0]), torch.tensor(1)):
        assert rule.condition(aten.add.Tensor, (a, other), {}, a + other)[0].item() == 3.0


def test_in_place_and_out_overloads_share_the_rule() -> None:
    assert find_rule(aten.gelu_.default) is find_rule(aten.gelu.default)
    assert find_rule(aten.mul_.Tensor) is find_rule(aten.mul.out) is find_rule(aten.mul.Tensor)
    rule = find_rule(aten.gelu.out)
    assert rule is not None and rule.reference is not None
    x = torch.tensor([-9.0]).double()
    assert rule.reference(aten.gelu.out, (x,), {"approximate": "none", "out": torch.empty(1)}).item() < 0


def test_nan_to_num_leaves_an_infinity_without_a_given_value_to_the_program() -> None:
    rule = find_rule(aten.nan_to_num.default)
    assert rule is not None and rule.reference is not None
    x = torch.tensor([math.nan, math.inf, 1.0]).double()
    with pytest.raises(NotImplementedError, match="posinf"):
        rule.reference(aten.nan_to_num.default, (x,), {})
    assert rule.reference(aten.nan_to_num.default, (x, 0.0, 7.0), {}).tolist() == [0.0, 7.0, 1.0]
    assert rule.reference(aten.nan_to_num.default, (x[2:],), {}).tolist() == [1.0]


@pytest.mark.parametrize("name", ["nextafter", "frexp"])
def test_format_specific_ops_take_the_programs_value(name: str) -> None:
    rule = find_rule(_first(name))
    assert rule is not None and rule.how is How.REAL and rule.note


NOT_ARITHMETIC = (
    "bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor gcd lcm equal signbit clone "
    "eq ge gt le lt ne isinf isnan isneginf isposinf logical_and logical_not logical_or logical_xor native_dropout_backward"
)


def test_every_op_torch_tags_pointwise_and_dispatches_has_a_rule() -> None:
    missing = []
    for schema in torch._C._jit_get_all_schemas():
        namespace, _, name = schema.name.partition("::")
        if namespace != "aten" or name.endswith("_") or name in NOT_ARITHMETIC.split() or not hasattr(aten, name):
            continue
        func = getattr(getattr(aten, name), schema.overload_name or "default", None)
        if func is None or torch.Tag.pointwise not in func.tags or not any(a.type.kind() == "TensorType" for a in schema.arguments):
            continue
        qualified = schema.name + (f".{schema.overload_name}" if schema.overload_name else "")
        composed = torch._C._dispatch_has_kernel_for_dispatch_key(qualified, "CompositeImplicitAutograd")
        if not composed and find_rule(func) is None:
            missing.append(str(func))
    assert missing == []


SIGMOID = lambda x: 1 / (1 + mpmath.exp(-x))  # noqa: E731
SOFTPLUS = lambda x: mpmath.log1p(mpmath.exp(x))  # noqa: E731
FUNCTIONS: dict[str, Any] = {
    "log2": lambda x: mpmath.log(x, 2), "log_sigmoid_forward": lambda x: mpmath.log(SIGMOID(x)), "rsqrt": lambda x: 1 / mpmath.sqrt(x),
    "reciprocal": lambda x: 1 / x, "neg": lambda x: -x, "abs": abs, "relu": lambda x: max(x, mpf(0)), "exp2": lambda x: mpf(2) ** x,
    "sigmoid": SIGMOID, "silu": lambda x: x * SIGMOID(x), "gelu": lambda x: x * mpmath.erfc(-x / mpmath.sqrt(2)) / 2,
    "mish": lambda x: x * mpmath.tanh(SOFTPLUS(x)), "logit": lambda x: mpmath.log(x / (1 - x)), "lgamma": mpmath.loggamma,
}  # fmt: skip
POINTS = {
    "unit": [0.03, 0.4, 0.93],
    "above one": [1.03, 2.4, 30.0],
    "positive": [0.03, 0.7, 2.4, 30.0],
    "real": [-6.5, -0.7, 0.03, 1.3, 5.0],
}
DOMAIN = {
    "log": "positive", "log2": "positive", "log10": "positive", "sqrt": "positive", "rsqrt": "positive", "acosh": "above one",
    "logit": "unit", "log1p": "positive", "lgamma": "positive", "asin": "unit", "acos": "unit", "atanh": "unit", "erfinv": "unit",
}  # fmt: skip


@pytest.mark.parametrize("name", stable._KAPPA)
def test_condition_numbers_equal_the_derivatives(name: str) -> None:
    function = FUNCTIONS.get(name) or getattr(mpmath, name)
    points = POINTS[DOMAIN.get(name, "real")]
    found = kappa(getattr(aten, name).default, (torch.tensor(points, dtype=torch.float64),))
    assert found is not None
    with mpmath.workprec(200):
        truth = [float(abs(mpf(x) * mpmath.diff(function, mpf(x)) / function(mpf(x)))) if function(mpf(x)) else 0.0 for x in points]
    torch.testing.assert_close(found, torch.tensor(truth, dtype=torch.float64), rtol=1e-9, atol=1e-12)


def test_condition_number_of_gelus_tanh_form() -> None:
    x = torch.tensor([-4.0, -0.7, 1.3], dtype=torch.float64)

    def gelu(v: mpf) -> mpf:
        return v * SIGMOID(2 * mpmath.sqrt(2 / mpmath.pi) * (v + mpf(0.044715) * v**3))

    found = kappa(aten.gelu.default, (x,), {"approximate": "tanh"})
    assert found is not None
    with mpmath.workprec(200):
        truth = [float(abs(v * mpmath.diff(gelu, mpf(v)) / gelu(mpf(v)))) for v in x.tolist()]
    torch.testing.assert_close(found, torch.tensor(truth, dtype=torch.float64), rtol=1e-9, atol=0)


def test_condition_numbers_at_zero_are_limits_and_at_roots_infinite() -> None:
    zero = torch.zeros(1, dtype=torch.float64)
    for name, limit in (("sin", 1.0), ("tanh", 1.0), ("exp", 0.0), ("gelu", 1.0), ("erf", 1.0), ("log1p", 1.0)):
        found = kappa(getattr(aten, name).default, (zero,))
        assert found is not None and found.item() == limit
    at_root = kappa(aten.log.default, (torch.ones(1, dtype=torch.float64),))
    assert at_root is not None and math.isinf(at_root.item())


def test_condition_numbers_of_powers_and_of_ops_without_one() -> None:
    x = torch.tensor([2.0, -3.0], dtype=torch.float64)
    cube, exponential = kappa(aten.pow.Tensor_Scalar, (x, 3)), kappa(aten.pow.Scalar, (10.0, x))
    assert cube is not None and cube.tolist() == [3.0, 3.0]
    assert exponential is not None and exponential.tolist() == pytest.approx([2 * math.log(10), 3 * math.log(10)])
    assert kappa(aten.add.Tensor, (x, x)) is None
    assert kappa(aten.exp_.default, (x,)) is not None
