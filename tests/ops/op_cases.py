"""Calls of every op with a rule in dot ... linalg: the operands the condition tests run them with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
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
    return (torch.randn(shape) * scale + shift).to(dtype)


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
case(
    "addmm factors", aten.addmm.default, lambda d: ((n(9, 8, dtype=d), n(9, 50, dtype=d), n(50, 8, dtype=d)), {"beta": -0.5, "alpha": 2.0})
)
case("addmm_", aten.addmm_.default, lambda d: (n(9, 8, dtype=d), n(9, 50, dtype=d), n(50, 8, dtype=d)))
case("baddbmm", aten.baddbmm.default, lambda d: (n(2, 9, 8, dtype=d), n(2, 9, 50, dtype=d), n(2, 50, 8, dtype=d)))
OFFSETS = torch.tensor([8, 16, 32], dtype=torch.int32)
case("_grouped_mm rows", aten._grouped_mm.default, lambda d: (n(32, 48, dtype=d), n(3, 48, 8, dtype=d), OFFSETS))
case("_grouped_mm summed dimension", aten._grouped_mm.default, lambda d: (n(8, 32, dtype=d), n(32, 16, dtype=d), OFFSETS))
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
case(
    "conv_tbc backward",
    aten.conv_tbc_backward.default,
    lambda d: (n(20, 2, 5, dtype=d), n(20, 2, 8, dtype=d), n(3, 8, 5, dtype=d), n(5, dtype=d), 1),
)
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


# Normalisation.
def layer_norm_back(d: torch.dtype, rows: int, size: int, shift: float = 0.0) -> list[Any]:
    """Operands of layer norm's backward as the forward kernel would save them."""
    x, w, b = n(rows, size, dtype=d, shift=shift), n(size, dtype=d), n(size, dtype=d)
    _, mean, rstd = aten.native_layer_norm.default(x, [size], w, b, 1e-5)
    return [n(rows, size, dtype=d), x, [size], mean, rstd, w, b, MASK]


def group_norm_back(d: torch.dtype) -> list[Any]:
    """Operands of group norm's backward."""
    x, w, b = n(4, 6, 5, 5, dtype=d), n(6, dtype=d), n(6, dtype=d)
    _, mean, rstd = aten.native_group_norm.default(x, w, b, 4, 6, 25, 3, 1e-5)
    return [n(4, 6, 5, 5, dtype=d), x, mean, rstd, w, 4, 6, 25, 3, MASK]


def batch_operands(d: torch.dtype, rows: int = 8) -> list[Any]:
    """Input, fp32 weight and bias, running mean and variance: what a module in half precision has after autocast."""
    return [n(rows, 6, 5, 5, dtype=d, shift=1.0), n(6), n(6), n(6), pos(6)]


def batch_norm_back(d: torch.dtype, train: bool = True) -> list[Any]:
    """Operands of batch norm's backward."""
    x, w, b, rm, rv = batch_operands(d)
    _, mean, invstd = aten.native_batch_norm.default(x, w, b, rm, rv, True, 0.1, 1e-5)
    return [n(8, 6, 5, 5, dtype=d), x, w, rm, rv, mean, invstd, train, 1e-5, MASK]


def weight_norm_back(d: torch.dtype) -> list[Any]:
    """Operands of weight norm's backward."""
    v, g = n(6, 50, dtype=d), pos(6, 1, dtype=d)
    _, norms = aten._weight_norm_interface.default(v, g, 0)
    return [n(6, 50, dtype=d), v, g, norms, 0]


def rms_back(d: torch.dtype) -> list[Any]:
    """Operands of the fused RMS norm's backward."""
    x, w = n(30, 64, dtype=d), n(64, dtype=d)
    return [n(30, 64, dtype=d), x, [64], x.float().square().mean(1, keepdim=True).add(1e-6).rsqrt().to(d), w, [True, True]]


for shape in ((6, 16), (200, 64), (5, 1024)):
    tag = "x".join(map(str, shape))
    case(
        f"layer_norm {tag}",
        aten.native_layer_norm.default,
        lambda d, s=shape: (n(*s, dtype=d), [s[1]], n(s[1], dtype=d), n(s[1], dtype=d), 1e-5),
    )
case("layer_norm fp32 weight", aten.native_layer_norm.default, lambda d: (n(20, 64, dtype=d), [64], n(64), n(64), 1e-5))
case("layer_norm shifted", aten.native_layer_norm.default, lambda d: (n(20, 64, dtype=d, shift=30.0), [64], None, None, 1e-5))
case("layer_norm whole", aten.layer_norm.default, lambda d: (n(20, 64, dtype=d), [64], n(64, dtype=d), n(64, dtype=d)))
case("layer_norm backward", aten.native_layer_norm_backward.default, lambda d: layer_norm_back(d, 40, 64))
case("layer_norm backward shifted", aten.native_layer_norm_backward.default, lambda d: layer_norm_back(d, 40, 64, 4.0))
case("_fused_rms_norm", aten._fused_rms_norm.default, lambda d: (n(30, 64, dtype=d), [64], n(64, dtype=d), 1e-6))
case("rms_norm whole", aten.rms_norm.default, lambda d: (n(30, 64, dtype=d), [64], n(64, dtype=d)))
case("group_norm", aten.native_group_norm.default, lambda d: (n(4, 6, 5, 5, dtype=d), n(6, dtype=d), n(6, dtype=d), 4, 6, 25, 3, 1e-5))
case("group_norm whole", aten.group_norm.default, lambda d: (n(4, 6, 5, 5, dtype=d), 3, n(6, dtype=d), n(6, dtype=d)))
case("group_norm backward", aten.native_group_norm_backward.default, group_norm_back)
case("batch_norm train", aten.native_batch_norm.default, lambda d: (*batch_operands(d), True, 0.1, 1e-5))
case("batch_norm eval", aten.native_batch_norm.default, lambda d: (*batch_operands(d), False, 0.1, 1e-5))
case("batch_norm legit", aten._native_batch_norm_legit.default, lambda d: (*batch_operands(d), True, 0.1, 1e-5))
case("batch_norm no stats", aten._native_batch_norm_legit.no_stats, lambda d: (*batch_operands(d)[:3], True, 0.1, 1e-5))
case("batch_norm no training", aten._native_batch_norm_legit_no_training.default, lambda d: (*batch_operands(d), 0.1, 1e-5))
case("batch_norm functional", aten._native_batch_norm_legit_functional.default, lambda d: (*batch_operands(d), True, 0.1, 1e-5))
case("batch_norm with update", aten._batch_norm_with_update.default, lambda d: (*batch_operands(d), 0.1, 1e-5))
case("batch_norm no update", aten._batch_norm_no_update.default, lambda d: (*batch_operands(d), 0.1, 1e-5))
case("batch_norm update functional", aten._batch_norm_with_update_functional.default, lambda d: (*batch_operands(d), 0.1, 1e-5))
case("batch_norm whole", aten.batch_norm.default, lambda d: (*batch_operands(d), True, 0.1, 1e-5, False))
case("instance_norm whole", aten.instance_norm.default, lambda d: (*batch_operands(d)[:3], None, None, True, 0.1, 1e-5, False))
case("batch_norm backward", aten.native_batch_norm_backward.default, batch_norm_back)
case("batch_norm backward eval", aten.native_batch_norm_backward.default, lambda d: batch_norm_back(d, False))
case("batch_norm_backward new", aten.batch_norm_backward.default, lambda d: (*batch_norm_back(d), torch.zeros(0, dtype=torch.uint8)))
case("weight_norm", aten._weight_norm_interface.default, lambda d: (n(6, 50, dtype=d), pos(6, 1, dtype=d), 0))
case("weight_norm backward", aten._weight_norm_interface_backward.default, weight_norm_back)

# Softmax.
for scale in (1.0, 8.0):
    case(f"softmax scale {scale:g}", aten._softmax.default, lambda d, s=scale: (n(20, 300, dtype=d, scale=s), -1, False))
    case(f"log_softmax scale {scale:g}", aten._log_softmax.default, lambda d, s=scale: (n(20, 300, dtype=d, scale=s), -1, False))
case("softmax over dim 0", aten._softmax.default, lambda d: (n(50, 7, dtype=d), 0, False))
case("log_softmax over dim 0", aten._log_softmax.default, lambda d: (n(50, 7, dtype=d), 0, False))
case("softmax masked", aten._softmax.default, lambda d: (n(20, 30, dtype=d).masked_fill(torch.rand(20, 30) > 0.7, -torch.inf), 1, False))
case("_safe_softmax", aten._safe_softmax.default, lambda d: (n(20, 30, dtype=d), -1))
case("softmax whole", aten.softmax.int, lambda d: (n(20, 30, dtype=d), -1))
case("log_softmax whole", aten.log_softmax.int, lambda d: (n(20, 30, dtype=d), -1))
case("_masked_softmax", aten._masked_softmax.default, lambda d: (n(20, 30, dtype=d), torch.rand(20, 30) > 0.7, 1))
case("softmax backward", aten._softmax_backward_data.default, lambda d: (n(20, 300, dtype=d), n(20, 300).softmax(1).to(d), 1, d))
case(
    "log_softmax backward", aten._log_softmax_backward_data.default, lambda d: (n(20, 300, dtype=d), n(20, 300).log_softmax(1).to(d), 1, d)
)
case(
    "_masked_softmax backward",
    aten._masked_softmax_backward.default,
    lambda d: (n(20, 30, dtype=d), n(20, 30).softmax(1).to(d), torch.rand(20, 30) > 0.7, 1),
)


# Attention.
def heads(d: torch.dtype, queries: int, keys: int, size: int = 32) -> list[Tensor]:
    """Query, key and value of two sequences with three heads."""
    return [n(2, 3, queries, size, dtype=d), n(2, 3, keys, size, dtype=d), n(2, 3, keys, size, dtype=d)]


def attention_back(d: torch.dtype, length: int, causal: bool) -> list[Any]:
    """Operands of the CPU flash kernel's backward."""
    qkv = heads(d, length, length)
    out, lse = aten._scaled_dot_product_flash_attention_for_cpu.default(*qkv, 0.0, causal)
    return [n(*out.shape, dtype=d), *qkv, out, lse, 0.0, causal]


FLASH = aten._scaled_dot_product_flash_attention_for_cpu.default
for length in (9, 70, 300):
    case(f"flash {length}", FLASH, lambda d, s=length: heads(d, s, s))
    case(f"flash causal {length}", FLASH, lambda d, s=length: (*heads(d, s, s), 0.0, True))
    case(
        f"flash backward {length}",
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
        lambda d, s=length: attention_back(d, s, s == 70),
    )
case("flash mask", FLASH, lambda d: (heads(d, 20, 30), {"attn_mask": n(20, 30, dtype=d)}))
case(
    "flash infinite mask scale",
    FLASH,
    lambda d: (heads(d, 20, 30), {"attn_mask": n(20, 30, dtype=d).masked_fill(torch.rand(20, 30) > 0.6, -torch.inf), "scale": 0.4}),
)
case("attention whole", aten.scaled_dot_product_attention.default, lambda d: heads(d, 60, 60))
case("attention math", aten._scaled_dot_product_attention_math.default, lambda d: heads(d, 60, 60))

# Losses. The number at the end of a call is the reduction: 0 none, 1 mean, 2 sum.
for reduction in (0, 1, 2):
    r = reduction
    for name in ("mse_loss", "smooth_l1_loss", "huber_loss", "l1_loss"):
        case(f"{name} {r}", getattr(aten, name).default, lambda d, r=r: (n(40, 30, dtype=d), n(40, 30, dtype=d), r))
    case(f"soft_margin {r}", aten.soft_margin_loss.default, lambda d, r=r: (n(40, 30, dtype=d), n(40, 30).sign().to(d), r))
    case(f"bce {r}", aten.binary_cross_entropy.default, lambda d, r=r: (pos(40, 30, dtype=d), pos(40, 30, dtype=d), None, r))
    case(
        f"bce_logits {r}",
        aten.binary_cross_entropy_with_logits.default,
        lambda d, r=r: (n(40, 30, dtype=d, scale=3.0), pos(40, 30, dtype=d), None, None, r),
    )
    case(f"kl_div {r}", aten.kl_div.default, lambda d, r=r: (n(40, 30).log_softmax(1).to(d), n(40, 30).softmax(1).to(d), r))
    if r < 2:  # summed, it takes a lucky seed for the partial sums to show; nll2d below has enough terms
        case(f"nll {r}", aten.nll_loss_forward.default, lambda d, r=r: (n(40, 30).log_softmax(1).to(d), idx(30, 40), None, r, -100))
    case(
        f"nll weighted {r}",
        aten.nll_loss_forward.default,
        lambda d, r=r: (n(40, 30).log_softmax(1).to(d), idx(30, 40), pos(30, dtype=d), r, 3),
    )
    case(
        f"nll2d {r}", aten.nll_loss2d_forward.default, lambda d, r=r: (n(4, 30, 5, 5).log_softmax(1).to(d), idx(30, 4, 5, 5), None, r, -100)
    )
    case(f"cross_entropy whole {r}", aten.cross_entropy_loss.default, lambda d, r=r: (n(40, 30, dtype=d), idx(30, 40), None, r))
    case(f"multi_margin {r}", aten.multi_margin_loss.default, lambda d, r=r: (n(40, 30, dtype=d), idx(30, 40), 1, 1, None, r))
    case(f"multilabel_margin {r}", aten.multilabel_margin_loss_forward.default, lambda d, r=r: (n(40, 30, dtype=d), idx(30, 40, 30), r))
for name in ("mse_loss", "soft_margin_loss"):
    case(
        f"{name} backward", getattr(aten, f"{name}_backward").default, lambda d: (n(dtype=d), n(40, 30, dtype=d), n(40, 30).sign().to(d), 1)
    )
for name in ("smooth_l1_loss", "huber_loss"):
    case(
        f"{name} backward",
        getattr(aten, f"{name}_backward").default,
        lambda d: (n(dtype=d), n(40, 30, dtype=d), n(40, 30, dtype=d), 1, 1.0),
    )
case("bce backward", aten.binary_cross_entropy_backward.default, lambda d: (n(dtype=d), pos(40, 30, dtype=d), pos(40, 30, dtype=d)))
case(
    "nll backward",
    aten.nll_loss_backward.default,
    lambda d: (n(dtype=d), n(40, 30).log_softmax(1).to(d), idx(30, 40), None, 1, -100, torch.tensor(40.0, dtype=d)),
)
case("multi_margin backward", aten.multi_margin_loss_backward.default, lambda d: (n(dtype=d), n(40, 30, dtype=d), idx(30, 40), 1, 1))
case(
    "multilabel backward",
    aten.multilabel_margin_loss_backward.default,
    lambda d: (n(dtype=d), n(40, 30, dtype=d), idx(30, 40, 30), 1, pos(40, 30, dtype=d).round()),
)


def ctc(d: torch.dtype) -> list[Any]:
    """Log-probabilities of 20 steps, two targets of 6."""
    return [n(20, 2, 8).log_softmax(2).to(d), idx(7, 2, 6) + 1, [20, 18], [6, 5]]


def ctc_back(d: torch.dtype) -> list[Any]:
    """Operands of the CTC gradient."""
    operands = ctc(d)
    return [n(2, dtype=d), *operands, *aten._ctc_loss.default(*operands), 0]


case("ctc", aten._ctc_loss.default, ctc, SINGLE)
case("ctc backward", aten._ctc_loss_backward.default, ctc_back, SINGLE)
