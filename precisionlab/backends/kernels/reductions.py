"""Sums, means, scans, pooling, norms and losses."""

from __future__ import annotations

import torch

from precisionlab.backends.cases import Method, case
from precisionlab.backends.error_level import MEAN_SQUARES, SQUARES

Tensor = torch.Tensor
aten = torch.ops.aten


@case("aten.sum", "last dimension")
def sum_rows(x: Tensor) -> Tensor:
    return aten.sum(x, [1])


@case("aten.sum", "first dimension")
def sum_columns(x: Tensor) -> Tensor:
    """As the gradient of a bias is summed over the batch."""
    return aten.sum(x.t().contiguous(), [0])


@case("aten.sum", "whole tensor", rows=1)
def sum_all(x: Tensor) -> Tensor:
    return aten.sum(x[0]).reshape(1)


@case("aten.mean", "last dimension", divides=True)
def mean_rows(x: Tensor) -> Tensor:
    return aten.mean(x, [1]) * x.shape[1]


@case("aten.mean", "first dimension", divides=True)
def mean_columns(x: Tensor) -> Tensor:
    return aten.mean(x.t().contiguous(), [0]) * x.shape[1]


@case("aten.mean", "whole tensor", divides=True, rows=1)
def mean_all(x: Tensor) -> Tensor:
    return aten.mean(x[0]).reshape(1) * x.shape[1]


@case("aten.cumsum", "last dimension")
def cumsum_rows(x: Tensor) -> Tensor:
    return aten.cumsum(x, 1)[:, -1]


@case("aten.cumsum", "first dimension")
def cumsum_columns(x: Tensor) -> Tensor:
    return aten.cumsum(x.t().contiguous(), 0)[-1]


@case("aten.avg_pool2d", divides=True)
def avg_pool(x: Tensor) -> Tensor:
    rows, n = x.shape
    return aten.avg_pool2d(x.reshape(1, rows, 1, n), [1, n]).reshape(rows) * n


@case("aten.nll_loss_forward", "sum over the batch", rows=1)
def nll_sum(x: Tensor) -> Tensor:
    """Of n samples with one class each."""
    target = torch.zeros(x.shape[1], dtype=torch.long, device=x.device)
    return -aten.nll_loss_forward(x[0, :, None].contiguous(), target, None, 2, -100)[0].reshape(1)


@case("aten.nll_loss_forward", "mean over the batch", divides=True, rows=1)
def nll_mean(x: Tensor) -> Tensor:
    target = torch.zeros(x.shape[1], dtype=torch.long, device=x.device)
    return -aten.nll_loss_forward(x[0, :, None].contiguous(), target, None, 1, -100)[0].reshape(1) * x.shape[1]


@case("aten.upsample_nearest1d_backward")
def upsample_backward(x: Tensor) -> Tensor:
    """The gradient of one position that was repeated n times."""
    rows, n = x.shape
    return aten.upsample_nearest1d_backward(x[None], [n], [1, rows, 1])[0, :, 0]


@case("aten.max_pool2d_with_indices_backward")
def max_pool_backward(x: Tensor) -> Tensor:
    """Of n windows whose maximum is the same element."""
    rows, n = x.shape
    grad = x.reshape(1, rows, 1, n)
    indices = torch.zeros(1, rows, 1, n, dtype=torch.long, device=x.device)
    return aten.max_pool2d_with_indices_backward(grad, torch.zeros_like(grad), [1, 1], [1, 1], [0, 0], [1, 1], False, indices)[0, :, 0, 0]


@case("aten.linalg_vector_norm", method=Method.ERROR, unfolded=SQUARES, rows=1)
def vector_norm(x: Tensor) -> Tensor:
    return aten.linalg_vector_norm(x[0]).reshape(1)


@case("aten._foreach_norm", method=Method.ERROR, unfolded=SQUARES, rows=1)
def foreach_norm(x: Tensor) -> Tensor:
    """As ``clip_grad_norm_`` calls it."""
    return aten._foreach_norm([x[0]])[0].reshape(1)


@case("aten.var", method=Method.ERROR)
def var(x: Tensor) -> Tensor:
    return aten.var(x, [1], correction=0)


@case("aten.std", method=Method.ERROR)
def std(x: Tensor) -> Tensor:
    return aten.std(x, [1], correction=0)


@case("aten.mse_loss", method=Method.ERROR, unfolded=MEAN_SQUARES, rows=1)
def mse_loss(x: Tensor) -> Tensor:
    return aten.mse_loss(x[0], torch.zeros_like(x[0])).reshape(1)
