"""The loss scale as a unit that values carry: the power of S in every tensor.

A scaled loss is S^1, its gradients are S^1, a gradient norm is S^1, a clip coefficient max_norm/norm is S^-1, unscaling multiplies by
S^-1. Every op is an equation on these powers, and what an optimizer uses must be S^0: S^1 is a step on scaled gradients, S^-1 a
gradient whose scale was divided out twice (clipped while scaled and unscaled after, or unscaled twice). All forms of the mistake, with
GradScaler or by hand, are one inequality. A sum of different powers (weight decay or noise added to scaled gradients) has none: NaN.
"""

from __future__ import annotations

import math

import torch

from precisionlab.ops.registry import Family
from precisionlab.shadow.call import OpCall, Pair

Tensor = torch.Tensor

MIXED = math.nan
"""The power of a sum of values with different powers."""
_SUMS = frozenset(("add", "sub", "rsub", "lerp", "where", "cat", "stack", "maximum", "minimum"))
_NEGLIGIBLE = 2.0**-24
"""Share of a sum below which an addend changes nothing in fp32, whatever its unit."""

_BILINEAR = frozenset((Family.DOT, Family.CONVOLUTION))
_NONLINEAR = frozenset(
    f"aten.{n}"
    for n in (
        "exp",
        "log",
        "log2",
        "log10",
        "log1p",
        "expm1",
        "sigmoid",
        "tanh",
        "sin",
        "cos",
        "erf",
        "sign",
        "softmax",
        "_softmax",
        "_log_softmax",
        "argmax",
    )
)


def stem(name: str) -> str:
    """``aten._foreach_mul_`` -> ``mul``."""
    return name.rpartition(".")[2].removeprefix("_foreach_").rstrip("_")


def power_of(call: OpCall, pair: Pair, inputs: list[Pair], scale: float) -> float:
    """The power of S in one result, from the powers of its operands.

    ``scale`` is the S by which Python numbers are recognised; 1 where a number that happens to be S is only a number.
    """
    powers = [p.twin.power for p in inputs]
    name = call.info.stem
    if len(powers) > 1 and name in _SUMS and min(powers) != max(powers) and _mixes(call, pair, inputs):
        return MIXED
    first = powers[0] if powers else 0.0
    second = powers[1] if len(powers) > 1 else 0.0
    number = _number(call)
    if name == "mul":
        if len(powers) > 1:
            return sum(powers)
        return first + _as_power(number, scale)
    if name == "div":
        return first - second if len(powers) > 1 else first - _as_power(number, scale)
    if name == "reciprocal":
        return -first
    if name == "pow":
        return first * number if number is not None else first
    if name == "square":
        return 2 * first
    if name in ("sqrt", "rsqrt"):
        return first / 2 if name == "sqrt" else -first / 2
    if name in ("clamp", "clamp_max", "clamp_min", "minimum", "maximum") and first and pair.lo.numel() == 1:
        source = inputs[0].lo
        same = source.numel() == 1 and (call.info.in_place or bool(pair.lo == source))
        return first if same else 0.0
    if name == "_amp_foreach_non_finite_check_and_unscale" or call.info.name.endswith("_amp_foreach_non_finite_check_and_unscale_"):
        inverse = call.args[2]
        return first - (0.0 if float(inverse) == 1.0 else 1.0)
    if call.info.name in _NONLINEAR:
        return 0.0
    if call.info.family in _BILINEAR and "backward" not in name:
        return sum(powers)
    return MIXED if any(map(math.isnan, powers)) else max(powers, key=abs, default=0.0)


def _mixes(call: OpCall, pair: Pair, inputs: list[Pair]) -> bool:
    """Whether operands of different powers are all there: zeros have any unit, and so has an addend that changes nothing."""
    if pair.lo.numel() == 1:
        return False  # norms, and the eps beside them
    sizes = [(p.twin.power, float(p.lo.detach().abs().amax())) for p in inputs if p.lo.numel() > 1]
    if call.info.in_place and call.info.stem in ("add", "sub") and len(inputs) == 2 and len(sizes) == 2:
        alpha = call.kwargs.get("alpha", call.args[2] if len(call.args) > 2 else 1)
        added = inputs[1].lo.detach() * (alpha if call.info.stem == "add" else -alpha)
        sizes[0] = (sizes[0][0], float((pair.lo.detach() - added).abs().amax()))  # what was there before
    largest = max((size for _, size in sizes if math.isfinite(size)), default=0.0)
    present = {power for power, size in sizes if size > _NEGLIGIBLE * largest}
    return len(present) > 1 and not any(map(math.isnan, present))


def _number(call: OpCall) -> float | None:
    other = call.args[1] if len(call.args) > 1 else None
    if isinstance(other, (int, float)) and not isinstance(other, bool):
        return float(other)
    if isinstance(other, Tensor) and other.numel() == 1 and other.dtype is torch.float64 and other.device.type == "cpu":
        return float(other)
    return None


def _as_power(number: float | None, scale: float) -> float:
    """k for a Python number that is S^k, k of 1, 2, -1, -2; 0 otherwise. Scales of 1 are no scale."""
    if number is None or not scale > 1.5 or not number > 0:
        return 0.0
    power = math.log(number) / math.log(scale)
    nearest = round(power)
    exact = 0 < abs(nearest) <= 2 and abs(number / scale**nearest - 1.0) < 1e-6
    return float(nearest) if exact else 0.0
