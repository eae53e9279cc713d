"""Functions of one variable in fp64: references, and condition numbers (``kappa``).

References are for the elementwise ops whose fp64 kernel in torch is not accurate enough to be the truth.

Each function equals the op of the same name in exact arithmetic (0, -0, infinities and NaN included) and stays within 1e-12 of it
wherever the true value is a normal fp64 number. Everything else torch computes well and is simply run again; the functions that were
looked at and left alone are listed in ``VETTED``. Two of those are only accurate on the scale of their operands and not near a root:
``digamma`` (relative error 1e-12 next to 1.4616, absolute 3e-16) and ``logaddexp2``; their condition measure covers it.

Source: sweeps of the fp16 and bf16 grids against mpmath at 200 bits, torch 2.13 CPU (tests/ops/test_stable.py repeats them thinned):

    op                              worst relative error of torch's fp64 kernel
    gelu, erf form                  1.0 below -8.3 (returns -0.0), since it forms 1 + erf
    gelu, tanh form                 1.0 below about -7 (returns -0.0), since it forms 1 + tanh
    gelu_backward, erf form         1.3e-2 at -8.6
    gelu_backward, tanh form        1.0 below about -7
    glu_backward                    1.0 for gates above 37, 1e-10 at 15, since it forms 1 - sigmoid
    sinc                            relative error unbounded next to integers (sin(pi x) with pi x rounded first)
    polygamma(1, .)                 4.9e-10 around 1.1
    special_bessel_j0, j1, y0, y1   6.2e-6, 5.6e-6, 4.5e-7, 5.5e-5, between 5 and 8
    special_airy_ai                 8.6e-5 at -2.33
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_SQRT_HALF = math.sqrt(0.5)
_INV_SQRT_2PI = 1.0 / math.sqrt(2.0 * math.pi)
_TANH_SCALE = math.sqrt(2.0 / math.pi)
_TANH_CUBIC = 0.044715
"""Hendrycks and Gimpel 2016; the constants of ATen/native/cpu/Activation.cpp."""

VETTED = (
    "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh sigmoid "
    "erf erfc erfinv lgamma digamma logit silu mish elu celu log_sigmoid_forward softplus hardswish hardsigmoid i0 special_erfcx "
    "special_i0e special_i1 special_i1e special_entr special_log_ndtr special_ndtri special_spherical_bessel_j0 "
    "special_modified_bessel_i0 special_modified_bessel_k0 special_modified_bessel_k1 special_scaled_modified_bessel_k0 "
    "special_scaled_modified_bessel_k1 pow hypot atan2 logaddexp xlogy special_xlog1py fmod remainder div lerp special_zeta igamma "
    "igammac tanh_backward sigmoid_backward silu_backward mish_backward elu_backward logit_backward softplus_backward "
    "log_sigmoid_backward glu"
)
"""Ops whose own fp64 kernel was found good to 1e-12 (most to 3e-16) on the same sweeps: no reference needed."""


def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    """``x Phi(x)``, or its tanh approximation, without forming 1 + erf or 1 + tanh. gelu(-inf) is NaN, as torch has it.

    ``Phi(x) = erfc(-x/sqrt 2)/2`` and ``(1 + tanh v)/2 = sigmoid(2v)``. Vetted with mpmath in tests/ops.
    """
    if approximate == "none":
        return x * 0.5 * torch.erfc(x * -_SQRT_HALF)
    return x * torch.sigmoid(_twice_tanh_argument(x))


def gelu_backward(grad: Tensor, x: Tensor, *, approximate: str = "none") -> Tensor:
    """``grad`` times the derivative of ``gelu``: ``Phi + x phi``, or its tanh form with ``sech^2 v = 4 sigmoid(2v) sigmoid(-2v)``."""
    if approximate == "none":
        # in place: each fresh temporary costs more in page faults than its arithmetic
        weighted = (x * x).mul_(-0.5).exp_().mul_(_INV_SQRT_2PI).mul_(x)
        return (x * -_SQRT_HALF).erfc_().mul_(0.5).add_(weighted).mul_(grad)
    twice = _twice_tanh_argument(x)
    slope = 2.0 * _TANH_SCALE * (1.0 + 3.0 * _TANH_CUBIC * x * x)
    upper = torch.sigmoid(twice)
    return grad * (upper + x * upper * torch.sigmoid(-twice) * slope)


def _twice_tanh_argument(x: Tensor) -> Tensor:
    return 2.0 * _TANH_SCALE * (x + _TANH_CUBIC * x * x * x)


def glu_backward(grad: Tensor, x: Tensor, dim: int) -> Tensor:
    """Gradient of ``a sigmoid(b)``, ``a, b`` the halves of ``x`` along ``dim``; ``1 - sigmoid(b)`` is formed as ``sigmoid(-b)``."""
    value, gate = x.chunk(2, dim)
    opened = torch.sigmoid(gate)
    return torch.cat((grad * opened, grad * value * opened * torch.sigmoid(-gate)), dim)


def _sin_pi(x: Tensor) -> Tensor:
    """``sin(pi x)`` after an exact reduction to ``|d| <= 1/2``; exactly 0 at integers, NaN at infinities."""
    nearest = torch.round(x)
    sign = 1.0 - 2.0 * torch.remainder(nearest, 2.0)
    return sign * torch.sin(math.pi * (x - nearest))


def sinc(x: Tensor) -> Tensor:
    """``sin(pi x)/(pi x)``; 1 at 0, exactly 0 at other integers, NaN at infinities."""
    return torch.where(x == 0, torch.ones_like(x), _sin_pi(x) / (math.pi * x))


def polygamma(n: int, x: Tensor) -> Tensor:
    """For n = 1 ``zeta(2, x)``, with the reflection ``pi^2/sin^2(pi x) - zeta(2, 1 - x)`` for x <= 0 (+inf at the poles).

    Other n are torch's own kernel, which is good. Source: DLMF 5.15.1, 5.15.6.
    """
    if n != 1:
        return torch.polygamma(n, x)
    positive = x > 0
    series = torch.special.zeta(2.0, torch.where(positive, x, 1.0 - x))
    return torch.where(positive, series, (math.pi / _sin_pi(x)).square() - series)


def _from_scipy(name: str, x: Tensor, part: int | None = None) -> Tensor:
    """A function of scipy.special on a tensor (through the CPU): Cephes and AMOS, where torch's port of Cephes is off by up to 1e-4."""
    from scipy import special

    values = getattr(special, name)(x.detach().cpu().numpy())
    return torch.as_tensor(values if part is None else values[part], dtype=torch.float64, device=x.device)


def bessel(name: str, x: Tensor) -> Tensor:
    """``special_bessel_j0`` and its kin: name is "j0", "j1", "y0" or "y1"."""
    return _from_scipy(name, x)


def airy_ai(x: Tensor) -> Tensor:
    """The Airy function Ai."""
    return _from_scipy("airy", x, part=0)


def call_arguments(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """The arguments of an op by schema name, defaults filled in; ``out`` is left out."""
    named: dict[str, Any] = {}
    for position, argument in enumerate(func._schema.arguments):
        if argument.is_out:
            continue
        if position < len(args):
            named[argument.name] = args[position]
        elif argument.name in kwargs:
            named[argument.name] = kwargs[argument.name]
        else:
            named[argument.name] = argument.default_value if argument.has_default_value() else None
    return named


_TWO_OVER_SQRT_PI = 2.0 / math.sqrt(math.pi)


def _gelu_kappa(x: Tensor, approximate: str = "none") -> Tensor:
    """1 + x phi/Phi, with ``phi/Phi = sqrt(2/pi)/erfcx(-x/sqrt 2)``, or 1 + x v' sigmoid(-v) for the tanh form x sigmoid(v)."""
    if approximate == "none":
        scaled_tail: Tensor = torch.special.erfcx(x * -_SQRT_HALF)
        return 1 + x * _TANH_SCALE / scaled_tail
    slope = 2.0 * _TANH_SCALE * (1.0 + 3.0 * _TANH_CUBIC * x * x)
    return 1 + x * slope * torch.sigmoid(-_twice_tanh_argument(x))


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


def kappa(func: Any, args: Any, kwargs: Any = None) -> Tensor | None:
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
