"""Distances, affine grids, Fourier transforms and dense linear algebra."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from precisionlab.ops.local import named
from precisionlab.ops.registry import Family, op_rule, optional_ops

aten = torch.ops.aten


def _order(func: Any, args: Any, kwargs: Any, y: Any) -> int:
    return int(max(1, args[0].shape[-1]))


@op_rule(*optional_ops(aten, "_cdist_forward", "cdist", "_euclidean_dist", "_pdist_forward"), family=Family.LINALG)
class PairwiseDistance:
    """By differences, S = |y|; by a matrix product (compute_mode 1, or None and more than 25 rows) the squares cancel:

    S = (|a|^2 + |b|^2) / max(y, sqrt(u_acc (|a|^2 + |b|^2))). n = length of a row. Source: Higham 2002, section 3.1.
    """

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        given = named(func, args, kwargs)
        if "x1" not in given:
            return y.abs()
        a, b = given["x1"], given["x2"]
        mode = given.get("compute_mode")
        product = "euclidean" in func._schema.name or (
            given.get("p") == 2 and mode != 2 and (mode == 1 or max(a.shape[-2], b.shape[-2]) > 25)
        )
        if not product:
            return y.abs()
        squares = a.square().sum(-1).unsqueeze(-1) + b.square().sum(-1).unsqueeze(-2)
        return squares / torch.maximum(y, (squares * 2.0**-24).sqrt()).clamp(min=1e-300)

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        given = named(func, args, kwargs)
        return int(max(1, given.get("x1", given.get("self")).shape[-1]))


@op_rule(*optional_ops(aten, "_cdist_backward"), family=Family.LINALG)
class PairwiseDistanceBackward:
    """sum over b of g (a - b) |a - b|^(p-2) / d^(p-1): S = the same with absolute values, for p = 2 sum |g| |a - b| / d; n = rows of b.

    Source: Higham 2002, (4.4).
    """

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        given = named(func, args, kwargs)
        if given["p"] != 2:
            return y.abs() + given["grad"].abs().sum(-1, keepdim=True)
        ratio = torch.nan_to_num(given["grad"].abs() / given["cdist"], nan=0.0, posinf=0.0)
        return ratio.sum(-1, keepdim=True) * given["x1"].abs() + ratio @ given["x2"].abs()

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        return int(max(1, named(func, args, kwargs)["x2"].shape[-2]))


@op_rule(*optional_ops(aten, "_pdist_backward"), family=Family.LINALG)
class SelfDistanceBackward:
    """One term for each other row: S = |y| + sum |g|, n = rows. Source: Higham 2002, (4.4)."""

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        return y.abs() + named(func, args, kwargs)["grad"].abs().sum()

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        return int(max(1, named(func, args, kwargs)["self"].shape[0]))


@op_rule(*optional_ops(aten, "linalg_cross", "cross"), family=Family.LINALG)
class CrossProduct:
    """Differences of two products: S = |a_i b_j| + |a_j b_i|, n = 2; R = u S, each product being stored.

    Source: Higham 2002, section 3.1.
    """

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        given = named(func, args, kwargs)
        dim = -1 if given["dim"] is None else given["dim"]
        a, b = torch.broadcast_tensors(given["self"].abs(), given["other"].abs())  # type: ignore[no-untyped-call]
        return a.roll(-1, dim) * b.roll(-2, dim) + a.roll(-2, dim) * b.roll(-1, dim)

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        return 2

    @staticmethod
    def internal(func: Any, args: Any, kwargs: Any, y: Any, u: float) -> Any:
        return u * CrossProduct.condition(func, args, kwargs, y)


@op_rule(*optional_ops(aten, "affine_grid_generator", "affine_grid_generator_backward"), family=Family.LINALG)
class AffineGrid:
    """A product with base coordinates in [-1, 1]: S = |y| + sum of |theta| a row, n = 4; backward, S = sum |grad|, n = positions.

    R = u S: the base coordinates are made in the operand's dtype. Source: Higham 2002, section 3.1.
    """

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        given = named(func, args, kwargs)
        if "theta" in given:
            rows = given["theta"].abs().sum(-1)
            return y.abs() + rows.reshape(rows.shape[0], *[1] * (y.dim() - 2), -1)
        grad = given["grad"].abs().flatten(1, -2).sum(1)
        return grad.unsqueeze(-1).expand(y.shape)

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        given = named(func, args, kwargs)
        return 4 if "theta" in given else max(1, math.prod(given["grad"].shape[1:-1]))

    @staticmethod
    def internal(func: Any, args: Any, kwargs: Any, y: Any, u: float) -> Any:
        return u * AffineGrid.condition(func, args, kwargs, y)


@op_rule(*optional_ops(aten, "_fft_r2c", "_fft_c2c", "_fft_c2r"), family=Family.LINALG)
class FourierTransform:
    """Normwise: S = ||x||_2 of the transformed block times the normalisation, n = log2 of its size. Source: Higham 2002, theorem 24.2."""

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        given = named(func, args, kwargs)
        x, dims = given["self"], list(given["dim"])
        size = _block(given, y)
        norm = x.abs().square().sum(dims, keepdim=True).sqrt() * (math.sqrt(2.0) if "c2r" in func._schema.name else 1.0)
        return (norm * (1.0, size**-0.5, 1.0 / size)[int(given["normalization"])]).expand(y.shape)

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        return max(1, math.ceil(math.log2(max(2, _block(named(func, args, kwargs), y)))))


def _block(given: Any, y: Tensor) -> int:
    return math.prod(max(given["self"].shape[d], y.shape[d]) for d in given["dim"])


def _inverse(a: Tensor) -> Tensor:
    inverse: Tensor = torch.linalg.inv_ex(a)[0]
    return inverse


@op_rule(*optional_ops(aten, "_linalg_solve_ex", "linalg_solve_ex", "linalg_solve"), family=Family.LINALG)
class Solve:
    """S = |A^-1| |A| |x|, n = order (times 4 for the growth of pivoting); the factors are judged on |L||U|. Source: Higham 2002, (9.20)."""

    length = staticmethod(_order)

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        given = named(func, args, kwargs)
        a = given["A"]
        x = y if isinstance(y, Tensor) else y[0]
        vector = x.dim() == a.dim() - 1
        columns = x.unsqueeze(-1) if vector else x
        inverse = _inverse(a).abs()
        scale = inverse @ (a.abs() @ columns.abs()) if given["left"] else (columns.abs() @ a.abs()) @ inverse
        scale = 4.0 * (scale.squeeze(-1) if vector else scale)
        return scale if isinstance(y, Tensor) else (scale, *[None] * (len(y) - 1))


@op_rule(*optional_ops(aten, "linalg_inv_ex"), family=Family.LINALG)
class Inverse:
    """S = 4 |A^-1| |A| |A^-1|, n = order. Source: Higham 2002, (14.4)."""

    length = staticmethod(_order)

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        inverse = y[0].abs()
        return 4.0 * inverse @ args[0].abs() @ inverse, None


@op_rule(*optional_ops(aten, "linalg_cholesky_ex", "cholesky"), family=Family.LINALG)
class Cholesky:
    """S = |L| cond(A), n = order. Source: Higham 2002, theorem 10.8."""

    length = staticmethod(_order)

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        factor = y if isinstance(y, Tensor) else y[0]
        a = args[0]
        cond = torch.linalg.matrix_norm(a) * torch.linalg.matrix_norm(_inverse(a))
        scale = torch.linalg.matrix_norm(factor) * cond
        scale = scale.reshape(*scale.shape, 1, 1).expand(factor.shape)
        return scale if isinstance(y, Tensor) else (scale, None)


@op_rule(*optional_ops(aten, "linalg_solve_triangular", "triangular_solve"), family=Family.LINALG)
class TriangularSolve:
    """S = |A^-1| |A| |x|, n = order. Source: Higham 2002, theorem 8.5 and (8.10)."""

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        given = named(func, args, kwargs)
        new = "B" in given
        a = given["self"] if new else given["A"]
        a = a.triu() if given["upper"] else a.tril()
        if given["unitriangular"]:
            a = a - torch.diag_embed(a.diagonal(dim1=-2, dim2=-1)) + torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
        a = a if new or not given["transpose"] else a.transpose(-2, -1)
        x = y if isinstance(y, Tensor) else y[0]
        inverse = _inverse(a).abs()
        scale = inverse @ (a.abs() @ x.abs()) if given.get("left", True) else (x.abs() @ a.abs()) @ inverse
        return scale if isinstance(y, Tensor) else (scale, y[1].abs())

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        given = named(func, args, kwargs)
        return int(max(1, (given["self"] if "B" in given else given["A"]).shape[-1]))


@op_rule(*optional_ops(aten, "_linalg_eigh", "_linalg_svd"), family=Family.LINALG)
class SpectralDecomposition:
    """Eigenvalues and singular values: S = ||A||_F (Weyl). Vectors have no unique sign and are not judged. n = order.

    Source: Golub & Van Loan 2013, sections 8.1.2 and 8.6.1.
    """

    length = staticmethod(_order)

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        norm = torch.linalg.matrix_norm(args[0]).unsqueeze(-1)
        return (norm.expand(y[0].shape), None) if len(y) == 2 else (None, norm.expand(y[1].shape), None)


@op_rule(*optional_ops(aten, "_linalg_det"), family=Family.LINALG)
class Determinant:
    """S = |det| sum |A^-1| |A^T|, n = order; the factors are not judged. Source: Higham 2002, section 14.6."""

    length = staticmethod(_order)

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        a = args[0]
        cond = torch.nan_to_num((_inverse(a).abs() * a.abs().transpose(-2, -1)).sum((-2, -1)), posinf=0.0)
        return y[0].abs() * (1.0 + cond), None, None


@op_rule(*optional_ops(aten, "_linalg_slogdet"), family=Family.LINALG)
class LogDeterminant:
    """S_log = |log det| + sum |A^-1| |A^T|, the sign is exact, n = order. Source: Higham 2002, section 14.6."""

    length = staticmethod(_order)

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        a = args[0]
        cond = torch.nan_to_num((_inverse(a).abs() * a.abs().transpose(-2, -1)).sum((-2, -1)), posinf=0.0)
        return y[0].abs(), torch.nan_to_num(y[1].abs(), posinf=0.0) + 1.0 + cond, None, None


class _Unjudged:
    """Several right answers (signs, pivots, rank decisions): measured against fp64, but no rho."""

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        return [None] * (len(y) if isinstance(y, (list, tuple)) else 1)


_FACTORS = ("linalg_qr", "linalg_lu", "linalg_lu_factor_ex", "_lu_with_info", "linalg_eig", "_linalg_eigvals", "linalg_lstsq", "geqrf")
_SOLVES = ("linalg_lu_solve", "lu_unpack", "linalg_ldl_factor_ex", "linalg_ldl_solve", "linalg_householder_product", "ormqr", "orgqr")
_OTHERS = ("_cholesky_solve_helper", "cholesky_solve", "cholesky_inverse", "linalg_matrix_exp", "linalg_pinv")


@op_rule(
    *optional_ops(aten, *_FACTORS, *_SOLVES, *_OTHERS), family=Family.LINALG, note="several right answers: run again, not judged by rho"
)
class Factorisation(_Unjudged):
    """QR, LU, eigenvalues of general matrices and what is built on them: no componentwise scale is known without the factors' gaps."""
