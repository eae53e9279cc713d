"""Products: dot, matrix, convolution, attention. The other operand is all ones, so that the products are the terms, exactly."""

from __future__ import annotations

import torch

from precisionlab.backends.cases import case

Tensor = torch.Tensor
aten = torch.ops.aten

WIDTH = 16
"""Columns of the other operand: enough that no kernel treats it as a vector."""
TILE = 16
"""Positions per image where a convolution's gradient sums over images and positions."""


@case("aten.dot", rows=1)
def dot(x: Tensor) -> Tensor:
    return aten.dot(x[0], torch.ones_like(x[0])).reshape(1)


@case("aten.mv")
def mv(x: Tensor) -> Tensor:
    return aten.mv(x, x.new_ones(x.shape[1]))


@case("aten.addmv")
def addmv(x: Tensor) -> Tensor:
    return aten.addmv(x.new_zeros(x.shape[0]), x, x.new_ones(x.shape[1]))


@case("aten.addbmm", "sum over the batch")
def addbmm(x: Tensor) -> Tensor:
    rows, n = x.shape
    return aten.addbmm(x.new_zeros(rows, WIDTH), x.t().reshape(n, rows, 1).contiguous(), x.new_ones(n, 1, WIDTH))[:, 0]


@case("aten.mm", "terms in the left operand")
def mm_left(x: Tensor) -> Tensor:
    return aten.mm(x, x.new_ones(x.shape[1], WIDTH))[:, 0]


@case("aten.mm", "terms in the right operand")
def mm_right(x: Tensor) -> Tensor:
    return aten.mm(x.new_ones(WIDTH, x.shape[1]), x.t().contiguous())[0]


@case("aten.mm", "weight gradient")
def mm_transposed(x: Tensor) -> Tensor:
    """Both operands run along their rows, as in the weight gradient of a linear layer: grad.t() @ input."""
    return aten.mm(x.t().contiguous().t(), x.new_ones(x.shape[1], WIDTH))[:, 0]


@case("aten.addmm", "linear layer")
def addmm(x: Tensor) -> Tensor:
    return aten.addmm(x.new_zeros(WIDTH), x, x.new_ones(WIDTH, x.shape[1]).t())[:, 0]


@case("aten.bmm")
def bmm(x: Tensor) -> Tensor:
    return aten.bmm(x.expand(2, -1, -1).contiguous(), x.new_ones(2, x.shape[1], WIDTH))[0, :, 0]


@case("aten.baddbmm")
def baddbmm(x: Tensor) -> Tensor:
    zeros = x.new_zeros(2, x.shape[0], WIDTH)
    return aten.baddbmm(zeros, x.expand(2, -1, -1).contiguous(), x.new_ones(2, x.shape[1], WIDTH))[0, :, 0]


@case("aten.convolution", "1d")
def conv1d(x: Tensor) -> Tensor:
    return aten.convolution(x[:, :, None], x.new_ones(WIDTH, x.shape[1], 1), None, [1], [0], [1], False, [0], 1)[:, 0, 0]


@case("aten.convolution", "2d, 4 x 4 kernel")
def conv2d(x: Tensor) -> Tensor:
    rows, n = x.shape
    image, kernel = x.reshape(rows, n // 16, 4, 4), x.new_ones(WIDTH, n // 16, 4, 4)
    return aten.convolution(image, kernel, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)[:, 0, 0, 0]


def _conv_backward(x: Tensor, mask: list[bool]) -> tuple[Tensor, Tensor, Tensor]:
    """Backward of a 1 x 1 convolution from one channel of ones to ``rows`` channels, whose output gradient holds the terms.

    They lie along images, 16 positions each.
    """
    rows, n = x.shape
    grad = x.t().reshape(n // TILE, TILE, rows).permute(0, 2, 1).reshape(n // TILE, rows, 4, 4).contiguous()
    image, weight = x.new_ones(n // TILE, 1, 4, 4), x.new_ones(rows, 1, 1, 1)
    return aten.convolution_backward(grad, image, weight, [rows], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, mask)


@case("aten.convolution_backward", "weight gradient")
def conv_weight(x: Tensor) -> Tensor:
    return _conv_backward(x, [False, True, False])[1].reshape(-1)


@case("aten.convolution_backward", "bias gradient")
def conv_bias(x: Tensor) -> Tensor:
    return _conv_backward(x, [False, False, True])[2]


@case("aten.convolution_backward", "input gradient")
def conv_input(x: Tensor) -> Tensor:
    """Sums over the output channels: the weight holds ones, the output gradient the terms."""
    rows, n = x.shape
    grad, image, weight = x.reshape(rows, n, 1, 1), x.new_ones(rows, WIDTH, 1, 1), x.new_ones(n, WIDTH, 1, 1)
    return aten.convolution_backward(grad, image, weight, [n], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, False, False])[0][
        :, 0, 0, 0
    ]


@case("aten._scaled_dot_product_flash_attention_for_cpu", "probabilities times values", divides=True)
def attention(x: Tensor) -> Tensor:
    """Of n keys that all match alike: each probability is exp(0) = 1 before the division by their sum n."""
    rows, n = x.shape
    query, key = x.new_zeros(1, 1, 16, rows), x.new_zeros(1, 1, n, rows)
    value = x.t().contiguous()[None, None]
    return aten._scaled_dot_product_flash_attention_for_cpu(query, key, value)[0][0, 0, 0] * n
