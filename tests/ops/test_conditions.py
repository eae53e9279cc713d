"""Every rule's scale S, length n and internal rounding R, against the native kernels of this machine.

A case is one call of one op; each runs in fp16, bf16 and fp32 where the kernel exists. Healthy kernels stay at rho <= 1.5; the
kernels that do not are listed by name in ``INACCURATE`` and asserted to be seen.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from precisionlab.ops.local import LocalError, flat, is_floating, local_error, named, to_fp64
from precisionlab.ops.registry import How, find_rule

aten = torch.ops.aten
OWN = ("dot", "convolution", "reduction", "normalisation", "softmax", "attention", "loss", "indexing", "scan", "linalg")
MODULES = {name: importlib.import_module(f"precisionlab.ops.{name}") for name in OWN}

HALF = (torch.float16, torch.bfloat16)
ALL = (*HALF, torch.float32)
SINGLE = (torch.float32,)


@dataclass(frozen=True)
class Case:
    """One call: ``build(dtype)`` makes the operands."""

    name: str
    func: Any
    build: Callable[[torch.dtype], tuple[list[Any], dict[str, Any]]]
    dtypes: tuple[torch.dtype, ...] = ALL


CASES: list[Case] = []


def case(name: str, func: Any, build: Callable[[torch.dtype], Any], dtypes: tuple[torch.dtype, ...] = ALL) -> None:
    """Register one call; ``build`` may return only positional arguments."""

    def both(dtype: torch.dtype) -> tuple[list[Any], dict[str, Any]]:
        made = build(dtype)
        return (list(made[0]), made[1]) if len(made) == 2 and isinstance(made[1], dict) else (list(made), {})

    CASES.append(Case(name, func, both, dtypes))


def n(*shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0, shift: float = 0.0) -> Tensor:
    """Normal numbers in the given dtype."""
    return (torch.randn(*shape) * scale + shift).to(dtype)


def pos(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Uniform numbers in (0.02, 0.98)."""
    return (torch.rand(*shape) * 0.96 + 0.02).to(dtype)


def idx(high: int, *shape: int) -> Tensor:
    """Uniform indices below ``high``."""
    return torch.randint(0, high, shape)


# Products.
for m, k, c in ((5, 7, 3), (33, 300, 17), (64, 2048, 16)):
    tag = f"{m}x{k}x{c}"
    case(f"mm {tag}", aten.mm.default, lambda d, m=m, k=k, c=c: (n(m, k, dtype=d), n(k, c, dtype=d)))
    case(f"bmm {tag}", aten.bmm.default, lambda d, m=m, k=k, c=c: (n(3, m, k, dtype=d), n(3, k, c, dtype=d)))
    case(f"addmm {tag}", aten.addmm.default, lambda d, m=m, k=k, c=c: (n(c, dtype=d), n(m, k, dtype=d), n(k, c, dtype=d)))
    case(f"mv {tag}", aten.mv.default, lambda d, m=m, k=k, c=c: (n(m, k, dtype=d), n(k, dtype=d)))
    case(f"dot {tag}", aten.dot.default, lambda d, k=k: (n(k, dtype=d), n(k, dtype=d)))
    case(f"vdot {tag}", aten.vdot.default, lambda d, k=k: (n(k, dtype=d), n(k, dtype=d)))
case("mm transposed", aten.mm.default, lambda d: (n(96, 40, dtype=d).t(), n(30, 96, dtype=d).t()))
case("mm positive", aten.mm.default, lambda d: (pos(16, 4096, dtype=d), pos(4096, 16, dtype=d)))
case("addmm factors", aten.addmm.default, lambda d: ((n(9, 8, dtype=d), n(9, 50, dtype=d), n(50, 8, dtype=d)), {"beta": -0.5, "alpha": 2.0}))
case("addmm_", aten.addmm_.default, lambda d: (n(9, 8, dtype=d), n(9, 50, dtype=d), n(50, 8, dtype=d)))
case("baddbmm", aten.baddbmm.default, lambda d: (n(2, 9, 8, dtype=d), n(2, 9, 50, dtype=d), n(2, 50, 8, dtype=d)))
case("addbmm", aten.addbmm.default, lambda d: (n(9, 8, dtype=d), n(6, 9, 50, dtype=d), n(6, 50, 8, dtype=d)))
case("addmv", aten.addmv.default, lambda d: (n(9, dtype=d), n(9, 50, dtype=d), n(50, dtype=d)))
case("addr", aten.addr.default, lambda d: (n(9, 8, dtype=d), n(9, dtype=d), n(8, dtype=d)))
case("ger", aten.ger.default, lambda d: (n(9, dtype=d), n(8, dtype=d)))
case("outer", aten.outer.default, lambda d: (n(9, dtype=d), n(8, dtype=d)))
case("kron", aten.kron.default, lambda d: (n(3, 4, dtype=d), n(5, 2, dtype=d)))
case("_addmm_activation", aten._addmm_activation.default, lambda d: (n(8, dtype=d), n(9, 50, dtype=d), n(50, 8, dtype=d)))
case("linear", aten.linear.default, lambda d: (n(4, 9, 50, dtype=d), n(8, 50, dtype=d), n(8, dtype=d)))
case("matmul", aten.matmul.default, lambda d: (n(4, 9, 50, dtype=d), n(50, 8, dtype=d)))
case("inner", aten.inner.default, lambda d: (n(9, 50, dtype=d), n(8, 50, dtype=d)))
case("linalg_vecdot", aten.linalg_vecdot.default, lambda d: (n(9, 50, dtype=d), n(9, 50, dtype=d)))
case("einsum", aten.einsum.default, lambda d: ("bij,bkj->bik", [n(2, 9, 50, dtype=d), n(2, 8, 50, dtype=d)]))
case("tensordot", aten.tensordot.default, lambda d: (n(4, 5, 6, dtype=d), n(6, 5, 7, dtype=d), [1, 2], [1, 0]))
case("multi_dot", aten.linalg_multi_dot.default, lambda d: ([n(9, 50, dtype=d), n(50, 40, dtype=d), n(40, 8, dtype=d)],))
case("bilinear", aten.bilinear.default, lambda d: (n(5, 6, dtype=d), n(5, 7, dtype=d), n(4, 6, 7, dtype=d), n(4, dtype=d)))

# Convolutions.
PLAIN = ([1, 1], [1, 1], [1, 1], False, [0, 0])
case("conv 3x3", aten.convolution.default, lambda d: (n(2, 16, 12, 12, dtype=d), n(8, 16, 3, 3, dtype=d), n(8, dtype=d), *PLAIN, 1))
case("conv 1d", aten.convolution.default, lambda d: (n(2, 16, 50, dtype=d), n(8, 16, 5, dtype=d), None, [2], [1], [1], False, [0], 1))
case("conv depthwise", aten.convolution.default, lambda d: (n(2, 8, 12, 12, dtype=d), n(8, 1, 3, 3, dtype=d), n(8, dtype=d), *PLAIN, 8))
case("conv wide", aten.convolution.default, lambda d: (n(1, 256, 9, 9, dtype=d), n(4, 256, 3, 3, dtype=d), n(4, dtype=d), *PLAIN, 1))
TRANSPOSE = ([2, 2], [1, 1], [1, 1], True, [1, 1])
case("conv transposed", aten.convolution.default, lambda d: (n(2, 8, 7, 7, dtype=d), n(8, 5, 3, 3, dtype=d), n(5, dtype=d), *TRANSPOSE, 1))
MASK = [True, True, True]
case(
    "conv backward",
    aten.convolution_backward.default,
    lambda d: (n(4, 8, 12, 12, dtype=d), n(4, 16, 12, 12, dtype=d), n(8, 16, 3, 3, dtype=d), [8], *PLAIN, 1, MASK),
)
case(
    "conv transposed backward",
    aten.convolution_backward.default,
    lambda d: (n(2, 5, 14, 14, dtype=d), n(2, 8, 7, 7, dtype=d), n(8, 5, 3, 3, dtype=d), [5], *TRANSPOSE, 1, MASK),
)
case("conv_tbc", aten.conv_tbc.default, lambda d: (n(20, 2, 8, dtype=d), n(3, 8, 5, dtype=d), n(5, dtype=d), 1))
case("conv2d", aten.conv2d.default, lambda d: (n(2, 16, 12, 12, dtype=d), n(8, 16, 3, 3, dtype=d), n(8, dtype=d)))

# Reductions and scans.
for shape in ((7, 5), (33, 1000), (3, 20000)):
    tag = "x".join(map(str, shape))
    case(f"sum {tag}", aten.sum.dim_IntList, lambda d, s=shape: (n(*s, dtype=d), [-1]))
    case(f"mean {tag}", aten.mean.dim, lambda d, s=shape: (n(*s, dtype=d), [0], True))
    case(f"nansum {tag}", aten.nansum.default, lambda d, s=shape: (n(*s, dtype=d), [-1]))
    case(f"var {tag}", aten.var.correction, lambda d, s=shape: ((n(*s, dtype=d, shift=3.0), [-1]), {"correction": 1}))
    case(f"std {tag}", aten.std.correction, lambda d, s=shape: ((n(*s, dtype=d, shift=3.0), [-1]), {"correction": 0}))
    case(f"var_mean {tag}", aten.var_mean.correction, lambda d, s=shape: ((n(*s, dtype=d), [-1]), {"correction": 0, "keepdim": True}))
    case(f"vector_norm {tag}", aten.linalg_vector_norm.default, lambda d, s=shape: (n(*s, dtype=d), 2, [-1]))
    case(f"logsumexp fp32 {tag}", aten.logsumexp.default, lambda d, s=shape: (n(*s, dtype=d), [-1]), SINGLE)
    case(f"cumsum {tag}", aten.cumsum.default, lambda d, s=shape: (n(*s, dtype=d), 1))
    case(f"amax {tag}", aten.amax.default, lambda d, s=shape: (n(*s, dtype=d), [-1]))
case("sum all", aten.sum.default, lambda d: (pos(30000, dtype=d),))
case("sum to fp32", aten.sum.dim_IntList, lambda d: ((n(30, 300, dtype=d), [1]), {"dtype": torch.float32}), HALF)
case("std_mean", aten.std_mean.correction, lambda d: ((n(9, 200, dtype=d), [-1]), {"correction": 0}))
case("prod", aten.prod.dim_int, lambda d: (n(9, 20, dtype=d, scale=0.1, shift=1.0), 1))
case("norm p3", aten.norm.ScalarOpt_dim, lambda d: (n(9, 200, dtype=d), 3, [-1]))
case("_foreach_norm", aten._foreach_norm.Scalar, lambda d: ([n(9, 20, dtype=d), n(300, dtype=d), n(1, dtype=d)],))
case("trace", aten.trace.default, lambda d: (n(50, 60, dtype=d),))
case("dist", aten.dist.default, lambda d: (n(50, 6, dtype=d), n(50, 6, dtype=d)))
case("renorm", aten.renorm.default, lambda d: (n(9, 20, dtype=d), 2, 0, 1.0))
case("cumprod", aten.cumprod.default, lambda d: (n(9, 20, dtype=d, scale=0.1, shift=1.0), 1))
case("logcumsumexp", aten.logcumsumexp.default, lambda d: (n(9, 200, dtype=d), 1))
case("_logcumsumexp", aten._logcumsumexp.default, lambda d: (n(9, 200, dtype=d), 1))
