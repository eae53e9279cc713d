"""Softmax and its kin: denominators, which are sums of exponentials, and the sums of their backward passes."""

from __future__ import annotations

import torch

from precisionlab.backends.cases import Method, case
from precisionlab.backends.error_level import EXPONENTIALS, NEGATED_LOG, RECIPROCAL

Tensor = torch.Tensor
aten = torch.ops.aten


@case("aten._softmax", "denominator", method=Method.ERROR, unfolded=RECIPROCAL)
def softmax(x: Tensor) -> Tensor:
    return aten._softmax(x, 1, False)[:, 0]


@case("aten._log_softmax", "denominator", method=Method.ERROR, unfolded=NEGATED_LOG)
def log_softmax(x: Tensor) -> Tensor:
    return aten._log_softmax(x, 1, False)[:, 0]


@case("aten.logsumexp", method=Method.ERROR, unfolded=EXPONENTIALS)
def logsumexp(x: Tensor) -> Tensor:
    return aten.logsumexp(x, [1])


@case("aten.logcumsumexp", method=Method.ERROR, unfolded=EXPONENTIALS)
def logcumsumexp(x: Tensor) -> Tensor:
    return aten.logcumsumexp(x, 1)[:, -1]


@case("aten._softmax_backward_data", "sum of gradient times output")
def softmax_backward(x: Tensor) -> Tensor:
    """y (g - sum(g y)) with y = 1 everywhere; the gradient of one more element, whose own g is zero, is minus the sum."""
    gradient = torch.nn.functional.pad(x, (0, 1))
    return -aten._softmax_backward_data(gradient, torch.ones_like(gradient), 1, x.dtype)[:, -1]


@case("aten._log_softmax_backward_data", "sum of the gradient")
def log_softmax_backward(x: Tensor) -> Tensor:
    """g - exp(y) sum(g) with y = 0 everywhere; as for the softmax."""
    gradient = torch.nn.functional.pad(x, (0, 1))
    return -aten._log_softmax_backward_data(gradient, torch.zeros_like(gradient), 1, x.dtype)[:, -1]
