"""Scaled dot-product attention: the fused kernels, which keep the probabilities in half precision once.

With s = scale q k^T + mask and P = softmax(s), the error of a score is absolute and of size u_acc A, A = scale |q| |k|^T, so it is a
relative error of P. Storing P in the dtype of the operands before the product with v adds R = u (P |v|); in the backward pass P and
dS are stored so. Source: kernels FlashAttentionKernel.cpp (torch/aten/native/cpu) and Dao et al. 2022, algorithms 1 and 4; the size of
R measured: without it a healthy kernel reads 11 (fp16) and 60 (bf16).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from precisionlab.ops.local import named
from precisionlab.ops.registry import Family, op_rule, optional_ops

aten = torch.ops.aten

FAST_EXPONENTIAL = 64.0
"""The half kernels take a fast exponential (fexp_u20) good to a few 2^-18; their logsumexp, although fp32, is judged on that scale."""


@dataclass(frozen=True)
class _Scores:
    """Query, key and value with equal head counts, the scores, their absolute counterpart and the scale."""

    q: Tensor
    k: Tensor
    v: Tensor
    scores: Tensor
    absolute: Tensor
    scale: float
    heads: int
    """Heads of the key as given; fewer than those of the query in grouped-query attention."""


def _scores(given: Any) -> _Scores:
    q, k, v = given["query"], given["key"], given["value"]
    heads = k.shape[-3] if k.dim() > 2 else 1
    if q.dim() > 2 and q.shape[-3] != heads:
        k, v = (t.repeat_interleave(q.shape[-3] // heads, dim=-3) for t in (k, v))
    scale = given.get("scale")
    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = q @ k.transpose(-2, -1) * scale
    absolute = q.abs() @ k.abs().transpose(-2, -1) * abs(scale)
    mask = given.get("attn_mask", given.get("attn_bias"))
    if given.get("is_causal"):
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~allowed, -math.inf)
    if mask is not None and mask.numel():
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
        absolute = absolute if mask.dtype == torch.bool else absolute + torch.nan_to_num(mask.abs(), posinf=0.0)
    return _Scores(q, k, v, scores, absolute, scale, heads)


def _probabilities(scores: Tensor) -> Tensor:
    return torch.nan_to_num(torch.softmax(scores, -1), nan=0.0)


def _refuse_dropout(given: Any) -> None:
    if given.get("dropout_p"):
        raise NotImplementedError("the dropout mask lives inside the kernel")


def _has_fp64_kernel(func: Any) -> bool:
    return "flash_attention_for_cpu" in func._schema.name or "math" in func._schema.name or func._schema.name.endswith("product_attention")


def _longest(func: Any, args: Any, kwargs: Any, y: Any) -> int:
    given = named(func, args, kwargs)
    return int(max(1, given["query"].shape[-1], given["query"].shape[-2] if _grad(given) is not None else 1, given["key"].shape[-2]))


def _grad(given: Any) -> Any:
    return given.get("grad_out", given.get("grad_out_"))


_FORWARD = (
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_attention_math",
    "_scaled_dot_product_fused_attention_overrideable",
    "scaled_dot_product_attention",
)


@op_rule(*optional_ops(aten, *_FORWARD), family=Family.ATTENTION)
class Attention:
    """S = P (1 + A + sum P A) |v|, S_logsumexp = 1 + |lse| + max|s| + sum P A, n = max(head size, keys), R = u P |v|.

    S_logsumexp is multiplied by FAST_EXPONENTIAL. Source: module.
    """

    length = staticmethod(_longest)

    @staticmethod
    def reference(func: Any, args: Any, kwargs: Any) -> Any:
        given = named(func, args, kwargs)
        _refuse_dropout(given)
        if _has_fp64_kernel(func):
            return func(*args, **kwargs)
        s = _scores(given)
        return _probabilities(s.scores) @ s.v, torch.logsumexp(s.scores, -1)

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        s = _scores(named(func, args, kwargs))
        p = _probabilities(s.scores)
        mean_a = (p * s.absolute).sum(-1, keepdim=True)
        weights = p * (1.0 + s.absolute + mean_a)
        out = weights @ s.v.abs()
        if isinstance(y, Tensor):
            return out
        if "math" in func._schema.name:
            return out, weights
        highest = torch.nan_to_num(s.scores.amax(-1).abs(), posinf=0.0)
        lse = 1.0 + torch.nan_to_num(y[1].abs(), posinf=0.0) + highest + mean_a.squeeze(-1)
        return out, FAST_EXPONENTIAL * lse

    @staticmethod
    def internal(func: Any, args: Any, kwargs: Any, y: Any, u: float) -> Any:
        s = _scores(named(func, args, kwargs))
        rounding = u * (_probabilities(s.scores) @ s.v.abs())
        return rounding if isinstance(y, Tensor) else (rounding, None)


_BACKWARD = (
    "_scaled_dot_product_flash_attention_for_cpu_backward",
    "_scaled_dot_product_flash_attention_backward",
    "_scaled_dot_product_efficient_attention_backward",
    "_scaled_dot_product_cudnn_attention_backward",
)


def _per_key_head(grad: Tensor, s: _Scores) -> Tensor:
    """Sum over the query heads that share a key head."""
    if grad.dim() < 3 or grad.shape[-3] == s.heads:
        return grad
    return grad.reshape(*grad.shape[:-3], s.heads, -1, *grad.shape[-2:]).sum(-3)


def _gradients(s: _Scores, p: Tensor, ds: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    dq = s.scale * (ds @ s.k)
    dk = s.scale * (ds.transpose(-2, -1) @ s.q)
    return dq, _per_key_head(dk, s), _per_key_head(p.transpose(-2, -1) @ grad, s)


@op_rule(*optional_ops(aten, *_BACKWARD), family=Family.ATTENTION)
class AttentionBackward:
    """dV = P^T dO, dS = P (dO v^T - sum dO o), dQ = scale dS k, dK = scale dS^T q, with P = exp(s - logsumexp).

    S: the same with dS replaced by P (1 + A + |lse|) (|dO||v|^T + sum |dO o|) and all factors absolute; n = longest of head size,
    queries, keys. R: P and dS stored once. Source: module.
    """

    length = staticmethod(_longest)

    @staticmethod
    def _parts(func: Any, args: Any, kwargs: Any) -> tuple[_Scores, Tensor, Tensor, Tensor, Tensor]:
        given = named(func, args, kwargs)
        _refuse_dropout(given)
        s, grad = _scores(given), _grad(given)
        assert grad is not None
        lse = given["logsumexp"][..., : s.q.shape[-2]].reshape(s.scores.shape[:-1])
        p = torch.nan_to_num(torch.exp(s.scores - lse.unsqueeze(-1)), nan=0.0, posinf=0.0)
        return s, p, grad, given["out"], lse

    @classmethod
    def _exact(cls, func: Any, args: Any, kwargs: Any) -> tuple[_Scores, Tensor, Tensor, Tensor]:
        s, p, grad, out, _ = cls._parts(func, args, kwargs)
        ds = p * (grad @ s.v.transpose(-2, -1) - (grad * out).sum(-1, keepdim=True))
        return s, p, ds, grad

    @staticmethod
    def reference(func: Any, args: Any, kwargs: Any) -> Any:
        _refuse_dropout(named(func, args, kwargs))
        return func(*args, **kwargs) if _has_fp64_kernel(func) else _gradients(*AttentionBackward._exact(func, args, kwargs))

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        s, p, grad, out, lse = AttentionBackward._parts(func, args, kwargs)
        relative = 1.0 + s.absolute + torch.nan_to_num(lse.abs(), posinf=0.0).unsqueeze(-1)
        ds = p * relative * (grad.abs() @ s.v.abs().transpose(-2, -1) + (grad * out).abs().sum(-1, keepdim=True))
        positive = _Scores(s.q.abs(), s.k.abs(), s.v.abs(), s.scores, s.absolute, abs(s.scale), s.heads)
        return _gradients(positive, p * relative, ds, grad.abs())

    @staticmethod
    def internal(func: Any, args: Any, kwargs: Any, y: Any, u: float) -> Any:
        s, p, ds, grad = AttentionBackward._exact(func, args, kwargs)
        positive = _Scores(s.q.abs(), s.k.abs(), s.v.abs(), s.scores, s.absolute, abs(s.scale), s.heads)
        return tuple(u * g for g in _gradients(positive, p, ds.abs(), grad.abs()))
