"""Optimizer steps and the gradient scaler's kernels: ``_fused_*``, ``_foreach_*`` and ``_amp_*``.

What a step looks like at dispatch (torch 2.13): ``fused=True`` is ``_foreach_add_(steps, 1)``, then one ``_fused_adamw_`` with the
already increased steps, then, under a scaler, ``_foreach_sub_(steps, found_inf)``; ``foreach=True`` is a dozen ``_foreach_*``, else
plain elementwise ops. SGD keeps no steps. ``_foreach_norm`` and ``_foreach_powsum`` are in reduction.py, ``_foreach_mm`` in dot.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from precisionlab.ops.pointwise import added_magnitude, interpolated_magnitude
from precisionlab.ops.registry import Family, How, op_rule, optional_ops
from precisionlab.ops.stable import call_arguments

aten = torch.ops.aten

_CONTROL = ("grad_scale", "found_inf")
"""Read through ``data_ptr<float>()`` in every kernel: an fp64 twin raises "expected scalar type Float but found Double"."""


def _narrow(value: Any) -> Any:
    """fp32 in place of fp64: exact for steps up to 2^24, for flags, and for scales that are powers of two."""
    if isinstance(value, Tensor):
        return value.float() if value.is_floating_point() else value
    return [_narrow(each) for each in value] if isinstance(value, (list, tuple)) else value


@op_rule(*optional_ops(aten, "_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_"), family=Family.OPTIMIZER)
class FusedStep:
    """The fused kernel itself on the fp64 twins, updated in place; only its control tensors go back to fp32.

    Parameters, gradients (rewritten unscaled when ``grad_scale`` is given) and moments are fp64, the kernel then computes in fp64
    throughout. The steps are fp32 tensors whose twins would be fp64: CPU kernels read either, CUDA kernels only fp32, and no kernel
    takes fp64 for ``grad_scale`` or ``found_inf``. A step with ``found_inf`` set does nothing. ``lr`` as a tensor stays fp64 on CPU
    and becomes fp32 on other devices, where the kernel reads it so. Source: aten/src/ATen/native/FusedAdam.cpp, cuda/fused_adam_utils.cuh.
    """

    @staticmethod
    def reference(func: Any, args: Any, kwargs: Any) -> None:
        named = call_arguments(func, args, kwargs)
        for name in _CONTROL:
            named[name] = _narrow(named[name])
        if "state_steps" in named:
            named["state_steps"] = _narrow(named["state_steps"])
        if isinstance(named["lr"], Tensor) and named["lr"].device.type != "cpu":
            named["lr"] = _narrow(named["lr"])
        func(**named)


@op_rule(
    *optional_ops(aten, "_amp_foreach_non_finite_check_and_unscale_"),
    family=Family.AMP,
    note="found_inf is the real run's; the twins' gradients are only multiplied by the inverse scale",
)
class Unscale:
    """``grads *= inv_scale`` in place; ``found_inf`` is left alone, since the real run decides about the step.

    The op itself would raise on fp64 twins of ``found_inf`` and ``inv_scale``. An inverse scale of 1 (how the scaler only *looks* for
    non-finite gradients in front of a fused step) changes nothing, nor do infinite gradients become finite.
    """

    @staticmethod
    def reference(func: Any, args: Any, kwargs: Any) -> None:
        named = call_arguments(func, args, kwargs)
        for gradient in named["self"]:
            gradient.mul_(named["inv_scale"].to(gradient.device))


@op_rule(
    *optional_ops(aten, "_amp_update_scale_"), family=Family.AMP, how=How.REAL, note="the scale and its growth counter are the real run's"
)
class UpdateScale:
    """The scale is control state: a twin that grew on its own found_inf would put both runs into different units."""


_FOREACH_PLAIN = (
    "abs acos asin atan ceil clamp_max clamp_min clone copy cos cosh div erf erfc exp expm1 floor frac lgamma log log10 log1p log2 max "
    "maximum minimum mul neg pow reciprocal round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc zero"
)


def _aligned(value: Any, count: int) -> list[Any]:
    """One operand for each tensor of a list: lists as they are, a 1-D tensor of scalars taken apart, anything else repeated."""
    if isinstance(value, (list, tuple)):
        return list(value)
    if isinstance(value, Tensor) and value.dim() == 1 and value.numel() == count:
        return list(value.unbind())
    return [value] * count


@op_rule(*optional_ops(aten, *(f"_foreach_{name}" for name in _FOREACH_PLAIN.split())), family=Family.OPTIMIZER)
class ForeachPlain:
    """Lists of fp64 tensors run as they are, with scalars, lists of scalars and tensors alike; judged on the results' own scale."""


@op_rule(*optional_ops(aten, "_foreach_add", "_foreach_sub"), family=Family.OPTIMIZER)
class ForeachSum:
    """Sums of two lists: each judged as its single op is. Results are a tuple, one S for each tensor."""

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> tuple[Tensor, ...]:
        named = call_arguments(func, args, kwargs)
        others = next(named[name] for name in ("other", "scalar", "scalars") if name in named)
        alpha = 1 if named.get("alpha") is None else named["alpha"]
        firsts = named["self"]
        return tuple(added_magnitude(a, b, alpha) for a, b in zip(firsts, _aligned(others, len(firsts)), strict=True))


@op_rule(*optional_ops(aten, "_foreach_lerp"), family=Family.OPTIMIZER)
class ForeachLerp:
    """Moving averages of lists."""

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> tuple[Tensor, ...]:
        named = call_arguments(func, args, kwargs)
        weights = next(named[name] for name in ("weight", "weights", "scalars") if name in named)
        triples = zip(named["self"], named["tensors1"], _aligned(weights, len(named["self"])), strict=True)
        return tuple(interpolated_magnitude(a, b, w) for a, b, w in triples)


@op_rule(*optional_ops(aten, "_foreach_addcmul", "_foreach_addcdiv"), family=Family.OPTIMIZER)
class ForeachFused:
    """``a + v b c`` and ``a + v b / c`` on lists."""

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> tuple[Tensor, ...]:
        named = call_arguments(func, args, kwargs)
        firsts = named["self"]
        factors = _aligned(named["scalars"] if "scalars" in named else named["value"], len(firsts))
        combine = torch.mul if "addcmul" in func._schema.name else torch.div
        quadruples = zip(firsts, named["tensor1"], named["tensor2"], factors, strict=True)
        return tuple(added_magnitude(a, combine(b, c), v) for a, b, c, v in quadruples)
