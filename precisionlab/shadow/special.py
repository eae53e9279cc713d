"""Ops whose twin needs more than the same overload on fp64 operands.

Each function is called as ``f(memory, func, call, hi_args, hi_kwargs, out)`` with the program's result ``out`` and returns the fp64 results
(or the same structure of them); integer and bool members are what the twin would have decided.
"""

from __future__ import annotations

from typing import Any

import torch

from precisionlab.ops.registry import optional_ops

Tensor = torch.Tensor
aten = torch.ops.aten


class Unshadowable(Exception):
    """This call cannot be run in fp64; the reason is for the coverage line."""


SPECIAL: dict[Any, Any] = {}


def _special(*names: str) -> Any:
    def register(f: Any) -> Any:
        for packet in optional_ops(aten, *names):
            SPECIAL[packet] = f
        return f

    return register


@_special("_softmax", "_log_softmax")
def _softmax(memory: Any, func: Any, call: Any, hi_args: list[Any], hi_kwargs: dict[str, Any], out: Any) -> Any:
    """``half_to_float`` is refused for fp64 operands: it is left out."""
    return func(hi_args[0], hi_args[1], False)


@_special("_to_copy")
def _to_copy(memory: Any, func: Any, call: Any, hi_args: list[Any], hi_kwargs: dict[str, Any], out: Tensor) -> Any:
    """A cast rounds nothing in fp64: both tensors share a buffer until one of them is written."""
    hi, source = hi_args[0], call.args[0]
    if hi.dtype not in (torch.float64, torch.complex128) or out.is_complex() != hi.is_complex():
        return func(*hi_args, **hi_kwargs)
    if not (out.dtype.is_floating_point or out.is_complex()):
        return func(*hi_args, **hi_kwargs)
    if out.device == source.device and source.storage_offset() == 0 and out.stride() == source.stride() == hi.stride():
        return hi
    return hi.to(out.device, memory_format=hi_kwargs.get("memory_format") or torch.preserve_format, copy=True)


@_special("native_dropout", "_fused_dropout")
def _dropout(memory: Any, func: Any, call: Any, hi_args: list[Any], hi_kwargs: dict[str, Any], out: Any) -> Any:
    """The program's mask holds; the probability kept is an exact Python number."""
    hi, probability = hi_args[0], call.args[1]
    fused = func._schema.name.endswith("_fused_dropout")
    keep = probability if fused else 1.0 - probability
    train = fused or len(call.args) < 3 or call.args[2] is None or call.args[2]
    return (hi * out[1] * (1.0 / keep if keep > 0 else 0.0) if train else hi.clone(), out[1])


@_special("rrelu_with_noise")
def _rrelu(memory: Any, func: Any, call: Any, hi_args: list[Any], hi_kwargs: dict[str, Any], out: Tensor) -> Any:
    """In training the program has written the slopes it drew into the noise: 1 where the operand is positive."""
    return _leaky(func, call, hi_args)


@_special("rrelu_with_noise_")
def _rrelu_in_place(memory: Any, func: Any, call: Any, hi_args: list[Any], hi_kwargs: dict[str, Any], out: Tensor) -> Any:
    """As out of place."""
    return hi_args[0].copy_(_leaky(func, call, hi_args))


def _leaky(func: Any, call: Any, hi_args: list[Any]) -> Tensor:
    hi, noise = hi_args[0], hi_args[1]
    noise.copy_(call.args[1])
    if _argument(func, call, "training", False):
        return hi * noise
    slope = (_argument(func, call, "lower", 1 / 8) + _argument(func, call, "upper", 1 / 3)) / 2
    return torch.where(hi > 0, hi, hi * slope)


def _gather(hi: Tensor, indices: Tensor, dim: int, keepdim: bool) -> Tensor:
    if hi.dim() == 0:
        return hi.clone()
    if indices.dim() < hi.dim():
        return hi.gather(dim, indices.unsqueeze(dim)).squeeze(dim)
    return hi.gather(dim, indices)


def _argument(func: Any, call: Any, name: str, default: Any) -> Any:
    for position, argument in enumerate(func._schema.arguments):
        if argument.name == name:
            if position < len(call.args):
                return call.args[position]
            return call.kwargs.get(name, argument.default_value if argument.has_default_value() else default)
    return default


@_special("sort", "topk", "kthvalue", "mode", "cummax", "cummin", "max", "min", "median", "nanmedian", "_fused_moving_avg")
def _select(memory: Any, func: Any, call: Any, hi_args: list[Any], hi_kwargs: dict[str, Any], out: Any) -> Any:
    """The twin's values are gathered with the program's indices."""
    if not isinstance(out, (tuple, list)) or len(out) != 2:
        return func(*hi_args, **hi_kwargs)
    own = func(*hi_args, **hi_kwargs) if func._schema.name == "aten::topk" else (None, out[1])
    dim = _argument(func, call, "dim", -1)
    return (_gather(hi_args[0], out[1], -1 if dim is None else dim, False), own[1])


@_special("max_pool2d_with_indices", "adaptive_max_pool2d", "fractional_max_pool2d")
def _pool2d(memory: Any, func: Any, call: Any, hi_args: list[Any], hi_kwargs: dict[str, Any], out: Any) -> Any:
    """The twin's values are gathered with the program's indices."""
    return _pooled(hi_args, out, 2)


@_special("max_pool3d_with_indices", "adaptive_max_pool3d", "fractional_max_pool3d")
def _pool3d(memory: Any, func: Any, call: Any, hi_args: list[Any], hi_kwargs: dict[str, Any], out: Any) -> Any:
    """The twin's values are gathered with the program's indices."""
    return _pooled(hi_args, out, 3)


def _pooled(hi_args: list[Any], out: Any, spatial: int) -> Any:
    _, indices = out
    hi = hi_args[0].flatten(-spatial)
    return (hi.gather(-1, indices.flatten(-spatial)).view(indices.shape), indices)
