"""Sums, means, variances, norms and other reductions of one tensor."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from precisionlab.ops.local import named, on_absolute, terms_per_element
from precisionlab.ops.registry import Family, op_rule, optional_ops

aten = torch.ops.aten


def _first(y: Any) -> Any:
    return y[0] if isinstance(y, (list, tuple)) else y


def _terms(func: Any, args: Any, kwargs: Any, y: Any) -> int:
    return terms_per_element(args[0], _first(y))


def _dims(func: Any, args: Any, kwargs: Any) -> tuple[Any, bool]:
    """``(dim or None for all, keepdim)`` of a reduction."""
    given = named(func, args, kwargs)
    dim = given.get("dim")
    dim = None if dim is None or (isinstance(dim, (list, tuple)) and not dim) else dim
    return dim, bool(given.get("keepdim", False))


def _mean(x: Tensor, dim: Any, keepdim: bool) -> Tensor:
    return x.mean() if dim is None else x.mean(dim, keepdim)


@op_rule(*optional_ops(aten, "sum", "mean", "nansum", "nanmean", "sum_to_size"), family=Family.REDUCTION)
class Sum:
    """S = sum (mean) of |x|, n = terms. Source: Higham 2002, (4.4)."""

    length = staticmethod(_terms)

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        return on_absolute(func, args, kwargs)


@op_rule(*optional_ops(aten, "prod"), family=Family.REDUCTION)
class Product:
    """n relative roundings: S = |y|. Source: Higham 2002, lemma 3.1."""

    length = staticmethod(_terms)


@op_rule(*optional_ops(aten, "var", "std", "var_mean", "std_mean"), family=Family.REDUCTION)
class Variance:
    """S_var = std rms(x), S_std = rms(x), S_mean = mean |x|, n = terms.

    The condition number of a variance is rms(x) / std, and a one-pass update (Welford, which torch uses) pays it once.
    Source: Chan, Golub & LeVeque 1983, table 2; Higham 2002, section 1.9.
    """

    length = staticmethod(_terms)

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        x = args[0].abs()
        dim, keepdim = _dims(func, args, kwargs)
        rms = _mean(x.square(), dim, keepdim).sqrt()
        spread = _first(y)
        name = func._schema.name
        scale = rms + spread.abs() if "std" in name else rms * spread.clamp(min=0).sqrt() + spread.abs()
        return (scale, _mean(x, dim, keepdim)) if isinstance(y, (list, tuple)) else scale


def _in_blocks(n: int) -> float:
    """Growth of a sum in sqrt(n) blocks of sqrt(n) terms: G = 2 n^(1/4), at most sqrt(n).

    A running sum is no standard for a norm: over 10^7 equal terms an fp32 one is off by 1 %, and sqrt(n) u lets tenths of that pass.
    Source: Blanchard, Higham & Mary 2020, A class of fast and accurate summation algorithms, §3.
    """
    return min(math.sqrt(n), 2.0 * math.sqrt(math.sqrt(n)))


@op_rule(*optional_ops(aten, "norm", "linalg_vector_norm", "linalg__powsum", "frobenius_norm"), family=Family.REDUCTION)
class Norm:
    """All terms are positive: S = |y| max(1, 1/p), n = terms, summed in blocks. Source: Higham 2002, (4.4) and problem 27.4."""

    length = staticmethod(_terms)
    growth = staticmethod(_in_blocks)

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        given = named(func, args, kwargs)
        p = given.get("p", given.get("ord", 2))
        return y.abs() * (max(1.0, 1.0 / abs(p)) if p else 1.0)


@op_rule(*optional_ops(aten, "_foreach_norm", "_foreach_powsum"), family=Family.REDUCTION)
class ForeachNorm:
    """One norm a tensor, S = |y|, n = elements of the largest tensor, summed in blocks. Source: Higham 2002, (4.4)."""

    growth = staticmethod(_in_blocks)

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        return [norm.abs() for norm in y]

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        return max((x.numel() for x in args[0]), default=1)


@op_rule(*optional_ops(aten, "logsumexp", "special_logsumexp"), family=Family.REDUCTION)
class LogSumExp:
    """S = |max| + |y| + 1: the shift by the maximum, the logarithm and the addition of the two round; n = terms.

    No internal rounding is declared: a kernel that composes it in half precision overflows and stalls on wide rows, and must be seen.
    Source: Blanchard, Higham & Higham 2021, theorem 3.2.
    """

    length = staticmethod(_terms)

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        dim, keepdim = _dims(func, args, kwargs)
        x = args[0]
        highest = x.amax() if dim is None else x.amax(dim, keepdim)
        return highest.abs() + y.abs() + 1.0


@op_rule(*optional_ops(aten, "amax", "amin"), family=Family.REDUCTION)
class Extremum:
    """Exact: one element is copied. S = |y|, n = 1."""


@op_rule(*optional_ops(aten, "trace"), family=Family.REDUCTION)
class Trace:
    """S = trace of |A|, n = length of the diagonal. Source: Higham 2002, (4.4)."""

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        return on_absolute(func, args, kwargs)

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        return int(max(1, *(min(args[0].shape),)))


@op_rule(*optional_ops(aten, "dist"), family=Family.REDUCTION)
class Distance:
    """Norm of a difference. S = norm(|a| + |b|): the difference may cancel after a product or a cast, n = terms.

    Source: Higham 2002, (4.4).
    """

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        given = named(func, args, kwargs)
        a, b = torch.broadcast_tensors(given["self"].abs(), given["other"].abs())  # type: ignore[no-untyped-call]
        return torch.linalg.vector_norm((a + b).reshape(-1), given["p"])

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        return int(max(1, args[0].numel()))


@op_rule(*optional_ops(aten, "renorm"), family=Family.REDUCTION)
class Renorm:
    """Slices scaled down to a norm: relative errors only, S = |y|, n = elements of a slice; R = 2 u |y|, norm and factor being stored.

    Source: Higham 2002, (4.4).
    """

    @staticmethod
    def internal(func: Any, args: Any, kwargs: Any, y: Any, u: float) -> Any:
        return 2 * u * y.abs()

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        given = named(func, args, kwargs)
        return int(max(1, given["self"].numel() // max(1, given["self"].shape[given["dim"]])))
