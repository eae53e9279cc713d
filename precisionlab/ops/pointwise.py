"""Elementwise ops (``kappa``, the condition numbers of the unary ones, comes from stable.py).

Scale S of the local bound: |y| where no ``condition`` is given, which is right for every function whose kernel is good to a few ulps
of its compute precision; larger where a kernel adds terms that cancel. Inherited error is another matter: it grows by ``kappa``.

``internal`` is declared where torch's CPU kernels round intermediate results to a half storage dtype, materially: logit, entr, xlogy,
xlog1py, sigmoid_backward, glu_backward, pow(x, 3), div with a rounding mode (found by tests/ops/test_pointwise.py, torch 2.13). Other
inaccurate corners are not declared (fp16 erf 4.9 ulp at tiny x; bf16 sigmoid 15 ulp and silu 165 ulp at -89.5; bf16 gelu and erf 255 ulp
where the result nearly underflows): their results are far below the rms of any tensor, under the judge's materiality floor.

Functions composed by torch before dispatch (``selu, relu6, square, clip, float_power, special_ndtr, special_expit``) arrive as the ops
they consist of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from precisionlab.ops import stable
from precisionlab.ops.registry import Family, How, op_rule, optional_ops
from precisionlab.ops.stable import call_arguments, kappa

__all__ = ["added_magnitude", "interpolated_magnitude", "kappa"]

aten = torch.ops.aten

_P = Family.POINTWISE


def _ops(names: str) -> list[Any]:
    return optional_ops(aten, *names.split())


def _magnitude(x: Any) -> Any:
    """|x| of a number or a tensor; bools count as 0 and 1."""
    return x.double() if isinstance(x, Tensor) and x.dtype is torch.bool else abs(x)


def added_magnitude(a: Any, b: Any, alpha: Any = 1) -> Any:
    """|a| + |alpha b|: the scale on which a sum of two terms rounds."""
    return _magnitude(a) + _magnitude(alpha) * _magnitude(b)


def interpolated_magnitude(a: Tensor, b: Tensor, weight: Any) -> Any:
    """Scale of ``a + w (b - a)``, which torch computes as ``b - (1 - w)(b - a)`` for |w| >= 1/2. Source: ATen/native/Lerp.h."""
    gap = a.abs() + b.abs()
    w = _magnitude(weight)
    if isinstance(w, Tensor):
        return torch.where(w < 0.5, a.abs() + w * gap, b.abs() + (1 - weight).abs() * gap)
    return a.abs() + w * gap if w < 0.5 else b.abs() + abs(1 - weight) * gap


def _condition(scale: Callable[..., Tensor]) -> Any:
    """A rule's ``condition`` from a function of y and the op's arguments by schema name."""

    def condition(func: Any, args: Any, kwargs: Any, y: Tensor) -> Tensor:
        return scale(y, **call_arguments(func, args, kwargs))

    return staticmethod(condition)


def _internal(roundings: Callable[..., Any]) -> Any:
    """A rule's ``internal`` from a function of y, u and the op's arguments by schema name."""

    def internal(func: Any, args: Any, kwargs: Any, y: Tensor, u: float) -> Any:
        return roundings(y, u, **call_arguments(func, args, kwargs))

    return staticmethod(internal)


def _reference(function: Callable[..., Tensor]) -> Any:
    """A rule's ``reference`` from a function whose arguments are named as in the schema, ``self`` and ``grad_output`` by position."""

    def reference(func: Any, args: Any, kwargs: Any) -> Tensor:
        return function(*args, **{name: value for name, value in kwargs.items() if name not in ("out", "grad_input")})

    return staticmethod(reference)


@op_rule(
    *_ops(
        "mul floor_divide fmod remainder exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tan asin acos atan sinh cosh "
        "tanh asinh atanh sigmoid erf erfc erfinv softplus log_sigmoid_forward silu mish elu celu hypot atan2 i0 deg2rad rad2deg "
        "softplus_backward log_sigmoid_backward logit_backward threshold_backward relu leaky_relu leaky_relu_backward hardtanh_backward "
        "hardshrink_backward softshrink_backward rrelu_with_noise_backward _prelu_kernel _prelu_kernel_backward glu igamma igammac ldexp "
        "special_erfcx special_i0e special_i1 special_i1e special_log_ndtr special_ndtri special_zeta "
        "special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0 special_modified_bessel_k1 "
        "special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1"
    ),
    family=_P,
)
class OwnScale:
    """Functions that round on the scale of their result, and whose fp64 kernel is the truth (``stable.VETTED``)."""


@op_rule(
    *_ops(
        "neg abs sign sgn angle floor ceil round trunc frac hardtanh hardshrink threshold clamp clamp_min clamp_max maximum minimum "
        "fmin fmax where masked_fill copysign heaviside conj_physical _conj_physical"
    ),
    family=_P,
)
class Exact:
    """Functions that pick, cut off or change a sign: no rounding at all (``angle``, of real numbers, is 0 or pi)."""


@op_rule(*_ops("special_entr xlogy special_xlog1py"), family=_P)
class TimesLogarithm:
    """Half kernels round the logarithm before they multiply: R = u |y|."""

    internal = _internal(lambda y, u, **_: u * y.abs())


@op_rule(*_ops("pow"), family=_P)
class Power:
    """Half kernels form x x x and 1/(x x) step by step: R = u |y| for the exponents 3 and -2, nothing for others."""

    internal = _internal(lambda y, u, exponent, **_: u * y.abs() if not isinstance(exponent, Tensor) and exponent in (3, -2) else 0.0)


@op_rule(*_ops("div"), family=_P)
class Quotient:
    """Rounded to an integer (``rounding_mode``), half kernels may do so *after* rounding the quotient to storage: off by one.

    R is then 1 where the true quotient lies within u of an integer, and 0 elsewhere and for the plain quotient.
    """

    @_internal
    def internal(y: Tensor, u: float, self: Any, other: Any, rounding_mode: str | None = None) -> Any:
        if rounding_mode is None:
            return 0.0
        quotient = aten.div(self, other)
        return ((quotient - quotient.round()).abs() <= u * quotient.abs()).to(y.dtype)


@op_rule(*_ops("add sub"), family=_P)
class Sum:
    """|a| + |alpha b|, so that cancellation costs nothing locally: what cancels was inherited. Source: Higham 2002, section 4.2."""

    condition = _condition(lambda y, self, other, alpha: added_magnitude(self, other, alpha).expand_as(y))


@op_rule(*_ops("rsub"), family=_P)
class ReversedSum:
    """|b| + |alpha a|."""

    condition = _condition(lambda y, self, other, alpha: added_magnitude(other, self, alpha).expand_as(y))


@op_rule(*_ops("lerp"), family=_P)
class Lerp:
    """Between two tensors, the scale of the two steps torch takes."""

    condition = _condition(lambda y, self, end, weight: interpolated_magnitude(self, end, weight).expand_as(y))


@op_rule(*_ops("addcmul"), family=_P)
class Addcmul:
    """|a| + |v b c|."""

    condition = _condition(lambda y, self, tensor1, tensor2, value: added_magnitude(self, tensor1 * tensor2, value))


@op_rule(*_ops("addcdiv"), family=_P)
class Addcdiv:
    """|a| + |v b / c|."""

    condition = _condition(lambda y, self, tensor1, tensor2, value: added_magnitude(self, tensor1 / tensor2, value))


@op_rule(*_ops("logaddexp logaddexp2"), family=_P)
class LogAddExp:
    """max(|a|, |b|) + |y|: the larger exponent is added to a logarithm."""

    condition = _condition(lambda y, self, other: torch.maximum(self.abs(), other.abs()) + y.abs())


@op_rule(*_ops("gelu"), family=_P)
class Gelu:
    """S = |x|: kernels form x (1 + erf) or x (1 + tanh), which cancels in the left tail."""

    reference = _reference(stable.gelu)
    condition = _condition(lambda y, self, approximate: self.abs())


@op_rule(*_ops("gelu_backward"), family=_P)
class GeluBackward:
    """S = |g| (1 + |x|): the second term is x times something that kernels form by cancellation."""

    reference = _reference(stable.gelu_backward)
    condition = _condition(lambda y, grad_output, self, approximate: grad_output.abs() * (1 + self.abs()))


def _glu_backward_scale(grad_output: Tensor, self: Tensor, dim: int) -> Tensor:
    value, gate = self.chunk(2, dim)
    opened = grad_output.abs() * torch.sigmoid(gate)
    return torch.cat((opened, opened * value.abs()), dim)


@op_rule(*_ops("glu_backward"), family=_P)
class GluBackward:
    """S = |g| sigmoid(b) (1, |a|) for the two halves, since kernels form 1 - sigmoid(b); in half step by step, R = 3 u S."""

    reference = _reference(stable.glu_backward)
    condition = _condition(lambda y, **named: _glu_backward_scale(**named))
    internal = _internal(lambda y, u, **named: 3 * u * _glu_backward_scale(**named))


@op_rule(*_ops("sinc"), family=_P)
class Sinc:
    """S = |y| + 1: kernels round pi x before the sine."""

    reference = _reference(stable.sinc)
    condition = _condition(lambda y, self: y.abs() + 1)


@op_rule(*_ops("polygamma"), family=_P)
class Polygamma:
    """Order 1 by Hurwitz's zeta function; |y| + 3, as for its relatives below."""

    reference = _reference(stable.polygamma)
    condition = _condition(lambda y, n, self: y.abs() + 3)


@op_rule(*_ops("lgamma digamma mvlgamma"), family=_P)
class Gamma:
    """S = |y| + 3: recurrences up to 10 add terms of order 1, which cancel near a root."""

    condition = _condition(lambda y, **_: y.abs() + 3)


@op_rule(*_ops("logit"), family=_P)
class Logit:
    """S = |y| + 1, R = 2 u: x / (1 - x) is rounded, in half kernels to storage and twice, before the logarithm.

    Half kernels also clamp at 1 - eps rounded to storage: another u/eps where that bites.
    """

    condition = _condition(lambda y, **_: y.abs() + 1)
    internal = _internal(lambda y, u, self, eps: 2 * u + torch.where(self > 1 - eps, u / eps, 0.0) if eps else 2 * u * torch.ones_like(y))


@op_rule(*_ops("acosh special_spherical_bessel_j0"), family=_P)
class RootAwayFromZero:
    """S = |y| + 1: near a root at x of order 1 the kernels are good to an absolute, not a relative error."""

    condition = _condition(lambda y, **_: y.abs() + 1)


@op_rule(*_ops("special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1"), family=_P)
class Bessel:
    """torch's kernels are off by up to 5e-5 above 5, in fp64 too: the reference is scipy's."""

    condition = _condition(lambda y, **_: y.abs() + 1)

    @staticmethod
    def reference(func: Any, args: Any, kwargs: Any) -> Tensor:
        return stable.bessel(func._schema.name[-2:], args[0])


@op_rule(*_ops("special_airy_ai"), family=_P)
class Airy:
    """As the Bessel functions: off by up to 9e-5 left of -2."""

    condition = _condition(lambda y, **_: y.abs() + 1)

    @staticmethod
    def reference(func: Any, args: Any, kwargs: Any) -> Tensor:
        return stable.airy_ai(args[0])


@op_rule(
    *_ops(" ".join(f"special_{kind}polynomial_{which}" for kind in ("chebyshev_", "shifted_chebyshev_") for which in "tuvw")),
    *_ops("special_hermite_polynomial_h special_hermite_polynomial_he special_laguerre_polynomial_l special_legendre_polynomial_p"),
    family=_P,
)
class Polynomial:
    """S = |y| + 1: three-term recurrences have many roots of order 1."""

    condition = _condition(lambda y, **_: y.abs() + 1)


@op_rule(*_ops("hardswish hardsigmoid"), family=_P)
class HardGate:
    """S on the scale of x (|x| for hardswish, 1 for hardsigmoid) where the gate x + 3 is open: it cancels near -3."""

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Tensor) -> Tensor:
        return args[0].abs() if "swish" in func._schema.name else torch.ones_like(y)


@op_rule(*_ops("hardswish_backward hardsigmoid_backward silu_backward mish_backward"), family=_P)
class GateBackward:
    """S = |g| (1 + |x|): x times 1 - sigmoid, or 1 - tanh^2, is formed by cancellation."""

    condition = _condition(lambda y, grad_output, self: grad_output.abs() * (1 + self.abs()))


@op_rule(*_ops("tanh_backward"), family=_P)
class TanhBackward:
    """|g| (1 + y^2): 1 - y^2 is formed from the rounded tanh."""

    condition = _condition(lambda y, grad_output, output: grad_output.abs() * (1 + output * output))


@op_rule(*_ops("sigmoid_backward"), family=_P)
class SigmoidBackward:
    """|g y| (1 + |y|); fp16 kernels round twice on the way, R = 2 u |result|."""

    condition = _condition(lambda y, grad_output, output: (grad_output * output).abs() * (1 + output.abs()))
    internal = _internal(lambda y, u, **_: 2 * u * y.abs())


@op_rule(*_ops("elu_backward"), family=_P)
class EluBackward:
    """From a result r (in-place ELU) the slope is r + alpha, which cancels; from x it is an exponential."""

    @_condition
    def condition(
        y: Tensor, grad_output: Tensor, alpha: Any, scale: Any, input_scale: Any, is_result: bool, self_or_result: Tensor
    ) -> Tensor:
        if not is_result:
            return y.abs()
        left = grad_output.abs() * abs(input_scale) * (self_or_result.abs() + abs(alpha * scale))
        return torch.where(self_or_result <= 0, left, y.abs())


@op_rule(*_ops("softshrink"), family=_P)
class Softshrink:
    """|y| + |lambda|: x minus lambda."""

    condition = _condition(lambda y, self, lambd: y.abs() + abs(lambd))


@op_rule(*_ops("nan_to_num"), family=_P)
class NanToNum:
    """Exact, except that an infinity becomes the largest number *of the operand's dtype* unless told otherwise.

    The reference cannot know that dtype: where it matters it raises ``NotImplementedError``, and the twin takes the program's value.
    """

    @staticmethod
    def reference(func: Any, args: Any, kwargs: Any) -> Tensor:
        named = call_arguments(func, args, kwargs)
        x = named["self"]
        for side, test in (("posinf", torch.isposinf), ("neginf", torch.isneginf)):
            if named[side] is None and bool(test(x).any()):
                raise NotImplementedError(f"nan_to_num with an infinite operand and no {side}: its result depends on the dtype")
        return torch.nan_to_num(x, named["nan"], named["posinf"], named["neginf"])


@op_rule(*_ops("nextafter"), family=_P, how=How.REAL, note="the neighbour of a number depends on its format")
class NextAfter:
    """A step in the operand's own format, which fp64 does not have."""


@op_rule(*_ops("frexp"), family=_P, how=How.REAL, note="the mantissa belongs to the real run's integer exponent")
class Frexp:
    """Mantissa and exponent of the twin could differ by a binade from the real ones, and then match nothing downstream."""
