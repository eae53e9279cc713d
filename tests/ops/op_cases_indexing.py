"""More cases: indexing, pooling, interpolation and linear algebra. Importing this appends them to ``op_cases.CASES``."""

from __future__ import annotations

from typing import Any

import torch
from op_cases import SINGLE, case, idx, n, pos

aten = torch.ops.aten

# Indexing with few repetitions.
case("embedding backward", aten.embedding_dense_backward.default, lambda d: (n(50, 8, dtype=d), torch.randperm(60)[:50], 60, -1, False))
case("index_add", aten.index_add.default, lambda d: (n(60, 8, dtype=d), 0, torch.randperm(60)[:50], n(50, 8, dtype=d)))
case("index_add_", aten.index_add_.default, lambda d: (n(60, 8, dtype=d), 0, torch.randperm(60)[:50], n(50, 8, dtype=d)))
case("index_put copy", aten.index_put.default, lambda d: (n(60, 8, dtype=d), [torch.randperm(60)[:50]], n(50, 8, dtype=d)))
case("index_put_ accumulate", aten.index_put_.default, lambda d: (n(60, 8, dtype=d), [torch.randperm(60)[:50]], n(50, 8, dtype=d), True))
case(
    "_unsafe_index_put",
    aten._unsafe_index_put.default,
    lambda d: (n(60, 8, dtype=d), [None, torch.randperm(8)[:5]], n(60, 5, dtype=d), True),
)
case("put", aten.put.default, lambda d: (n(60, 8, dtype=d), torch.randperm(60)[:50], n(50, dtype=d), True))
case("scatter_add", aten.scatter_add.default, lambda d: (n(60, 8, dtype=d), 0, torch.rand(60, 8).argsort(0)[:50], n(50, 8, dtype=d)))
case(
    "scatter reduce add",
    aten.scatter.reduce,
    lambda d: ((n(60, 8, dtype=d), 0, torch.rand(60, 8).argsort(0)[:50], n(50, 8, dtype=d)), {"reduce": "add"}),
)
for how in ("sum", "mean", "prod", "amax"):
    if how != "sum":
        case(
            f"index_reduce {how}",
            aten.index_reduce.default,
            lambda d, h=how: (n(60, 8, dtype=d), 0, torch.randperm(60)[:50], n(50, 8, dtype=d), h),
        )
    case(
        f"scatter_reduce {how}",
        aten.scatter_reduce.two,
        lambda d, h=how: (n(60, 8, dtype=d), 0, torch.rand(60, 8).argsort(0)[:50], n(50, 8, dtype=d), h),
    )
for mode in (0, 1, 2):
    bag = torch.tensor([0, 7, 19, 40])
    case(f"embedding_bag {mode}", aten._embedding_bag.default, lambda d, m=mode, b=bag: (n(60, 8, dtype=d), idx(60, 90), b, False, m))


def bag_back(d: torch.dtype) -> list[Any]:
    """Operands of the gradient of a summed bag."""
    indices, offsets = torch.randperm(60)[:50], torch.tensor([0, 7, 19, 40])
    bags = torch.bucketize(torch.arange(50), offsets, right=True) - 1
    sizes, most = torch.tensor([7, 12, 21, 10]), torch.zeros(0, dtype=torch.long)
    return [n(4, 8, dtype=d), indices, bags, sizes, most, 60, False, 0, None]


def bag_weights_back(d: torch.dtype) -> list[Any]:
    """Operands of the gradient of the weights of a bag."""
    indices, offsets = idx(60, 90), torch.tensor([0, 7, 19, 40])
    bags = torch.bucketize(torch.arange(90), offsets, right=True) - 1
    return [n(4, 8, dtype=d), n(60, 8, dtype=d), indices, offsets, bags, 0]


def segment_back(d: torch.dtype, how: str) -> Any:
    """Operands of the gradient of a segment reduction."""
    data, lengths = pos(60, 8, dtype=d), torch.tensor([10, 20, 30])
    out = aten.segment_reduce.default(data, how, lengths=lengths)
    return [n(3, 8, dtype=d), out, data, how], {"lengths": lengths}


case("embedding_bag backward", aten._embedding_bag_dense_backward.default, bag_back)
case("embedding_bag weights backward", aten._embedding_bag_per_sample_weights_backward.default, bag_weights_back)
for how in ("sum", "mean", "max", "prod"):
    case(
        f"segment_reduce {how}",
        aten.segment_reduce.default,
        lambda d, h=how: ((n(60, 8, dtype=d), h), {"lengths": torch.tensor([10, 20, 30])}),
    )
case("segment_reduce backward", aten._segment_reduce_backward.default, lambda d: segment_back(d, "mean"))
case("segment_reduce backward prod", aten._segment_reduce_backward.default, lambda d: segment_back(d, "prod"))
case("bincount", aten.bincount.default, lambda d: (idx(9, 200), pos(200, dtype=d)), SINGLE)
case("unfold backward", aten.unfold_backward.default, lambda d: (n(5, 9, 4, dtype=d), [5, 20], 1, 4, 2))
case("col2im", aten.col2im.default, lambda d: (n(2, 27, 64, dtype=d), [8, 8], [3, 3], [1, 1], [1, 1], [1, 1]))
case(
    "reflection_pad2d backward",
    aten.reflection_pad2d_backward.default,
    lambda d: (n(2, 3, 9, 9, dtype=d), n(2, 3, 5, 5, dtype=d), [2, 2, 2, 2]),
)
case(
    "replication_pad2d backward",
    aten.replication_pad2d_backward.default,
    lambda d: (n(2, 3, 9, 9, dtype=d), n(2, 3, 5, 5, dtype=d), [2, 2, 2, 2]),
)
case("index_select backward", aten.index_select_backward.default, lambda d: (n(50, 8, dtype=d), [60, 8], 0, torch.randperm(60)[:50]))


def max_pool_back(d: torch.dtype) -> list[Any]:
    """Operands of the gradient of overlapping 3x3 maxima."""
    x = n(2, 3, 9, 9, dtype=d)
    out, where = aten.max_pool2d_with_indices.default(x, [3, 3], [2, 2])
    return [n(*out.shape, dtype=d), x, [3, 3], [2, 2], [0, 0], [1, 1], False, where]


def adaptive_max_back(d: torch.dtype) -> list[Any]:
    """Operands of the gradient of adaptive maxima."""
    x = n(2, 3, 9, 9, dtype=d)
    out, where = aten.adaptive_max_pool2d.default(x, [4, 4])
    return [n(*out.shape, dtype=d), x, where]


case("max_pool2d backward", aten.max_pool2d_with_indices_backward.default, max_pool_back)
case("adaptive_max_pool2d backward", aten.adaptive_max_pool2d_backward.default, adaptive_max_back)
case("avg_pool2d", aten.avg_pool2d.default, lambda d: (n(2, 3, 17, 17, dtype=d), [3, 3], [2, 2], [1, 1]))
case("avg_pool1d", aten.avg_pool1d.default, lambda d: (n(2, 3, 17, dtype=d), [3]))
case("avg_pool2d wide", aten.avg_pool2d.default, lambda d: (n(2, 3, 64, 64, dtype=d), [32, 32]))
case(
    "avg_pool2d backward",
    aten.avg_pool2d_backward.default,
    lambda d: (n(2, 3, 8, 8, dtype=d), n(2, 3, 17, 17, dtype=d), [3, 3], [2, 2], [0, 0], False, True, None),
)
case("avg_pool3d", aten.avg_pool3d.default, lambda d: (n(2, 3, 7, 7, 7, dtype=d), [3, 3, 3]))
case(
    "avg_pool3d backward",
    aten.avg_pool3d_backward.default,
    lambda d: (n(2, 3, 2, 2, 2, dtype=d), n(2, 3, 7, 7, 7, dtype=d), [3, 3, 3], [3, 3, 3], [0, 0, 0], False, True, None),
)
case("adaptive_avg_pool2d", aten._adaptive_avg_pool2d.default, lambda d: (n(2, 3, 17, 17, dtype=d), [5, 1]))
case(
    "adaptive_avg_pool2d backward", aten._adaptive_avg_pool2d_backward.default, lambda d: (n(2, 3, 5, 5, dtype=d), n(2, 3, 17, 17, dtype=d))
)
case("adaptive_avg_pool3d", aten._adaptive_avg_pool3d.default, lambda d: (n(2, 3, 7, 7, 7, dtype=d), [2, 3, 1]))
case(
    "adaptive_avg_pool3d backward",
    aten._adaptive_avg_pool3d_backward.default,
    lambda d: (n(2, 3, 2, 3, 1, dtype=d), n(2, 3, 7, 7, 7, dtype=d)),
)
for up, corners in ((14, False), (19, False), (19, True), (4, False)):
    tag = f"7->{up}{' corners' if corners else ''}"
    case(f"bilinear {tag}", aten.upsample_bilinear2d.default, lambda d, u=up, c=corners: (n(2, 3, 7, 7, dtype=d), [u, u], c))
    case(
        f"bilinear backward {tag}",
        aten.upsample_bilinear2d_backward.default,
        lambda d, u=up, c=corners: (n(2, 3, u, u, dtype=d), [u, u], [2, 3, 7, 7], c),
    )
    case(f"bicubic {tag}", aten.upsample_bicubic2d.default, lambda d, u=up, c=corners: (n(2, 3, 7, 7, dtype=d), [u, u], c))
    case(
        f"bicubic backward {tag}",
        aten.upsample_bicubic2d_backward.default,
        lambda d, u=up, c=corners: (n(2, 3, u, u, dtype=d), [u, u], [2, 3, 7, 7], c),
    )
    case(f"bilinear aa {tag}", aten._upsample_bilinear2d_aa.default, lambda d, u=up, c=corners: (n(2, 3, 7, 7, dtype=d), [u, u], c))
    case(
        f"bilinear aa backward {tag}",
        aten._upsample_bilinear2d_aa_backward.default,
        lambda d, u=up, c=corners: (n(2, 3, u, u, dtype=d), [u, u], [2, 3, 7, 7], c),
    )
    case(f"bicubic aa {tag}", aten._upsample_bicubic2d_aa.default, lambda d, u=up, c=corners: (n(2, 3, 7, 7, dtype=d), [u, u], c))
    case(f"linear1d {tag}", aten.upsample_linear1d.default, lambda d, u=up, c=corners: (n(2, 3, 7, dtype=d), [u], c))
case("bilinear 200->333", aten.upsample_bilinear2d.default, lambda d: (n(1, 1, 200, 200, dtype=d), [333, 333], False))
case("trilinear", aten.upsample_trilinear3d.default, lambda d: (n(2, 3, 5, 5, 5, dtype=d), [8, 7, 9], False))
case(
    "trilinear backward",
    aten.upsample_trilinear3d_backward.default,
    lambda d: (n(2, 3, 8, 7, 9, dtype=d), [8, 7, 9], [2, 3, 5, 5, 5], False),
)
case("linear1d backward", aten.upsample_linear1d_backward.default, lambda d: (n(2, 3, 19, dtype=d), [19], [2, 3, 7], False))
case("nearest backward", aten.upsample_nearest2d_backward.default, lambda d: (n(2, 3, 19, 19, dtype=d), [19, 19], [2, 3, 7, 7]))
case(
    "nearest exact backward", aten._upsample_nearest_exact2d_backward.default, lambda d: (n(2, 3, 19, 19, dtype=d), [19, 19], [2, 3, 7, 7])
)
for mode in (0, 1, 2):
    case(
        f"grid_sampler_2d {mode}",
        aten.grid_sampler_2d.default,
        lambda d, m=mode: (n(2, 3, 9, 9, dtype=d), (pos(2, 5, 5, 2) * 2 - 1).to(d), m, 0, False),
    )
    case(
        f"grid_sampler_2d backward {mode}",
        aten.grid_sampler_2d_backward.default,
        lambda d, m=mode: (n(2, 3, 5, 5, dtype=d), n(2, 3, 9, 9, dtype=d), (pos(2, 5, 5, 2) * 2 - 1).to(d), m, 0, False, [True, True]),
    )
case(
    "grid_sampler_3d", aten.grid_sampler_3d.default, lambda d: (n(2, 3, 5, 5, 5, dtype=d), (pos(2, 4, 4, 4, 3) * 2 - 1).to(d), 0, 0, False)
)
case("affine_grid", aten.affine_grid_generator.default, lambda d: (n(2, 2, 3, dtype=d), [2, 3, 9, 9], False))
case("affine_grid backward", aten.affine_grid_generator_backward.default, lambda d: (n(2, 9, 9, 2, dtype=d), [2, 3, 9, 9], False))
case(
    "max_unpool2d",
    aten.max_unpool2d.default,
    lambda d: (n(2, 3, 4, 4, dtype=d), torch.arange(16).reshape(4, 4).expand(2, 3, 4, 4) * 3, [8, 8]),
)

# Linear algebra: fp32 only on the CPU, where not said otherwise.
for rows in (5, 40):
    case(f"cdist {rows}", aten._cdist_forward.default, lambda d, r=rows: (n(r, 20, dtype=d), n(r, 20, dtype=d), 2.0, None), SINGLE)
    case(f"solve {rows}", aten._linalg_solve_ex.default, lambda d, r=rows: (n(r, r, dtype=d), n(r, 3, dtype=d)), SINGLE)
    case(f"inverse {rows}", aten.linalg_inv_ex.default, lambda d, r=rows: (n(r, r, dtype=d),), SINGLE)
    case(f"cholesky {rows}", aten.linalg_cholesky_ex.default, lambda d, r=rows: ((w := n(r, r)) @ w.t() + torch.eye(r),), SINGLE)
    case(f"eigh {rows}", aten._linalg_eigh.default, lambda d, r=rows: (n(r, r, dtype=d),), SINGLE)
    case(f"svd {rows}", aten._linalg_svd.default, lambda d, r=rows: (n(r, r + 2, dtype=d),), SINGLE)
    case(f"det {rows}", aten._linalg_det.default, lambda d, r=rows: (n(r, r, dtype=d),), SINGLE)
    case(f"slogdet {rows}", aten._linalg_slogdet.default, lambda d, r=rows: (n(r, r, dtype=d),), SINGLE)
    case(
        f"triangular {rows}",
        aten.linalg_solve_triangular.default,
        lambda d, r=rows: ((n(r, r, dtype=d, shift=1.0), n(r, 3, dtype=d)), {"upper": True}),
        SINGLE,
    )
    case(f"qr {rows}", aten.linalg_qr.default, lambda d, r=rows: (n(r, r, dtype=d),), SINGLE)
    case(f"fft real {rows}", aten._fft_r2c.default, lambda d, r=rows: (n(3, r, dtype=d), [1], 0, True), SINGLE)
    case(f"fft complex {rows}", aten._fft_c2c.default, lambda d, r=rows: (torch.complex(n(r, r), n(r, r)), [0, 1], 2, False), SINGLE)
    case(f"fft to real {rows}", aten._fft_c2r.default, lambda d, r=rows: (torch.complex(n(3, r), n(3, r)), [1], 2, 2 * r - 2), SINGLE)
case("cdist backward", aten._cdist_backward.default, lambda d: (n(5, 6), (a := n(5, 20)), (b := n(6, 20)), 2.0, torch.cdist(a, b)), SINGLE)
case("pdist", aten._pdist_forward.default, lambda d: (n(9, 20),), SINGLE)
case("pdist backward", aten._pdist_backward.default, lambda d: (n(36), (a := n(9, 20)), 2.0, torch.pdist(a)), SINGLE)
case("cross", aten.linalg_cross.default, lambda d: (n(9, 3, dtype=d), n(9, 3, dtype=d)))
