"""Ops that gather, scatter, pool or interpolate: sums over the positions that meet in one element.

For all of them S is the same op on absolute values, with the indices as they are: Higham 2002, (4.4).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from precisionlab.ops.local import is_floating, map_tensors, named, on_absolute
from precisionlab.ops.registry import Family, OpRule, add_rule, op_rule, optional_ops

aten = torch.ops.aten


def most_repeated(index: Tensor) -> int:
    """How often the most frequent non-negative index occurs; at least 1."""
    return max(1, int(torch.bincount(index.reshape(-1).clamp(min=0)).max())) if index.numel() else 1


def _absolute(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
    return on_absolute(func, args, kwargs)


def _hits(func: Any, args: Any, kwargs: Any, y: Any) -> int:
    """The same op on ones: how many values meet in an element."""
    ones = map_tensors(lambda t: torch.ones_like(t) if is_floating(t) else t, (list(args), dict(kwargs)))
    found = func(*ones[0], **ones[1])
    found = found[0] if isinstance(found, (list, tuple)) else found
    return max(1, math.ceil(float(found.real.max()))) if found.numel() else 1


# Scatters.


@op_rule(*optional_ops(aten, "embedding_dense_backward", "embedding_backward"), family=Family.INDEXING)
class EmbeddingBackward:
    """S = the same op on |grad|, n = occurrences of the most frequent index. Source: module."""

    condition = staticmethod(_absolute)

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        return most_repeated(named(func, args, kwargs)["indices"])


@op_rule(*optional_ops(aten, "index_add"), family=Family.INDEXING)
class IndexAdd:
    """S = the same op on absolute values, n = occurrences of the most frequent index + 1. Source: module."""

    condition = staticmethod(_absolute)

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        return most_repeated(named(func, args, kwargs)["index"]) + 1


@op_rule(*optional_ops(aten, "scatter_add"), family=Family.INDEXING)
class ScatterAdd:
    """S = the same op on absolute values, n = values that meet in an element. Source: module."""

    condition = staticmethod(_absolute)
    length = staticmethod(_hits)


@op_rule(*optional_ops(aten, "scatter_reduce", "index_reduce"), family=Family.INDEXING)
class ScatterReduce:
    """sum and mean: S = the same op on absolute values; prod, amax, amin: S = |y|. n = values that meet in an element. Source: module."""

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        return on_absolute(func, args, kwargs) if named(func, args, kwargs)["reduce"] in ("sum", "mean") else y.abs()

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        given = named(func, args, kwargs)
        index, x = given["index"], given["self"]
        if index.dim() != x.dim() or given["reduce"] in ("amax", "amin"):
            return most_repeated(index) + 1
        counts = torch.zeros(x.shape, dtype=torch.int64, device=x.device).scatter_add(given["dim"], index, torch.ones_like(index))
        return int(counts.max()) + 1 if counts.numel() else 1


class AccumulatingIndexPut:
    """S = the same op on absolute values; n = values that meet in an element with accumulate, else 1 (a copy). Source: module."""

    condition = staticmethod(_absolute)

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        given = named(func, args, kwargs)
        return _hits(func, args, kwargs, y) if given.get("accumulate", True) else 1


_INDEX_PUT = OpRule(Family.INDEXING, condition=AccumulatingIndexPut.condition, length=AccumulatingIndexPut.length)
_INDEX_PUT_PACKETS = (
    "index_put_",
    "_index_put_impl",
    "_index_put_impl_",
    "_unsafe_index_put",
    "put",
    "_unsafe_masked_index_put_accumulate",
)
for _target in (*optional_ops(aten, *_INDEX_PUT_PACKETS), *optional_ops(aten.index_put, "default", "hacked_twin", "out")):
    add_rule(_target, _INDEX_PUT)  # by overload where the packet itself is registered as a copy


class ScatterReduceOld:
    """``scatter`` with ``reduce="add"`` or ``"multiply"``: S = the same op on absolute values, n = values that meet. Source: module."""

    condition = staticmethod(_absolute)

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        given = named(func, args, kwargs)
        counts = torch.zeros(y.shape, dtype=torch.int64, device=y.device)
        counts = counts.scatter_add(given["dim"], given["index"], torch.ones_like(given["index"]))
        return int(counts.max()) + 1 if counts.numel() else 1


_SCATTER_REDUCE = OpRule(Family.INDEXING, condition=ScatterReduceOld.condition, length=ScatterReduceOld.length)
for _packet in (aten.scatter, aten.scatter_):
    for _target in optional_ops(_packet, "reduce", "value_reduce", "reduce_out", "value_reduce_out"):
        add_rule(_target, _SCATTER_REDUCE)


# Bags, segments and counts.


def _bag_lengths(given: Any) -> int:
    offsets, total = given["offsets"], given["indices"].shape[0]
    ends = torch.cat([offsets, torch.tensor([total], device=offsets.device, dtype=offsets.dtype)])
    return max(1, int(ends.diff().max())) if offsets.numel() else 1


@op_rule(*optional_ops(aten, "_embedding_bag", "_embedding_bag_forward_only", "embedding_bag"), family=Family.INDEXING)
class EmbeddingBag:
    """Sum, mean or maximum of a bag of rows: S = the same on absolute values (|y| for the maximum), n = longest bag.

    R = u |y| for the mean: the sum is stored before it is divided. Source: module.
    """

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        scale = y[0].abs() if named(func, args, kwargs)["mode"] == 2 else on_absolute(func, args, kwargs)[0]
        return (scale, *[None] * (len(y) - 1))

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        return _bag_lengths(named(func, args, kwargs))

    @staticmethod
    def internal(func: Any, args: Any, kwargs: Any, y: Any, u: float) -> Any:
        return (u * y[0].abs() if named(func, args, kwargs)["mode"] == 1 else 0.0, *[None] * (len(y) - 1))


@op_rule(*optional_ops(aten, "_embedding_bag_dense_backward"), family=Family.INDEXING)
class EmbeddingBagBackward:
    """S = the same op on |grad|, n = occurrences of the most frequent index. Source: module."""

    condition = staticmethod(_absolute)

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        return most_repeated(named(func, args, kwargs)["indices"])


@op_rule(*optional_ops(aten, "_embedding_bag_per_sample_weights_backward"), family=Family.INDEXING)
class EmbeddingBagWeightsBackward:
    """A dot product of a gradient and a row: S = the same on absolute values, n = row length. Source: Higham 2002, section 3.1."""

    condition = staticmethod(_absolute)

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        return int(max(1, named(func, args, kwargs)["weight"].shape[1]))


@op_rule(*optional_ops(aten, "segment_reduce"), family=Family.INDEXING)
class SegmentReduce:
    """sum and mean: S = the same op on absolute values; else |y|. n = longest segment. Source: module."""

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        return on_absolute(func, args, kwargs) if named(func, args, kwargs)["reduce"] in ("sum", "mean") else y.abs()

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        given = named(func, args, kwargs)
        lengths = given["lengths"] if given["lengths"] is not None else given["offsets"].diff()
        return max(1, int(lengths.max())) if lengths.numel() else 1


@op_rule(*optional_ops(aten, "_segment_reduce_backward"), family=Family.INDEXING)
class SegmentReduceBackward:
    """A copy or a few relative roundings an element: S = |y|, n = 4. Source: Higham 2002, lemma 3.1."""

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        return 4


@op_rule(*optional_ops(aten, "bincount"), family=Family.INDEXING)
class WeightedCount:
    """S = the same op on |weights|, n = largest count. Source: module."""

    condition = staticmethod(_absolute)

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        return most_repeated(named(func, args, kwargs)["self"])


# Selected elements, windows and borders.

_COPY_BACK = ("index_select_backward", "gather_backward", "trace_backward", "unfold_backward", "col2im", "diagonal_backward")
_BORDERS = (
    "reflection_pad1d_backward",
    "reflection_pad2d_backward",
    "reflection_pad3d_backward",
    "replication_pad1d_backward",
    "replication_pad2d_backward",
    "replication_pad3d_backward",
)
_MAX_BACK = (
    "max_pool2d_with_indices_backward",
    "max_pool3d_with_indices_backward",
    "adaptive_max_pool2d_backward",
    "adaptive_max_pool3d_backward",
    "fractional_max_pool2d_backward",
    "fractional_max_pool3d_backward",
    "value_selecting_reduction_backward",
    "masked_scatter_backward",
)


@op_rule(*optional_ops(aten, *_COPY_BACK, *_BORDERS, *_MAX_BACK), family=Family.INDEXING)
class OverlappingSum:
    """Gradients of what was read more than once: S = the same op on |grad|, n = readers of an element. Source: module."""

    condition = staticmethod(_absolute)
    length = staticmethod(_hits)


def _ratio(given: Any, y: Any) -> int:
    """Elements read for one result."""
    x = given.get("self", given.get("grad_output"))
    return int(max(1, math.ceil(x.numel() / max(1, y.numel()))))


def _volume(size: Any, dims: int) -> int:
    """Elements of a window given as one side or as all."""
    sizes = list(size) if isinstance(size, (list, tuple)) else [size]
    return int(max(1, math.prod(sizes if len(sizes) == dims else sizes * dims)))


@op_rule(
    *optional_ops(aten, "avg_pool1d", "avg_pool2d", "avg_pool3d", "avg_pool2d_backward", "avg_pool3d_backward"), family=Family.INDEXING
)
class AveragePool:
    """S = the same op on absolute values, n = elements of a window (the windows over an element are fewer). Source: module."""

    condition = staticmethod(_absolute)

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        dims = next(d for d in (1, 2, 3) if f"pool{d}d" in func._schema.name)
        return _volume(named(func, args, kwargs)["kernel_size"], dims)


_ADAPTIVE = ("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d")
_ADAPTIVE_BACK = ("_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward", "adaptive_avg_pool3d_backward")


@op_rule(*optional_ops(aten, *_ADAPTIVE, *_ADAPTIVE_BACK), family=Family.INDEXING)
class AdaptiveAveragePool:
    """S = the same op on absolute values, n = elements of the largest window, at most 2^d times the ratio of sizes. Source: module."""

    condition = staticmethod(_absolute)

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        given = named(func, args, kwargs)
        grad = given.get("grad_output")
        return max(8, _ratio(given, y) if grad is None else math.ceil(grad.numel() / max(1, y.numel())))


_NEAREST_BACK = ("upsample_nearest1d_backward", "upsample_nearest2d_backward", "upsample_nearest3d_backward")
_EXACT_BACK = ("_upsample_nearest_exact1d_backward", "_upsample_nearest_exact2d_backward", "_upsample_nearest_exact3d_backward")


@op_rule(*optional_ops(aten, *_NEAREST_BACK, *_EXACT_BACK), family=Family.INDEXING)
class NearestBackward:
    """S = the same op on |grad|, n = results that read an element. Source: module."""

    condition = staticmethod(_absolute)
    length = staticmethod(_hits)


_LINEAR = ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "_upsample_bilinear2d_aa")
_CUBIC = ("upsample_bicubic2d", "_upsample_bicubic2d_aa", "_upsample_lanczos2d_aa")
_INTERPOLATIONS = (*_LINEAR, *_CUBIC, *(f"{name}_backward" for name in (*_LINEAR, *_CUBIC)))


def _interpolated(given: Any) -> Any:
    return given.get("self", given.get("input", given.get("grad_output")))


@op_rule(*optional_ops(aten, *_INTERPOLATIONS), family=Family.INDEXING)
class Interpolation:
    """Positions carry the longest side times u_acc, and the weights with them: S = |y| + largest |x| of the plane * ratio * side / 8.

    ratio is that of the sizes in the backward pass, where so many results read one element, else 1; n = 16 or the ratio, if larger.
    R, forward = 2 u (|y| + the op on the largest |x| nearby): several CPU kernels store 1 - weight, which is then off by u, and the
    partial result of each dimension.
    Source: module; area_pixel_compute_source_index in torch/aten/native/UpSample.h; UpSampleKernel.cpp; Keys 1981, (15) for cubics.
    """

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        x = _interpolated(named(func, args, kwargs))
        ratio = max(1.0, x.numel() / max(1, y.numel())) if "backward" in func._schema.name else 1.0
        plane = x.abs().amax(list(range(2, x.dim())), keepdim=True)
        return y.abs() + plane * ratio * max(1.0, *(side / 8 for side in (*x.shape[2:], *y.shape[2:])))

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        return int(max(16, math.ceil(_interpolated(named(func, args, kwargs)).numel() / max(1, y.numel()))))

    @staticmethod
    def internal(func: Any, args: Any, kwargs: Any, y: Any, u: float) -> Any:
        if "backward" in func._schema.name:
            return 0.0
        largest = (torch.max_pool1d, torch.max_pool2d, torch.max_pool3d)[args[0].dim() - 3](args[0].abs(), 5, 1, 2)
        return 2 * u * (func(largest, *args[1:], **kwargs).abs() + y.abs())


_GRIDS = ("grid_sampler_2d", "grid_sampler_3d", "_grid_sampler_2d_cpu_fallback", "grid_sampler")


@op_rule(*optional_ops(aten, *_GRIDS), family=Family.INDEXING)
class GridSample:
    """Weights from a grid in [-1, 1]: S = |y| + largest |x| of a channel * longest side / 8, n = 16. Source: positions as above."""

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        x = named(func, args, kwargs)["input"]
        spatial = list(range(2, x.dim()))
        return y.abs() + x.abs().amax(spatial, keepdim=True) * max(1.0, max(x.shape[2:]) / 8)

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        return 16


@op_rule(
    *optional_ops(aten, "grid_sampler_2d_backward", "grid_sampler_3d_backward", "_grid_sampler_2d_cpu_fallback_backward"),
    family=Family.INDEXING,
)
class GridSampleBackward:
    """grad_input: S = scatter of |grad|, plus a share of the largest |grad| for the weights. grad_grid has kinks: not judged."""

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        given = named(func, args, kwargs)
        grad = given["grad_output"].abs()
        if not given.get("output_mask", (True, True))[0]:
            return None, None
        scatter = func(grad, given["input"], *args[2:], **kwargs)[0].abs()
        return scatter + grad.amax() * max(1.0, max(given["input"].shape[2:]) / 8), None

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        given = named(func, args, kwargs)
        return int(max(16, math.ceil(given["grad_output"].numel() / max(1, given["input"].numel()))))


@op_rule(
    *optional_ops(aten, "max_unpool2d", "max_unpool3d", "_gather_sparse_backward", "embedding_sparse_backward"), family=Family.INDEXING
)
class Placement:
    """Elements put in their places without arithmetic: S = |y|, n = 1."""
