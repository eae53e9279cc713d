"""softmax, log_softmax and their gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from precisionlab.ops.local import named
from precisionlab.ops.registry import Family, op_rule, optional_ops

aten = torch.ops.aten


def _x(given: Any) -> Tensor:
    x: Tensor = given["self"]
    return x


def _same_dtype(func: Any, args: Any, kwargs: Any) -> Any:
    """``half_to_float`` asks for a fp32 result of half input; in fp64 there is nothing to convert."""
    given = named(func, args, kwargs)
    return func(given["self"], given["dim"], False) if given.get("half_to_float") else func(*args, **kwargs)


def _steps(func: Any, args: Any, kwargs: Any, y: Any) -> int:
    given = named(func, args, kwargs)
    x = given.get("self", given.get("output"))
    return int(max(1, x.shape[given["dim"]]) if x.dim() and given.get("dim") is not None else max(1, x.numel()))


def _distance_from_max(x: Tensor, dim: int | None) -> Tensor:
    """|x - max x|, and 0 where x is -inf: such an element takes no part in a sum."""
    highest = x.amax() if dim is None else x.amax(dim, keepdim=True)
    return torch.nan_to_num((x - highest).abs(), nan=0.0, posinf=0.0)


@op_rule(*optional_ops(aten, "_softmax", "_safe_softmax", "softmax", "special_softmax"), family=Family.SOFTMAX)
class Softmax:
    """S = P (1 + |x - max|), n = elements of a row. R = u P over any dimension but the last, where the exponentials are stored first.

    Source: Blanchard, Higham & Higham 2021, theorem 4.3 (shifted softmax); vec_softmax in torch/aten/native/cpu/SoftMaxKernel.cpp.
    """

    reference = staticmethod(_same_dtype)
    length = staticmethod(_steps)

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        given = named(func, args, kwargs)
        return y * (1.0 + _distance_from_max(_x(given), given["dim"]))

    @staticmethod
    def internal(func: Any, args: Any, kwargs: Any, y: Any, u: float) -> Any:
        return 0.0 if named(func, args, kwargs)["dim"] in (-1, y.dim() - 1) else u * y


@op_rule(*optional_ops(aten, "_masked_softmax"), family=Family.SOFTMAX)
class MaskedSoftmax:
    """S = P (1 + |x - max|) over all of a row, masked or not; n = elements of a row. Source: as Softmax."""

    length = staticmethod(_steps)

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        given = named(func, args, kwargs)
        dim = -1 if given["dim"] is None else given["dim"]
        return y * (1.0 + _distance_from_max(_x(given), dim))


@op_rule(*optional_ops(aten, "_log_softmax", "log_softmax", "special_log_softmax"), family=Family.SOFTMAX)
class LogSoftmax:
    """S = |x| + |max| + 1 + |y|: x minus the maximum minus a logarithm; n = elements of a row.

    R = u log(sum of exponentials after the shift), which the CPU kernel stores once a row.
    Source: Blanchard, Higham & Higham 2021, theorem 3.2; vec_log_softmax_lastdim_chunk_kernel in torch/aten/native/cpu/SoftMaxKernel.cpp.
    """

    reference = staticmethod(_same_dtype)
    length = staticmethod(_steps)

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        given = named(func, args, kwargs)
        x = _x(given)
        return x.abs() + x.amax(given["dim"], keepdim=True).abs() + 1.0 + y.abs() if x.numel() else y.abs()

    @staticmethod
    def internal(func: Any, args: Any, kwargs: Any, y: Any, u: float) -> Any:
        spread = torch.nan_to_num(y.amax(named(func, args, kwargs)["dim"], keepdim=True).abs(), nan=0.0, posinf=0.0)
        return (u * spread).expand(y.shape)


@op_rule(*optional_ops(aten, "_softmax_backward_data", "_masked_softmax_backward"), family=Family.SOFTMAX)
class SoftmaxBackward:
    """S = P (|g| + sum |g| P), n = elements of a row. Source: Higham 2002, section 3.1, on P (g - sum g P)."""

    length = staticmethod(_steps)

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        given = named(func, args, kwargs)
        grad, p = given["grad_output"].abs(), given["output"].abs()
        dim = -1 if given["dim"] is None else given["dim"]
        return p * (grad + (grad * p).sum(dim, keepdim=True))


@op_rule(*optional_ops(aten, "_log_softmax_backward_data"), family=Family.SOFTMAX)
class LogSoftmaxBackward:
    """S = |g| + P (1 + |log P|) sum |g|, n = elements of a row. Source: Higham 2002, section 3.1, on g - P sum g."""

    length = staticmethod(_steps)

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        given = named(func, args, kwargs)
        grad, log_p = given["grad_output"].abs(), given["output"]
        p = log_p.exp()
        spread = torch.nan_to_num(p * (1.0 + log_p.abs()), nan=0.0)
        return grad + spread * grad.sum(given["dim"], keepdim=True)
