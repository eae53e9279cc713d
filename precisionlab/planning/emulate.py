"""Formats that this machine cannot multiply in, emulated at the operands of matrix products: fp8 with per-tensor scales, and TF32.

fp8: forward operands are divided by max|x| / 448 and rounded to e4m3, gradients of the result by max|g| / 57344 and rounded to e5m2
(Micikevicius et al. 2022, "FP8 formats for deep learning"); products are then exact and summed as the program sums. TF32: operands are
rounded to 11 significant bits by Dekker's splitting, which is the identity in exact arithmetic, so the fp64 twin stays what it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, resolve_name

_PRODUCTS = frozenset(("linear", "matmul", "__matmul__", "mm", "bmm", "addmm", "baddbmm", "conv1d", "conv2d", "conv3d"))
_OPERANDS = {"addmm": (1, 2), "baddbmm": (1, 2)}
_TF32_SPLIT = 2.0**13 + 1.0
"""Dekker's constant for 24 - 11 = 13 bits."""


class Emulated(TorchFunctionMode):
    """Rounds the operands of matrix products to ``fmt`` (fp8 or tf32); ``skip`` says where the program's own formats stay."""

    def __init__(self, fmt: str, skip: Callable[[], bool] = lambda: False) -> None:
        super().__init__()
        self.round: Any = {"fp8": _Fp8.apply, "tf32": _tf32}[fmt]
        self.skip = skip
        self._stems: dict[Any, str] = {}

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        stem = self._stems.get(func)
        if stem is None:
            stem = self._stems[func] = (resolve_name(func) or getattr(func, "__name__", "")).rpartition(".")[2]
        if stem not in _PRODUCTS or self.skip():
            return func(*args, **kwargs)
        which = _OPERANDS.get(stem, (0, 1))
        rounded = [self.round(a) if i in which and isinstance(a, Tensor) and a.is_floating_point() else a for i, a in enumerate(args)]
        return func(*rounded, **kwargs)


class _Fp8(torch.autograd.Function):
    """e4m3 forward, e5m2 backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return _scaled(x, torch.float8_e4m3fn)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _scaled(grad, torch.float8_e5m2)


def _scaled(x: Tensor, fmt: torch.dtype) -> Tensor:
    largest = x.detach().abs().amax().float()
    scale = torch.where(largest > 0, largest / torch.finfo(fmt).max, 1.0)
    return ((x.float() / scale).to(fmt).float() * scale).to(x.dtype)


def _tf32(x: Tensor) -> Tensor:
    if x.dtype is not torch.float32:
        return x
    wide = x * _TF32_SPLIT
    return wide - (wide - x)
