"""Normalisation: the statistics of the forward pass, the weight and bias gradients of the backward pass."""

from __future__ import annotations

import torch

from precisionlab.backends.cases import Method, case

Tensor = torch.Tensor
aten = torch.ops.aten

HALVES = (torch.float16, torch.bfloat16)
GROUP = 16
"""Positions a sample where a gradient sums over samples and positions."""


def _signs(rows: int, x: Tensor) -> Tensor:
    """+1, -1, +1, ...: mean 0 and variance 1, so that normalising with eps = 0 changes nothing."""
    signs = x.new_ones(rows)
    signs[1::2] = -1
    return signs


def _layer_norm(x: Tensor, mask: list[bool], weights: torch.dtype | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Backward of a layer norm over ``rows`` features of n samples, whose output gradient holds the terms.

    Weights and statistics are of the dtype ``weights``; None is that of the terms.
    """
    rows, n = x.shape
    samples = _signs(rows, x).expand(n, rows).contiguous()
    ones = torch.ones(max(n, rows), dtype=weights or x.dtype, device=x.device)
    zeros = torch.zeros_like(ones)
    mean, rstd, weight, bias = zeros[:n, None], ones[:n, None], ones[:rows], zeros[:rows]
    return aten.native_layer_norm_backward(x.t().contiguous(), samples, [rows], mean, rstd, weight, bias, mask)


@case("aten.native_layer_norm_backward", "weight gradient")
def layer_norm_weight(x: Tensor) -> Tensor:
    return _layer_norm(x, [False, True, False])[1] * _signs(x.shape[0], x)


@case("aten.native_layer_norm_backward", "bias gradient")
def layer_norm_bias(x: Tensor) -> Tensor:
    return _layer_norm(x, [False, False, True])[2]


@case("aten.native_layer_norm_backward", "weight gradient, fp32 weight")
def layer_norm_fp32_weight(x: Tensor) -> Tensor:
    return _layer_norm(x, [False, True, False], torch.float32 if x.dtype in HALVES else None)[1] * _signs(x.shape[0], x)


@case("aten.native_layer_norm_backward", "bias gradient, fp32 weight")
def layer_norm_fp32_bias(x: Tensor) -> Tensor:
    return _layer_norm(x, [False, False, True], torch.float32 if x.dtype in HALVES else None)[2]


def _batch_norm(x: Tensor, mask: list[bool]) -> tuple[Tensor, Tensor, Tensor]:
    """Backward of a batch norm over n samples of ``rows`` channels; weight and statistics in fp32, as the half kernels want them."""
    rows, n = x.shape
    stats = torch.float32 if x.dtype in HALVES else x.dtype
    ones, zeros = torch.ones(rows, dtype=stats, device=x.device), torch.zeros(rows, dtype=stats, device=x.device)
    samples = _signs(n, x)[:, None].expand(n, rows).contiguous()
    return aten.native_batch_norm_backward(x.t().contiguous(), samples, ones, None, None, zeros, ones, True, 0.0, mask)


@case("aten.native_batch_norm_backward", "weight gradient")
def batch_norm_weight(x: Tensor) -> Tensor:
    """The terms are handed over with the signs of the samples, so that their products with them are the terms again."""
    return _batch_norm(x * _signs(x.shape[1], x), [False, True, False])[1]


@case("aten.native_batch_norm_backward", "bias gradient")
def batch_norm_bias(x: Tensor) -> Tensor:
    return _batch_norm(x, [False, False, True])[2]


def _group_norm(x: Tensor, mask: list[bool]) -> tuple[Tensor, Tensor, Tensor]:
    """Backward of a group norm of n / 16 samples with ``rows`` channels of 16 positions, two channels a group."""
    rows, n = x.shape
    samples, groups = n // GROUP, rows // 2
    grad = x.t().reshape(samples, GROUP, rows).permute(0, 2, 1).contiguous()
    values = _signs(rows, x)[None, :, None].expand(samples, rows, GROUP).contiguous()
    mean, rstd = x.new_zeros(samples, groups), x.new_ones(samples, groups)
    return aten.native_group_norm_backward(grad, values, mean, rstd, x.new_ones(rows), samples, rows, GROUP, groups, mask)


@case("aten.native_group_norm_backward", "weight gradient")
def group_norm_weight(x: Tensor) -> Tensor:
    return _group_norm(x, [False, True, False])[1] * _signs(x.shape[0], x)


@case("aten.native_group_norm_backward", "bias gradient")
def group_norm_bias(x: Tensor) -> Tensor:
    return _group_norm(x, [False, False, True])[2]


@case("aten.native_layer_norm", "reciprocal standard deviation", method=Method.ERROR)
def layer_norm_rstd(x: Tensor) -> Tensor:
    return aten.native_layer_norm(x, [x.shape[1]], None, None, 0.0)[2].reshape(-1)


@case("aten.native_layer_norm", "mean", method=Method.ERROR)
def layer_norm_mean(x: Tensor) -> Tensor:
    return aten.native_layer_norm(x, [x.shape[1]], None, None, 0.0)[1].reshape(-1)


@case("aten.native_group_norm", "mean", method=Method.ERROR)
def group_norm_mean(x: Tensor) -> Tensor:
    rows, n = x.shape
    return aten.native_group_norm(x.reshape(rows, 1, n), None, None, rows, 1, n, 1, 0.0)[1].reshape(-1)


@case("aten.native_group_norm", "reciprocal standard deviation", method=Method.ERROR)
def group_norm_rstd(x: Tensor) -> Tensor:
    rows, n = x.shape
    return aten.native_group_norm(x.reshape(rows, 1, n), None, None, rows, 1, n, 1, 0.0)[2].reshape(-1)


@case("aten.native_batch_norm", "mean", method=Method.ERROR)
def batch_norm_mean(x: Tensor) -> Tensor:
    return aten.native_batch_norm(x.t().contiguous(), None, None, None, None, True, 0.1, 0.0)[1]


@case("aten.native_batch_norm", "reciprocal standard deviation", method=Method.ERROR)
def batch_norm_rstd(x: Tensor) -> Tensor:
    return aten.native_batch_norm(x.t().contiguous(), None, None, None, None, True, 0.1, 0.0)[2]
