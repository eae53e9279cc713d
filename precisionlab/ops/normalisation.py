"""Layer, group, batch, instance, RMS and weight normalisation, forward and backward.

With xhat = (x - mean) rstd, the computed x - mean is only as good as |x| + |mean| allows, so |xhat| enters every scale as
xabs = (|x| + |mean|) rstd. Source: Higham 2002, section 1.9 (two-pass variance), applied term by term to the backward formulas of
Ioffe & Szegedy 2015, section 3, and Ba, Kiros & Hinton 2016, section 3.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from precisionlab.ops.local import named
from precisionlab.ops.registry import Family, op_rule, optional_ops

aten = torch.ops.aten


def _abs_or(value: Tensor | None, default: float) -> Tensor | float:
    return default if value is None else value.abs()


def _forward_scales(x: Tensor, mean: Tensor, rstd: Tensor, dims: list[int], weight: Any, bias: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Scales of (result, mean, rstd); ``mean`` and ``rstd`` broadcast against ``x``, and so do the absolute weight and bias."""
    xabs = (x.abs() + mean.abs()) * rstd
    rms = x.square().mean(dims, keepdim=True).sqrt()
    return xabs * weight + bias, x.abs().mean(dims, keepdim=True), rstd * (1.0 + rms * rstd)


def _backward_scales(
    grad: Tensor, xabs: Tensor, rstd: Tensor, dims: list[int], weight: Any, row_dims: list[int], centred: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Scales of (grad_input, grad_weight, grad_bias), the last two with kept dimensions."""
    g = grad.abs()
    gw = g * weight
    inner = gw + xabs * (gw * xabs).mean(dims, keepdim=True)
    if centred:
        inner = inner + gw.mean(dims, keepdim=True)
    return rstd * inner, (g * xabs).sum(row_dims, keepdim=True), g.sum(row_dims, keepdim=True)


def _trailing(x: Tensor, shape: Any) -> list[int]:
    return list(range(x.dim() - len(shape), x.dim()))


def _rows(x: Tensor, shape: Any) -> int:
    return int(max(1, x.numel() // max(1, math.prod(shape))))


@op_rule(*optional_ops(aten, "native_layer_norm", "layer_norm"), family=Family.NORMALISATION)
class LayerNorm:
    """S = (|x| + |mean|) rstd |w| + |b|; S_mean = mean |x|; S_rstd = rstd (1 + rms rstd); n = elements of a row. Source: module."""

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        given = named(func, args, kwargs)
        x, dims = given["input"], _trailing(given["input"], given["normalized_shape"])
        if isinstance(y, Tensor):
            var, mean = torch.var_mean(x, dims, correction=0, keepdim=True)
            rstd = (var + given["eps"]).rsqrt()
        else:
            mean, rstd = y[1], y[2]
        scales = _forward_scales(x, mean, rstd, dims, _abs_or(given["weight"], 1.0), _abs_or(given["bias"], 0.0))
        return scales[0] if isinstance(y, Tensor) else scales

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        return int(max(1, math.prod(named(func, args, kwargs)["normalized_shape"])))


@op_rule(*optional_ops(aten, "native_layer_norm_backward"), family=Family.NORMALISATION)
class LayerNormBackward:
    """S_input = rstd (|g w| + mean|g w| + xabs mean(|g w| xabs)); S_weight = sum over rows of |g| xabs; S_bias = sum |g|.

    n is the larger of a row and the number of rows. Source: module.
    """

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        given = named(func, args, kwargs)
        x, shape = given["input"], given["normalized_shape"]
        dims = _trailing(x, shape)
        rows = list(range(x.dim() - len(shape)))
        xabs = (x.abs() + given["mean"].abs()) * given["rstd"]
        g_in, g_weight, g_bias = _backward_scales(given["grad_out"], xabs, given["rstd"], dims, _abs_or(given["weight"], 1.0), rows, True)
        return g_in, g_weight.reshape(shape), g_bias.reshape(shape)

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        given = named(func, args, kwargs)
        return int(max(1, math.prod(given["normalized_shape"]), _rows(given["input"], given["normalized_shape"])))


@op_rule(*optional_ops(aten, "_fused_rms_norm", "rms_norm"), family=Family.NORMALISATION)
class RmsNorm:
    """No subtraction: S = |y|, n = elements of a row. Source: Higham 2002, (4.4)."""

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        return int(max(1, math.prod(named(func, args, kwargs)["normalized_shape"])))


@op_rule(*optional_ops(aten, "_fused_rms_norm_backward"), family=Family.NORMALISATION)
class RmsNormBackward:
    """As layer norm's backward without the mean: S_input = rstd (|g w| + |xhat| mean |g w xhat|), S_weight = sum |g xhat|.

    The formula itself is the reference: there is no CPU kernel. Source: Zhang & Sennrich 2019, (4) differentiated; module.
    """

    @staticmethod
    def reference(func: Any, args: Any, kwargs: Any) -> Any:
        given = named(func, args, kwargs)
        shape, grad = given["normalized_shape"], given["grad_out"]
        xhat = given["input"] * given["rstd"]
        gw = grad if given["weight"] is None else grad * given["weight"]
        g_in = given["rstd"] * (gw - xhat * (gw * xhat).mean(_trailing(grad, shape), keepdim=True))
        wanted = list(given["output_mask"])
        g_weight = (grad * xhat).flatten(0, grad.dim() - len(shape) - 1).sum(0) if grad.dim() > len(shape) else grad * xhat
        return (g_in if wanted[0] else None), (g_weight if wanted[1] and given["weight"] is not None else None)

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        given = named(func, args, kwargs)
        x, shape = given["input"], given["normalized_shape"]
        rows = list(range(x.dim() - len(shape)))
        xabs = x.abs() * given["rstd"]
        weight = _abs_or(given["weight"], 1.0)
        g_in, g_weight, _ = _backward_scales(given["grad_out"], xabs, given["rstd"], _trailing(x, shape), weight, rows, False)
        return g_in, g_weight.reshape(shape)

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        given = named(func, args, kwargs)
        return int(max(1, math.prod(given["normalized_shape"]), _rows(given["input"], given["normalized_shape"])))


def _by_group(x: Tensor, groups: int) -> Tensor:
    """(N, C, ...) as (N, groups, C / groups, positions)."""
    return x.reshape(x.shape[0], groups, x.shape[1] // groups, -1)


@op_rule(*optional_ops(aten, "native_group_norm", "group_norm"), family=Family.NORMALISATION)
class GroupNorm:
    """S as for layer norm over a group of channels, n = elements of a group. Source: module."""

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        given = named(func, args, kwargs)
        groups = given.get("group", given.get("num_groups"))
        x = _by_group(given["input"], groups)
        if isinstance(y, Tensor):
            var, mean = torch.var_mean(x, [2, 3], correction=0, keepdim=True)
            rstd = (var + given["eps"]).rsqrt()
        else:
            mean, rstd = (t.reshape(x.shape[0], groups, 1, 1) for t in y[1:])
        weight, bias = (
            b if not isinstance(b, Tensor) else b.reshape(1, groups, -1, 1)
            for b in (_abs_or(given["weight"], 1.0), _abs_or(given["bias"], 0.0))
        )
        out, s_mean, s_rstd = _forward_scales(x, mean, rstd, [2, 3], weight, bias)
        out = out.reshape(given["input"].shape)
        return out if isinstance(y, Tensor) else (out, s_mean.reshape(y[1].shape), s_rstd.reshape(y[2].shape))

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        given = named(func, args, kwargs)
        x, groups = given["input"], given.get("group", given.get("num_groups"))
        return int(max(1, x.numel() // max(1, x.shape[0] * groups)))


@op_rule(*optional_ops(aten, "native_group_norm_backward"), family=Family.NORMALISATION)
class GroupNormBackward:
    """S as for layer norm's backward; grad_weight and grad_bias sum over samples and positions. Source: module."""

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        given = named(func, args, kwargs)
        groups, shape = given["group"], given["input"].shape
        x, grad = _by_group(given["input"], groups), _by_group(given["grad_out"], groups)
        mean, rstd = (given[k].reshape(shape[0], groups, 1, 1) for k in ("mean", "rstd"))
        weight = _abs_or(given["weight"], 1.0)
        weight = weight.reshape(1, groups, -1, 1) if isinstance(weight, Tensor) else weight
        xabs = (x.abs() + mean.abs()) * rstd
        g_in, g_weight, g_bias = _backward_scales(grad, xabs, rstd, [2, 3], weight, [0, 3], True)
        return g_in.reshape(shape), g_weight.reshape(-1), g_bias.reshape(-1)

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        given = named(func, args, kwargs)
        n, c, positions = given["N"], given["C"], given["HxW"]
        return int(max(1, c // given["group"] * positions, n * positions))


def _over_channels(x: Tensor) -> tuple[list[int], list[int], int]:
    """(dimensions that are reduced, shape of a channel vector against x, elements of a channel)."""
    dims = [d for d in range(x.dim()) if d != 1]
    return dims, [1, -1] + [1] * (x.dim() - 2), max(1, x.numel() // max(1, x.shape[1]))


_BATCH = ("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training", "_native_batch_norm_legit_functional")
_BATCH_NEW = ("_batch_norm_with_update", "_batch_norm_with_update_functional", "_batch_norm_no_update", "cudnn_batch_norm", "batch_norm")


@op_rule(*optional_ops(aten, *_BATCH, *_BATCH_NEW), family=Family.NORMALISATION)
class BatchNorm:
    """S as for layer norm over a channel; with running statistics the mean is an operand. n = elements of a channel. Source: module.

    New running statistics (functional overloads) have S = |y| + the scale of the batch statistic.
    """

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        given = named(func, args, kwargs)
        x = given["input"]
        dims, shape, _ = _over_channels(x)
        eps = given.get("eps", given.get("epsilon"))
        training = given.get("training", given.get("use_input_stats"))
        training = training if training is not None else "no_" not in func._schema.name
        if training:
            var, mean = torch.var_mean(x, dims, correction=0)
        else:
            mean, var = given["running_mean"], given["running_var"]
        weight, bias = _abs_or(given["weight"], 1.0), _abs_or(given["bias"], 0.0)
        weight, bias = (t.reshape(shape) if isinstance(t, Tensor) else t for t in (weight, bias))
        scales = _forward_scales(x, mean.reshape(shape), (var + eps).rsqrt().reshape(shape), dims, weight, bias)
        if isinstance(y, Tensor):
            return scales[0]
        found: list[Any] = [scales[0], scales[1].reshape(-1), scales[2].reshape(-1)]
        found = [s if i == 0 or y[i].numel() == s.numel() else None for i, s in enumerate(found)]
        found += [None] * (len(y) - 3)
        if func._schema.name.endswith("functional"):
            found[-2] = y[-2].abs() + scales[1].reshape(-1)
            found[-1] = y[-1].abs() + (var * x.square().mean(dims)).sqrt()
        return tuple(found)

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        return _over_channels(named(func, args, kwargs)["input"])[2]


@op_rule(*optional_ops(aten, "instance_norm"), family=Family.NORMALISATION)
class InstanceNorm:
    """S as for layer norm over one channel of one sample (with running statistics: not judged). Source: module."""

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        given = named(func, args, kwargs)
        if not given["use_input_stats"]:
            return (None,)
        x = given["input"]
        dims, shape = list(range(2, x.dim())), [1, -1] + [1] * (x.dim() - 2)
        var, mean = torch.var_mean(x, dims, correction=0, keepdim=True)
        weight, bias = _abs_or(given["weight"], 1.0), _abs_or(given["bias"], 0.0)
        weight, bias = (t.reshape(shape) if isinstance(t, Tensor) else t for t in (weight, bias))
        return _forward_scales(x, mean, (var + given["eps"]).rsqrt(), dims, weight, bias)[0]

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        return int(max(1, math.prod(named(func, args, kwargs)["input"].shape[2:])))


@op_rule(*optional_ops(aten, "native_batch_norm_backward", "batch_norm_backward", "cudnn_batch_norm_backward"), family=Family.NORMALISATION)
class BatchNormBackward:
    """S as for layer norm's backward over a channel, with the saved statistics in training, else |g w| rstd. Source: module."""

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        given = named(func, args, kwargs)
        x, grad = given["input"], given.get("grad_out", given.get("grad_output"))
        dims, shape, _ = _over_channels(x)
        training = given.get("train", given.get("update", True))
        if training:
            mean, rstd = given["save_mean"], given.get("save_invstd", given.get("save_var"))
        else:
            mean, rstd = given["running_mean"], (given["running_var"] + given["eps"]).rsqrt()
        mean, rstd = mean.reshape(shape), rstd.reshape(shape)
        weight = _abs_or(given["weight"], 1.0)
        weight = weight.reshape(shape) if isinstance(weight, Tensor) else weight
        xabs = (x.abs() + mean.abs()) * rstd
        g_in, g_weight, g_bias = _backward_scales(grad, xabs, rstd, dims, weight, dims, True)
        return (g_in if training else grad.abs() * weight * rstd), g_weight.reshape(-1), g_bias.reshape(-1)

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        return _over_channels(named(func, args, kwargs)["input"])[2]


def _slice_length(v: Tensor, dim: int) -> int:
    return max(1, v.numel() // max(1, v.shape[dim]))


@op_rule(*optional_ops(aten, "_weight_norm_interface", "_weight_norm"), family=Family.NORMALISATION)
class WeightNorm:
    """g v / ||v||: relative errors only, S = |y|, n = elements of a slice. Source: Higham 2002, (4.4)."""

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        given = named(func, args, kwargs)
        return _slice_length(given["v"], given["dim"])


@op_rule(*optional_ops(aten, "_weight_norm_interface_backward"), family=Family.NORMALISATION)
class WeightNormBackward:
    """S_v = g/||v|| (|gw| + |v| sum|gw v| / ||v||^2), S_g = sum |gw v| / ||v||. Source: Salimans & Kingma 2016, (3), term by term."""

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        given = named(func, args, kwargs)
        gw, v, g, norms = (given[k].abs() for k in ("grad_w", "saved_v", "saved_g", "saved_norms"))
        dims = [d for d in range(v.dim()) if d != given["dim"] % v.dim()]
        norms = norms.reshape([-1 if d == given["dim"] % v.dim() else 1 for d in range(v.dim())])
        dots = (gw * v).sum(dims, keepdim=True)
        return g.reshape(norms.shape) / norms * (gw + v * dots / norms.square()), (dots / norms).reshape(g.shape)

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        given = named(func, args, kwargs)
        return _slice_length(given["saved_v"], given["dim"])
