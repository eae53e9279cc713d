"""Convolutions, forward and backward, direct and transposed."""

from __future__ import annotations

import math
from typing import Any

import torch

from precisionlab.ops.local import named, on_absolute
from precisionlab.ops.registry import Family, op_rule, optional_ops

aten = torch.ops.aten

_FORWARD = ("convolution", "_convolution", "convolution_overrideable", "mkldnn_convolution", "slow_conv3d", "slow_conv3d_forward")
_BACKEND = ("cudnn_convolution", "miopen_convolution", "miopen_depthwise_convolution", "_conv_depthwise2d", "conv_depthwise3d")
_SLOW = ("thnn_conv2d", "_slow_conv2d_forward", "slow_conv_dilated2d", "slow_conv_dilated3d")
_COMPOSITE = ("conv1d", "conv2d", "conv3d", "_convolution_mode")
_TRANSPOSED = ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "cudnn_convolution_transpose", "miopen_convolution_transpose")
_TRANSPOSED_SLOW = ("slow_conv_transpose2d", "slow_conv_transpose3d")


def _forward_length(weight: torch.Tensor, transposed: bool, groups: int) -> int:
    """Terms of one output element: a kernel's volume times the input channels of its group.

    A normal weight is (out, in/groups, *kernel), a transposed one (in, out/groups, *kernel), where a stride only lowers the count.
    """
    volume = math.prod(weight.shape[2:])
    return max(1, volume * (weight.shape[0] // groups if transposed else weight.shape[1]))


def _generic(func: Any, args: Any, kwargs: Any) -> Any:
    """A backend's convolution as ``aten.convolution``, whose fp64 kernel exists everywhere."""
    g = named(func, args, kwargs)
    name = func._schema.name
    if not any(backend in name for backend in ("cudnn", "miopen", "mkldnn", "overrideable")):
        return func(*args, **kwargs)
    x, pad_out = g.get("self", g.get("input")), g.get("output_padding") or [0] * len(g["stride"])
    transposed = g.get("transposed", "transpose" in name)
    return torch.convolution(x, g["weight"], g.get("bias"), g["stride"], g["padding"], g["dilation"], transposed, pad_out, g["groups"])


@op_rule(*optional_ops(aten, *_FORWARD, *_BACKEND, *_SLOW, *_COMPOSITE, *_TRANSPOSED, *_TRANSPOSED_SLOW), family=Family.CONVOLUTION)
class Convolution:
    """S = the convolution of absolute values (+ |bias|), n = kernel volume times input channels of a group.

    Source: Higham 2002, section 3.1 (every output is an inner product).
    """

    reference = staticmethod(_generic)

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        absolute = [a.abs() if isinstance(a, torch.Tensor) else a for a in args]
        return _generic(func, absolute, {k: v.abs() if isinstance(v, torch.Tensor) else v for k, v in kwargs.items()})

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        given = named(func, args, kwargs)
        transposed = bool(given.get("transposed", False)) or "transpose" in func._schema.name
        return _forward_length(given["weight"], transposed, int(given.get("groups") or 1))


@op_rule(*optional_ops(aten, "convolution_backward", "convolution_backward_overrideable"), family=Family.CONVOLUTION)
class ConvolutionBackward:
    """Three products: S of each = the same backward on absolute values.

    grad_input sums output channels and kernel, grad_weight and grad_bias sum batch and positions; n is the longest of those asked for.
    Source: Higham 2002, section 3.1.
    """

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        return on_absolute(func, args, kwargs)

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        given = named(func, args, kwargs)
        grad, weight, groups = given["grad_output"], given["weight"], int(given["groups"])
        transposed = bool(given["transposed"])
        inputs = _forward_length(weight, not transposed, groups)
        positions = grad if not transposed else given["input"]
        rows = positions.shape[0] * math.prod(positions.shape[2:])
        bias_rows = grad.shape[0] * math.prod(grad.shape[2:])
        mask = list(given.get("output_mask") or (True, True, True))
        return int(max(1, *(n for n, wanted in zip((inputs, rows, bias_rows), mask, strict=False) if wanted), 1))


@op_rule(*optional_ops(aten, "conv_tbc"), family=Family.CONVOLUTION)
class TimeBatchChannelConvolution:
    """S = the convolution of absolute values; the weight is (kernel, in, out), n = kernel times in. Source: Higham 2002, section 3.1."""

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        return on_absolute(func, args, kwargs)

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        weight = named(func, args, kwargs)["weight"]
        return int(max(1, weight.shape[0] * weight.shape[1]))


@op_rule(*optional_ops(aten, "conv_tbc_backward"), family=Family.CONVOLUTION)
class TimeBatchChannelConvolutionBackward:
    """S = the same backward on absolute values; the weight's gradient sums over time and batch. Source: Higham 2002, section 3.1."""

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        return on_absolute(func, args, kwargs)

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        given = named(func, args, kwargs)
        grad, weight = given["self"], given["weight"]
        return int(max(1, grad.shape[0] * grad.shape[1], weight.shape[0] * weight.shape[2]))
