"""Products of matrices and vectors."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from precisionlab.ops.local import named, on_absolute
from precisionlab.ops.registry import Family, op_rule, optional_ops

aten = torch.ops.aten


def _default_overload(func: Any, args: Any, kwargs: Any) -> Any:
    """The plain overload instead of ``mm.dtype`` and its like, which take only half operands (a half product with a fp32 result)."""
    if "dtype" not in func._overloadname:
        return func(*args, **kwargs)
    given = named(func, args, kwargs)
    factors = {k: given[k] for k in ("beta", "alpha") if k in given}
    tensors = [given[a.name] for a in func._schema.arguments if isinstance(given.get(a.name), Tensor) and a.name != "out"]
    return func.overloadpacket(*tensors, **factors)


def _absolute(func: Any, args: Any, kwargs: Any) -> Any:
    if "dtype" not in func._overloadname:
        return on_absolute(func, args, kwargs)
    absolute = [a.abs() if isinstance(a, Tensor) else abs(a) if isinstance(a, (int, float)) else a for a in args]
    return _default_overload(func, absolute, {k: abs(v) if k in ("alpha", "beta") else v for k, v in kwargs.items()})


@op_rule(*optional_ops(aten, "mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot", "vdot", "_foreach_mm"), family=Family.DOT)
class MatrixProduct:
    """S = |A||B| (+ |beta| |bias|), n = K. Source: Higham 2002, section 3.1 and (3.13)."""

    reference = staticmethod(_default_overload)

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        return _absolute(func, args, kwargs)

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        given = named(func, args, kwargs)
        left = given.get("mat1", given.get("batch1", given.get("mat", given["self"])))
        left = left[0] if isinstance(left, (list, tuple)) else left
        return int(max(1, left.shape[-1]))


def _grouped(func: Any, args: Any, kwargs: Any) -> Tensor:
    """Products of slices that end at ``offs``: of the rows, of the columns, or of the summed dimension (then one result each)."""
    given = named(func, args, kwargs)
    a, b, offs, bias = given["self"], given["mat2"], given.get("offs"), given.get("bias")
    if a.dim() == 3 and b.dim() == 3:
        out = a @ b
    else:
        ends = [int(e) for e in offs]
        slices = list(zip([0, *ends[:-1]], ends, strict=True))
        if a.dim() == 2 and b.dim() == 2:
            out = torch.stack([a[:, i:j] @ b[i:j] for i, j in slices])
        elif a.dim() == 2:
            out = a.new_zeros(a.shape[0], b.shape[-1])
            for group, (i, j) in enumerate(slices):
                out[i:j] = a[i:j] @ b[group]
        else:
            out = a.new_zeros(a.shape[1], b.shape[-1])
            for group, (i, j) in enumerate(slices):
                out[:, i:j] = a[group] @ b[:, i:j]
    result: Tensor = out if bias is None else out + bias
    return result


@op_rule(*optional_ops(aten, "_grouped_mm"), family=Family.DOT)
class GroupedProduct:
    """One product per expert; torch's kernel takes halves and fp32 only. S and n as for a product. Source: Higham 2002, section 3.1."""

    reference = staticmethod(_grouped)

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        given = named(func, args, kwargs)
        absolute = {k: v.abs() if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in given.items()}
        return _grouped(func, (), absolute)

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        return int(max(1, named(func, args, kwargs)["self"].shape[-1]))


@op_rule(*optional_ops(aten, "addbmm"), family=Family.DOT)
class SummedBatchProduct:
    """S as for a product; the batch is summed as well, n = B K. Source: Higham 2002, section 3.1."""

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        return on_absolute(func, args, kwargs)

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        batch1 = named(func, args, kwargs)["batch1"]
        return int(max(1, batch1.shape[0] * batch1.shape[2]))


@op_rule(*optional_ops(aten, "addr"), family=Family.DOT)
class AddedOuterProduct:
    """beta A + alpha x y^T: two terms. S = |beta A| + |alpha x y^T|. R = u (S + |alpha x y^T|): each product is stored.

    Source: Higham 2002, section 3.1; addr_kernel in torch/aten/native/cpu/LinearAlgebraKernel.cpp.
    """

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        return on_absolute(func, args, kwargs)

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        return 2

    @staticmethod
    def internal(func: Any, args: Any, kwargs: Any, y: Any, u: float) -> Any:
        given = named(func, args, kwargs)
        outer = abs(given["alpha"]) * torch.outer(given["vec1"].abs(), given["vec2"].abs())
        return u * (abs(given["beta"]) * given["self"].abs() + 2 * outer)


@op_rule(*optional_ops(aten, "ger", "outer", "kron"), family=Family.DOT)
class OuterProduct:
    """One product an element: S = |y|, n = 1."""


@op_rule(*optional_ops(aten, "_addmm_activation"), family=Family.DOT)
class ProductWithActivation:
    """relu or gelu of a product with bias, applied before the one rounding.

    S = |beta bias| + |A||B|: both activations have slopes of at most 1.13. Source: Higham 2002, section 3.1.
    """

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        given = named(func, args, kwargs)
        bias, a, b = (given[k].abs() for k in ("self", "mat1", "mat2"))
        return torch.addmm(bias, a, b, beta=abs(given["beta"]), alpha=abs(given["alpha"])) * 1.13

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        return int(max(1, named(func, args, kwargs)["mat1"].shape[-1]))


@op_rule(*optional_ops(aten, "linear", "matmul", "linalg_matmul", "inner", "linalg_vecdot", "mkldnn_linear"), family=Family.DOT)
class CompositeProduct:
    """Products that reach a mode whole only under ``inference_mode``. S = |A||B| (+ |bias|), n = K.

    R = u S for linalg_vecdot, which stores the products and sums them in a second kernel. Source: Higham 2002, section 3.1.
    """

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        return on_absolute(func, args, kwargs)

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        given = named(func, args, kwargs)
        left = given.get("input", given.get("self", given.get("x")))
        return max(1, left.shape[given.get("dim", -1)] if left.dim() else 1)

    @staticmethod
    def internal(func: Any, args: Any, kwargs: Any, y: Any, u: float) -> Any:
        return u * on_absolute(func, args, kwargs) if "vecdot" in func._schema.name else 0.0


@op_rule(*optional_ops(aten, "einsum", "tensordot", "linalg_multi_dot", "chain_matmul", "bilinear", "_trilinear"), family=Family.DOT)
class Contraction:
    """General contractions. S = the contraction of absolute values; n = summed index combinations, from the work over the result.

    A chain of several products rounds its intermediates to storage: R = u S for each product beyond the first.
    Source: Higham 2002, sections 3.1 and 3.5.
    """

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        return on_absolute(func, args, kwargs)

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        sizes = [t.numel() for t in _operands(args)]
        return max(1, math.isqrt(max(1, math.prod(sizes) // max(1, y.numel()))))

    @staticmethod
    def internal(func: Any, args: Any, kwargs: Any, y: Any, u: float) -> Any:
        factors = len(_operands(args)) - (1 if func.overloadpacket in optional_ops(aten, "bilinear") else 0)
        return u * max(0, factors - 2) * on_absolute(func, args, kwargs) if factors > 2 else 0.0


def _operands(args: Any) -> list[Tensor]:
    found: list[Tensor] = []
    for a in args:
        found += [a] if isinstance(a, Tensor) else [t for t in a if isinstance(t, Tensor)] if isinstance(a, (list, tuple)) else []
    return found
