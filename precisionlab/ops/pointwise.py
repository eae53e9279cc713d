"""Elementwise ops: rules, and ``kappa``, the condition numbers of the unary ones.

Scale S of the local bound: |y| where no ``condition`` is given, which is right for every function whose kernel is good to a few ulps
of its compute precision; larger where a kernel adds terms that cancel. Inherited error is another matter: it grows by ``kappa``.

No ``internal`` terms are declared. torch's CPU kernels do have inaccurate corners (fp16 erf 4.9 ulp at tiny x; bf16 sigmoid 15 ulp and
silu 165 ulp at -89.5; bf16 gelu and erf 255 ulp where the result nearly underflows), but all sit where results are far below the rms
of any tensor, under the judge's materiality floor. Source: SCIENCE A21.

Functions composed by torch before dispatch (``selu, relu6, square, clip, float_power, special_ndtr, special_expit``) arrive as the ops
they consist of.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from precisionlab.ops import stable
from precisionlab.ops.registry import Family, op_rule, optional_ops
from precisionlab.ops.stable import call_arguments

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


def interpolated_magnitude(a: Tensor, b: Tensor, weight: Any) -> Tensor:
    """Scale of ``a + w (b - a)``, which torch computes as ``b - (1 - w)(b - a)`` for |w| >= 1/2. Source: ATen/native/Lerp.h."""
    gap = a.abs() + b.abs()
    w = _magnitude(weight)
    if isinstance(w, Tensor):
        return torch.where(w < 0.5, a.abs() + w * gap, b.abs() + (1 - weight).abs() * gap)
    return a.abs() + w * gap if w < 0.5 else b.abs() + abs(1 - weight) * gap


def _condition(scale: Callable[..., Tensor]) -> staticmethod:
    """A rule's ``condition`` from a function of y and the op's arguments by schema name."""

    def condition(func: Any, args: tuple, kwargs: dict, y: Tensor) -> Tensor:
        return scale(y, **call_arguments(func, args, kwargs))

    return staticmethod(condition)


def _reference(function: Callable[..., Tensor]) -> staticmethod:
    """A rule's ``reference`` from a function whose arguments are named as in the schema, ``self`` and ``grad_output`` by position."""

    def reference(func: Any, args: tuple, kwargs: dict) -> Tensor:
        return function(*args, **{name: value for name, value in kwargs.items() if name not in ("out", "grad_input")})

    return staticmethod(reference)


@op_rule(
    *_ops(
        "mul div floor_divide fmod remainder pow exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tan asin acos atan sinh cosh "
        "tanh asinh atanh sigmoid erf erfc erfinv softplus log_sigmoid_forward silu mish elu celu hypot atan2 xlogy i0 deg2rad rad2deg "
        "softplus_backward log_sigmoid_backward logit_backward threshold_backward relu leaky_relu leaky_relu_backward hardtanh_backward "
        "hardshrink_backward softshrink_backward rrelu_with_noise_backward _prelu_kernel _prelu_kernel_backward glu igamma igammac ldexp "
        "special_entr special_erfcx special_i0e special_i1 special_i1e special_log_ndtr special_ndtri special_xlog1py special_zeta "
        "special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0 special_modified_bessel_k1 "
        "special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1"
    ),
    family=_P,
)
class OwnScale:
    """Functions that round on the scale of their result, and whose fp64 kernel is the truth (``stable.VETTED``)."""


@op_rule(
    *_ops(
        "neg abs sign sgn angle floor ceil round trunc frac hardtanh hardshrink threshold clamp clamp_min clamp_max maximum minimum fmin fmax "
        "copysign heaviside"
    ),
    family=_P,
)
class Exact:
    """Functions that pick, cut off or change a sign: no rounding at all (``angle``, of real numbers, is 0 or pi)."""


@op_rule(*_ops("add sub"), family=_P)
class Sum:
    """|a| + |alpha b|, so that cancellation costs nothing locally: what cancels was inherited. Source: SCIENCE 5a."""

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
    """S = |g|: both terms of the derivative are below 1.2."""

    reference = _reference(stable.gelu_backward)
    condition = _condition(lambda y, grad_output, self, approximate: grad_output.abs())


@op_rule(*_ops("glu_backward"), family=_P)
class GluBackward:
    """S = |g| sigmoid(b) (1, |a|) for the two halves, since kernels form 1 - sigmoid(b)."""

    reference = _reference(stable.glu_backward)

    @_condition
    def condition(y: Tensor, grad_output: Tensor, self: Tensor, dim: int) -> Tensor:
        value, gate = self.chunk(2, dim)
        opened = grad_output.abs() * torch.sigmoid(gate)
        return torch.cat((opened, opened * value.abs()), dim)


@op_rule(*_ops("sinc"), family=_P)
class Sinc:
    """S = |y| + 1: kernels round pi x before the sine."""

    reference = _reference(stable.sinc)
    condition = _condition(lambda y, self: y.abs() + 1)


@op_rule(*_ops("polygamma"), family=_P)
class Polygamma:
    """Order 1 by Hurwitz's zeta function; |y| + 1, as for its relatives below."""

    reference = _reference(stable.polygamma)
    condition = _condition(lambda y, n, self: y.abs() + 1)


@op_rule(*_ops("lgamma digamma mvlgamma logit acosh special_spherical_bessel_j0"), family=_P)
class RootAwayFromZero:
    """S = |y| + 1: near a root at x of order 1 the kernels are good to an absolute, not a relative error."""

    condition = _condition(lambda y, **_: y.abs() + 1)


@op_rule(*_ops("special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1"), family=_P)
class Bessel:
    """torch's kernels are off by up to 5e-5 above 5, in fp64 too: the reference is scipy's."""

    condition = _condition(lambda y, **_: y.abs() + 1)

    @staticmethod
    def reference(func: Any, args: tuple, kwargs: dict) -> Tensor:
        return stable.bessel(func._schema.name[-2:], args[0])


@op_rule(*_ops("special_airy_ai"), family=_P)
class Airy:
    """As the Bessel functions: off by up to 9e-5 left of -2."""

    condition = _condition(lambda y, **_: y.abs() + 1)

    @staticmethod
    def reference(func: Any, args: tuple, kwargs: dict) -> Tensor:
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
    def condition(func: Any, args: tuple, kwargs: dict, y: Tensor) -> Tensor:
        return args[0].abs() if "swish" in func._schema.name else torch.ones_like(y)


@op_rule(*_ops("hardswish_backward hardsigmoid_backward silu_backward mish_backward"), family=_P)
class GateBackward:
    """S = |g|: sums of terms of order 1 that cancel at the activation's minimum."""

    condition = _condition(lambda y, grad_output, self: grad_output.abs())


@op_rule(*_ops("tanh_backward"), family=_P)
class TanhBackward:
    """|g| (1 + y^2): 1 - y^2 is formed from the rounded tanh."""

    condition = _condition(lambda y, grad_output, output: grad_output.abs() * (1 + output * output))


@op_rule(*_ops("sigmoid_backward"), family=_P)
class SigmoidBackward:
    """|g y| (1 + |y|)."""

    condition = _condition(lambda y, grad_output, output: (grad_output * output).abs() * (1 + output.abs()))


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
    def reference(func: Any, args: tuple, kwargs: dict) -> Tensor:
        named = call_arguments(func, args, kwargs)
        x = named["self"]
        for side, test in (("posinf", torch.isposinf), ("neginf", torch.isneginf)):
            if named[side] is None and bool(test(x).any()):
                raise NotImplementedError(f"nan_to_num with an infinite operand and no {side}: its result depends on the dtype")
        return aten.nan_to_num(x, named["nan"], named["posinf"], named["neginf"])


_TWO_OVER_SQRT_PI = 2.0 / math.sqrt(math.pi)


def _gelu_kappa(x: Tensor, approximate: str = "none") -> Tensor:
    """1 + x phi/Phi, with ``phi/Phi = sqrt(2/pi)/erfcx(-x/sqrt 2)``, or 1 + x v' sigmoid(-v) for the tanh form x sigmoid(v)."""
    if approximate == "none":
        return 1 + x * math.sqrt(2 / math.pi) / torch.special.erfcx(x * -math.sqrt(0.5))
    scale = 2 * math.sqrt(2 / math.pi)
    return 1 + x * scale * (1 + 3 * 0.044715 * x * x) * torch.sigmoid(-scale * (x + 0.044715 * x**3))


def _mish_kappa(x: Tensor) -> Tensor:
    """1 + x sigmoid(x) (1 - t^2)/t with t = tanh(softplus(x)); (1 - t^2)/t = 2/sinh(2 softplus(x))."""
    return 1 + 2 * x * torch.sigmoid(x) / torch.sinh(2 * torch.logaddexp(x, torch.zeros_like(x)))


def _erfinv_kappa(x: Tensor) -> Tensor:
    y = torch.erfinv(x)
    return x * torch.exp(y * y) / (_TWO_OVER_SQRT_PI * y)


_KAPPA: dict[str, tuple[Callable[..., Tensor], float]] = {
    "exp": (lambda x: x, 0.0),
    "exp2": (lambda x: x * math.log(2), 0.0),
    "expm1": (lambda x: x / -torch.expm1(-x), 1.0),
    "log": (lambda x: 1 / torch.log(x), 0.0),
    "log2": (lambda x: 1 / torch.log(x), 0.0),
    "log10": (lambda x: 1 / torch.log(x), 0.0),
    "log1p": (lambda x: x / ((1 + x) * torch.log1p(x)), 1.0),
    "sqrt": (lambda x: torch.full_like(x, 0.5), 0.5),
    "rsqrt": (lambda x: torch.full_like(x, 0.5), 0.5),
    "reciprocal": (torch.ones_like, 1.0),
    "neg": (torch.ones_like, 1.0),
    "abs": (torch.ones_like, 1.0),
    "relu": (lambda x: (x > 0).to(x.dtype), 0.0),
    "sin": (lambda x: x / torch.tan(x), 1.0),
    "cos": (lambda x: x * torch.tan(x), 0.0),
    "tan": (lambda x: 2 * x / torch.sin(2 * x), 1.0),
    "asin": (lambda x: x / (torch.sqrt((1 - x) * (1 + x)) * torch.asin(x)), 1.0),
    "acos": (lambda x: x / (torch.sqrt((1 - x) * (1 + x)) * torch.acos(x)), 0.0),
    "atan": (lambda x: x / ((1 + x * x) * torch.atan(x)), 1.0),
    "sinh": (lambda x: x / torch.tanh(x), 1.0),
    "cosh": (lambda x: x * torch.tanh(x), 0.0),
    "tanh": (lambda x: 2 * x / torch.sinh(2 * x), 1.0),
    "asinh": (lambda x: x / (torch.sqrt(1 + x * x) * torch.asinh(x)), 1.0),
    "acosh": (lambda x: x / (torch.sqrt((x - 1) * (x + 1)) * torch.acosh(x)), math.nan),
    "atanh": (lambda x: x / ((1 - x) * (1 + x) * torch.atanh(x)), 1.0),
    "sigmoid": (lambda x: x * torch.sigmoid(-x), 0.0),
    "log_sigmoid_forward": (lambda x: x * torch.sigmoid(-x) / torch.logaddexp(-x, torch.zeros_like(x)), 0.0),
    "silu": (lambda x: 1 + x * torch.sigmoid(-x), 1.0),
    "gelu": (_gelu_kappa, 1.0),
    "mish": (_mish_kappa, 1.0),
    "erf": (lambda x: _TWO_OVER_SQRT_PI * x * torch.exp(-x * x) / torch.erf(x), 1.0),
    "erfc": (lambda x: _TWO_OVER_SQRT_PI * x / torch.special.erfcx(x), 0.0),
    "erfinv": (_erfinv_kappa, 1.0),
    "logit": (lambda x: 1 / ((1 - x) * torch.logit(x)), 0.0),
    "lgamma": (lambda x: x * torch.digamma(x) / torch.lgamma(x), 0.0),
}
"""Packet name -> (x f'(x)/f(x) up to sign, its limit at x = 0). Source: derivatives by hand, checked against mpmath.diff."""


def kappa(func: Any, args: tuple, kwargs: dict | None = None) -> Tensor | None:
    """|x f'(x)/f(x)|: by how much a unary op multiplies the relative error of its operand; None where it is not tabled.

    Infinite at roots of f away from 0 (log at 1), the limit at x = 0, NaN outside the domain. ``pow`` counts with a number as exponent
    (|p|) or as base (|x log b|). Options other than GELU's form are taken at their defaults: softplus and elu are therefore not tabled.
    """
    name = func._schema.name.partition("::")[2].rstrip("_")
    x = args[0]
    if name == "pow":
        base, exponent = args[0], args[1]
        if isinstance(base, Tensor) and not isinstance(exponent, Tensor):
            return torch.full_like(base, abs(exponent))
        if isinstance(exponent, Tensor) and not isinstance(base, Tensor):
            return (exponent * math.log(base)).abs() if base > 0 else None
        return None
    if name not in _KAPPA or not isinstance(x, Tensor):
        return None
    formula, at_zero = _KAPPA[name]
    options = {"approximate": kwargs["approximate"]} if name == "gelu" and kwargs and "approximate" in kwargs else {}
    return torch.where(x == 0, torch.full_like(x, at_zero), formula(x, **options).abs())
