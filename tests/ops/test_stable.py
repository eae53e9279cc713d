"""The fp64 references against mpmath at 120 bits (and more where the oracle itself cancels), on thinned fp16 and bf16 grids.

Each op is called as the analyzer would call it: through its rule's ``reference`` if it has one, else as torch's own fp64 kernel. So the
same claim covers what was replaced and what was left alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch
from mpmath import mp, mpf
from torch import Tensor

import precisionlab.ops.pointwise  # noqa: F401  registers the rules
from precisionlab.ops import stable
from precisionlab.ops.registry import find_rule

aten = torch.ops.aten
BITS = 120
TOLERANCE = 1e-12
LANDMARKS = [
    0.0,
    0.5,
    -0.5,
    1.0,
    -1.0,
    2.0,
    3.0,
    -3.0,
    6.0,
    -6.0,
    -7.0,
    -8.0,
    -8.5,
    -9.0,
    -10.0,
    -12.0,
    20.0,
    20.125,
    -20.0,
    -26.0,
    30.0,
    -36.0,
    37.0,
]


@pytest.fixture(autouse=True)
def bits() -> Any:
    with mpmath.workprec(BITS):
        yield


def halves(count: int) -> Tensor:
    """``count`` finite values of each half format, evenly over its bit patterns (so over its exponents), and the landmarks, as fp64."""
    patterns = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16)
    found = [torch.tensor(LANDMARKS, dtype=torch.float64)]
    for dtype in (torch.float16, torch.bfloat16):
        grid = patterns.view(dtype).double()
        grid = grid[grid.isfinite()]
        found.append(grid[:: max(1, grid.numel() // count)])
    return torch.unique(torch.cat(found))


def evaluate(func: Any, *args: Any, **kwargs: Any) -> Tensor:
    """The fp64 result the analyzer would take for the truth."""
    rule = find_rule(func)
    assert rule is not None, f"{func} has no rule"
    result = func(*args, **kwargs) if rule.reference is None else rule.reference(func, args, kwargs)
    return result[0] if isinstance(result, tuple) else result


def worst(x: Tensor, y: Tensor, oracle: Callable[[mpf], Any]) -> tuple[float, float]:
    """(largest relative error, where) over the points whose true value is a normal fp64 number; an exact 0 must be met exactly."""
    found = (0.0, math.nan)
    for operand, result in zip(x.tolist(), y.tolist(), strict=True):
        try:
            truth = oracle(mpf(operand))
        except (ZeroDivisionError, ValueError, OverflowError):
            continue
        if truth is None or isinstance(truth, mpmath.mpc) or not mpmath.isfinite(truth):
            continue
        if truth == 0:
            error = 0.0 if result == 0 else math.inf
        elif not mpf(2) ** -1022 <= abs(truth) < mpf(2) ** 1023:
            continue
        else:
            error = float(abs(mpf(result) - truth) / abs(truth)) if math.isfinite(result) else math.inf
        found = max(found, (error, operand))
    return found


def big_phi(x: mpf) -> mpf:
    return mpmath.erfc(-x / mpmath.sqrt(2)) / 2


def phi(x: mpf) -> mpf:
    return mpmath.exp(-x * x / 2) / mpmath.sqrt(2 * mp.pi)


def sigmoid(x: mpf) -> mpf:
    return 1 / (1 + mpmath.exp(-x))


def softplus(x: mpf) -> mpf:
    return max(x, mpf(0)) + mpmath.log1p(mpmath.exp(-abs(x)))


def tanh_argument(x: mpf) -> mpf:
    return 2 * mpmath.sqrt(2 / mp.pi) * (x + mpf(0.044715) * x**3)


def gelu_tanh_slope(x: mpf) -> mpf:
    slope = 2 * mpmath.sqrt(2 / mp.pi) * (1 + 3 * mpf(0.044715) * x * x)
    s, rest = sigmoid(tanh_argument(x)), sigmoid(-tanh_argument(x))
    return s + x * s * rest * slope


def trigamma(x: mpf) -> mpf | None:
    return mpmath.psi(1, x) if abs(x) < 1e3 and not (x <= 0 and x == int(x)) else None


def bounded(function: Callable[[mpf], Any], low: float, high: float) -> Callable[[mpf], Any]:
    return lambda x: function(x) if low < x < high else None


def mish_slope(x: mpf) -> mpf:
    t = mpmath.tanh(softplus(x))
    return t + x * sigmoid(x) / mpmath.cosh(softplus(x)) ** 2


# (name, call, oracle): the call gets x, for backward ops the incoming gradient is 1.
REPLACED = [
    ("gelu", lambda x: evaluate(aten.gelu.default, x), lambda x: x * big_phi(x)),
    ("gelu tanh", lambda x: evaluate(aten.gelu.default, x, approximate="tanh"), lambda x: x * sigmoid(tanh_argument(x))),
    ("gelu_backward", lambda x: evaluate(aten.gelu_backward.default, torch.ones_like(x), x), lambda x: big_phi(x) + x * phi(x)),
    ("gelu_backward tanh", lambda x: evaluate(aten.gelu_backward.default, torch.ones_like(x), x, approximate="tanh"), gelu_tanh_slope),
    ("sinc", lambda x: evaluate(aten.sinc.default, x), lambda x: mpf(0) if x and x == int(x) else mpmath.sincpi(x)),
    ("trigamma", lambda x: evaluate(aten.polygamma.default, 1, x), trigamma),
]
SLOW_REPLACED = [
    ("bessel_j0", lambda x: evaluate(aten.special_bessel_j0.default, x), bounded(lambda x: mpmath.besselj(0, x), -99, 99)),
    ("bessel_j1", lambda x: evaluate(aten.special_bessel_j1.default, x), bounded(lambda x: mpmath.besselj(1, x), -99, 99)),
    ("bessel_y0", lambda x: evaluate(aten.special_bessel_y0.default, x), bounded(lambda x: mpmath.bessely(0, x), 1e-4, 99)),
    ("bessel_y1", lambda x: evaluate(aten.special_bessel_y1.default, x), bounded(lambda x: mpmath.bessely(1, x), 1e-4, 99)),
    ("airy_ai", lambda x: evaluate(aten.special_airy_ai.default, x), bounded(mpmath.airyai, -20, 20)),
]
LEFT_ALONE = [
    ("exp", aten.exp.default, mpmath.exp),
    ("expm1", aten.expm1.default, mpmath.expm1),
    ("exp2", aten.exp2.default, lambda x: mpf(2) ** x),
    ("log", aten.log.default, bounded(mpmath.log, 0, math.inf)),
    ("log2", aten.log2.default, bounded(lambda x: mpmath.log(x, 2), 0, math.inf)),
    ("log1p", aten.log1p.default, bounded(mpmath.log1p, -1, math.inf)),
    ("rsqrt", aten.rsqrt.default, bounded(lambda x: 1 / mpmath.sqrt(x), 0, math.inf)),
    ("sin", aten.sin.default, mpmath.sin),
    ("cos", aten.cos.default, mpmath.cos),
    ("tan", aten.tan.default, mpmath.tan),
    ("asin", aten.asin.default, bounded(mpmath.asin, -1, 1)),
    ("acos", aten.acos.default, bounded(mpmath.acos, -1, 1)),
    ("atan", aten.atan.default, mpmath.atan),
    ("sinh", aten.sinh.default, mpmath.sinh),
    ("cosh", aten.cosh.default, mpmath.cosh),
    ("tanh", aten.tanh.default, mpmath.tanh),
    ("asinh", aten.asinh.default, mpmath.asinh),
    ("acosh", aten.acosh.default, bounded(mpmath.acosh, 1, math.inf)),
    ("atanh", aten.atanh.default, bounded(mpmath.atanh, -1, 1)),
    ("sigmoid", aten.sigmoid.default, sigmoid),
    ("silu", aten.silu.default, lambda x: x * sigmoid(x)),
    ("mish", aten.mish.default, lambda x: x * mpmath.tanh(softplus(x))),
    ("softplus", aten.softplus.default, lambda x: softplus(x) if x <= 20 else x),
    ("log_sigmoid", aten.log_sigmoid_forward.default, lambda x: -softplus(-x)),
    ("elu", aten.elu.default, lambda x: x if x > 0 else mpmath.expm1(x)),
    ("celu", aten.celu.default, lambda x: x if x > 0 else mpmath.expm1(x)),
    ("erf", aten.erf.default, mpmath.erf),
    ("erfc", aten.erfc.default, mpmath.erfc),
    ("erfcx", aten.special_erfcx.default, bounded(lambda x: mpmath.exp(x * x) * mpmath.erfc(x), -26, 100)),
    (
        "log_ndtr",
        aten.special_log_ndtr.default,
        bounded(lambda x: mpmath.log1p(-big_phi(-x)) if x > 0 else mpmath.log(big_phi(x)), -100, 37),
    ),
    ("logit", aten.logit.default, bounded(lambda x: mpmath.log(x / (1 - x)), 0, 1)),
    ("lgamma", aten.lgamma.default, bounded(mpmath.loggamma, 0, math.inf)),
    ("entr", aten.special_entr.default, bounded(lambda x: -x * mpmath.log(x), 0, math.inf)),
    ("i0e", aten.special_i0e.default, bounded(lambda x: mpmath.besseli(0, x) * mpmath.exp(-abs(x)), -90, 90)),
    ("i1e", aten.special_i1e.default, bounded(lambda x: mpmath.besseli(1, x) * mpmath.exp(-abs(x)), -90, 90)),
]
LEFT_ALONE_BACKWARD = [
    ("silu_backward", aten.silu_backward.default, (), lambda x: sigmoid(x) * (1 + x * sigmoid(-x))),
    ("mish_backward", aten.mish_backward.default, (), mish_slope),
    ("tanh_backward", aten.tanh_backward.default, (), lambda x: 1 - x * x),
    ("sigmoid_backward", aten.sigmoid_backward.default, (), lambda x: x * (1 - x)),
    ("softplus_backward", aten.softplus_backward.default, (1, 20), lambda x: sigmoid(x) if x <= 20 else mpf(1)),
    ("logit_backward", aten.logit_backward.default, (), bounded(lambda x: 1 / (x * (1 - x)), 0, 1)),
]


@pytest.mark.parametrize(("name", "call", "oracle"), REPLACED, ids=[case[0] for case in REPLACED])
def test_replaced_references_equal_the_function_to_1e_12(name: str, call: Any, oracle: Any) -> None:
    x = halves(250)
    error, where = worst(x, call(x), oracle)
    assert error <= TOLERANCE, f"{name}: {error:.2e} at {where}"


@pytest.mark.parametrize(("name", "call", "oracle"), SLOW_REPLACED, ids=[case[0] for case in SLOW_REPLACED])
def test_scipys_special_functions_are_good_where_torchs_are_not(name: str, call: Any, oracle: Any) -> None:
    """Near their roots only on the scale of the function: 1e-12 of max(|y|, 1e-3)."""
    x = torch.cat((halves(60), torch.linspace(0.5, 20, 40, dtype=torch.float64).half().double()))
    y = call(x)
    for operand, result in zip(x.tolist(), y.tolist(), strict=True):
        truth = oracle(mpf(operand))
        if truth is not None and mpmath.isfinite(truth):
            assert abs(mpf(result) - truth) <= TOLERANCE * max(abs(truth), mpf("1e-3")), f"{name} at {operand}"


@pytest.mark.parametrize(("name", "func", "oracle"), LEFT_ALONE, ids=[case[0] for case in LEFT_ALONE])
def test_fp64_kernels_left_alone_are_good_to_1e_12(name: str, func: Any, oracle: Any) -> None:
    x = halves(80)
    error, where = worst(x, evaluate(func, x), oracle)
    assert error <= TOLERANCE, f"{name}: {error:.2e} at {where}"


@pytest.mark.parametrize(("name", "func", "extra", "oracle"), LEFT_ALONE_BACKWARD, ids=[case[0] for case in LEFT_ALONE_BACKWARD])
def test_fp64_backward_kernels_left_alone_are_good_to_1e_12(name: str, func: Any, extra: tuple, oracle: Any) -> None:
    x = halves(80)
    error, where = worst(x, evaluate(func, torch.ones_like(x), x, *extra), oracle)
    assert error <= TOLERANCE, f"{name}: {error:.2e} at {where}"


def test_digamma_is_good_on_the_scale_of_one_next_to_its_root() -> None:
    x = torch.tensor([1.4609375, 1.4619140625, -0.50390625], dtype=torch.float64)
    truth = [float(mpmath.digamma(v)) for v in x.tolist()]
    assert max(abs(a - b) for a, b in zip(aten.digamma(x).tolist(), truth, strict=True)) < 1e-15


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_glu_backward_keeps_the_gradient_of_an_open_gate(dim: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x = (torch.randn(6, 8, generator=generator) * 20).half().double()
    grad = torch.randn(aten.glu(x, dim).shape, generator=generator).half().double()
    found = evaluate(aten.glu_backward.default, grad, x, dim)
    value, gate = x.chunk(2, dim)
    for g, a, b, da, db in zip(
        grad.flatten(), value.flatten(), gate.flatten(), *(half.flatten() for half in found.chunk(2, dim)), strict=True
    ):
        g, a, b = mpf(g.item()), mpf(a.item()), mpf(b.item())
        assert abs(mpf(da.item()) - g * sigmoid(b)) <= TOLERANCE * abs(g * sigmoid(b))
        assert abs(mpf(db.item()) - g * a * sigmoid(b) * sigmoid(-b)) <= TOLERANCE * abs(g * a * sigmoid(b) * sigmoid(-b))


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_references_agree_with_torch_where_torch_is_good(approximate: str) -> None:
    x = torch.linspace(-2, 6, 999, dtype=torch.float64)
    grad = torch.linspace(-1, 1, 999, dtype=torch.float64)
    torch.testing.assert_close(stable.gelu(x, approximate=approximate), aten.gelu(x, approximate=approximate), rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(
        stable.gelu_backward(grad, x, approximate=approximate), aten.gelu_backward(grad, x, approximate=approximate), rtol=1e-12, atol=1e-15
    )
    torch.testing.assert_close(stable.sinc(x), aten.sinc(x), rtol=1e-12, atol=1e-16)
    torch.testing.assert_close(stable.polygamma(2, x + 3), aten.polygamma(2, x + 3), rtol=0, atol=0)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_keeps_torchs_special_values(approximate: str) -> None:
    x = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, -60.0, 1e30, -1e30], dtype=torch.float64)
    ours, theirs = stable.gelu(x, approximate=approximate), aten.gelu(x, approximate=approximate)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(ours[:2].signbit(), x[:2].signbit())


def test_sinc_is_exactly_zero_at_integers_and_one_at_zero() -> None:
    x = torch.tensor([0.0, 1.0, -2.0, 3.0, 2.0**40, math.inf, math.nan], dtype=torch.float64)
    assert stable.sinc(x)[:5].abs().tolist() == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert bool(stable.sinc(x)[5:].isnan().all())


def test_torchs_own_gelu_is_still_wrong_in_the_tail() -> None:
    """Should this fail one day, torch has been repaired and the reference can go. Source: SCIENCE finding 4."""
    x = torch.tensor([-9.0], dtype=torch.float64)
    truth = float(-9 * big_phi(mpf(-9)))
    assert abs(aten.gelu(x).item() / truth - 1) > 1e-3
    assert abs(stable.gelu(x).item() / truth - 1) < 1e-13
