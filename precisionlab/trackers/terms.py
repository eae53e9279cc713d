"""The terms that an executed op summed, for a few of its outputs: operand rows of products, slices of reductions, what meets in a scatter.

Outputs are drawn uniformly and, beside them, taken for their size. Draws come from a numpy generator: torch's random state stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from precisionlab.ops.local import named
from precisionlab.shadow.call import OpCall

Array = NDArray[Any]
MOST_TERMS = 8192
"""Terms of one output that are kept, its first: what a longer sum does, it begins to do in them."""
_SCANNED = 1 << 16
"""Outputs among which the largest are sought, evenly spaced."""
_GATHERED = 1 << 20
"""Elements read for all sampled outputs of a reduction."""


class NoTerms(Exception):
    """Why an op has no terms to sample, in words."""


@dataclass(frozen=True)
class Terms:
    """Of m sampled outputs, n terms each: ``left * right`` of a product, or ``left``. float32 or float64, (m, n)."""

    left: Array
    right: Array | None
    dtype: torch.dtype
    """In which the op stores the results."""
    uniform: int
    """How many of the outputs, the first, were drawn uniformly."""
    length: int
    """Terms the op sums for an output, ``n`` unless that is cut at ``MOST_TERMS``."""
    divisor: Array | float = 1.0
    root: bool = False


def terms_of(call: OpCall, m: int, rng: np.random.Generator) -> Terms:
    """The terms of ``m`` outputs of an executed op. Raises: NoTerms for an op that sums nothing, or not in a way known here."""
    sampler = _SAMPLERS.get(call.info.name.rstrip("_"))
    if sampler is None:
        raise NoTerms(f"the terms of {call.info.name} are not known")
    if not all(p.lo.numel() for p in (*call.inputs, *call.outputs)):
        raise NoTerms("an operand or a result is empty")
    return sampler(call, named(call.info.func, call.args, call.kwargs), m, rng)


Sampler = Callable[[OpCall, Any, int, np.random.Generator], Terms]
_SAMPLERS: dict[str, Sampler] = {}


def _samples(*names: str) -> Callable[[Sampler], Sampler]:
    def register(sampler: Sampler) -> Sampler:
        _SAMPLERS.update({f"aten.{name}": sampler for name in names})
        return sampler

    return register


def samples(op: str) -> bool:
    """Whether the terms of ``op`` (``aten.mm``) are known here."""
    return op.rstrip("_") in _SAMPLERS


# Which outputs.


def _drawn(total: int, m: int, rng: np.random.Generator) -> Array:
    return np.arange(total) if total <= m else rng.choice(total, m, replace=False, shuffle=False)


def _chosen(y: Tensor, m: int, rng: np.random.Generator) -> tuple[tuple[Tensor, ...], int]:
    """Indices of m outputs, three quarters drawn uniformly and then the largest of evenly spaced ones; and how many were drawn."""
    total = y.numel()
    if total <= m:
        flat, drawn = np.arange(total), total
    else:
        drawn = m - m // 4
        step = -(-total // _SCANNED)
        largest = y.detach().reshape(-1)[::step].abs().float().topk(m // 4).indices.cpu().numpy() * step
        flat = np.concatenate([_drawn(total, drawn, rng), largest])
    return tuple(torch.from_numpy(i).to(y.device) for i in np.unravel_index(flat, tuple(y.shape))), drawn


def _array(t: Tensor) -> Array:
    t = t.detach()
    found: Array = (t if t.dtype in (torch.float32, torch.float64) else t.float()).cpu().numpy()
    return found


def _rows(t: Tensor, *index: Tensor) -> Array:
    """The vectors of ``t`` along its last dimension at ``index``: (m, K)."""
    return _array(t[index])


def _result(call: OpCall, index: int = 0) -> Tensor:
    out = call.result[index] if isinstance(call.result, (list, tuple)) else call.result
    if not isinstance(out, Tensor) or not out.numel():
        raise NoTerms("it has no result")
    return out


# Products.


def _product(left: Tensor, right: Tensor, y: Tensor, m: int, rng: np.random.Generator, divisor: float = 1.0) -> Terms:
    """``left`` (..., M, K) times ``right`` (..., K, N) with equal leading dimensions; ``y`` (..., M, N)."""
    length = left.shape[-1]
    (*batch, row, column), drawn = _chosen(y, m, rng)
    a, b = left[..., :MOST_TERMS], right.transpose(-1, -2)[..., :MOST_TERMS]
    return Terms(_rows(a, *batch, row), _rows(b, *batch, column), y.dtype, drawn, length, divisor)


@_samples("mm", "bmm", "addmm", "baddbmm", "_addmm_activation")
def _matrices(call: OpCall, given: Any, m: int, rng: np.random.Generator) -> Terms:
    """The bias joins after the sum."""
    left = given.get("mat1", given.get("batch1", given.get("self")))
    right = given.get("mat2", given.get("batch2"))
    return _product(left, right, _result(call), m, rng)


@_samples("mv", "addmv", "dot", "vdot")
def _vectors(call: OpCall, given: Any, m: int, rng: np.random.Generator) -> Terms:
    left, right = given.get("mat", given["self"]), given.get("vec", given.get("tensor", given.get("other")))
    left = left if left.dim() == 2 else left[None]
    return _product(left, right[:, None], _result(call).reshape(-1, 1), m, rng)


@_samples(
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_attention_math",
    "_scaled_dot_product_cudnn_attention",
)
def _attention(call: OpCall, given: Any, m: int, rng: np.random.Generator) -> Terms:
    """Scores: rows of the query with rows of the key. The scores themselves are not kept, so none is chosen for its size."""
    q, k, y = given["query"], given["key"], _result(call)
    if q.dim() < 3 or k.shape[-3] != q.shape[-3]:
        raise NoTerms("query and key have different heads")
    shape = (*q.shape[:-1], k.shape[-2])
    flat = _drawn(math.prod(shape), m, rng)
    *batch, row, column = (torch.from_numpy(i).to(q.device) for i in np.unravel_index(flat, shape))
    scale = given.get("scale")
    divisor = math.sqrt(q.shape[-1]) if scale is None else 1.0 / scale
    return Terms(_rows(q, *batch, row), _rows(k, *batch, column), y.dtype, len(flat), q.shape[-1], divisor)


@_samples("convolution", "_convolution", "mkldnn_convolution", "cudnn_convolution", "thnn_conv2d", "_slow_conv2d_forward")
def _convolution(call: OpCall, given: Any, m: int, rng: np.random.Generator) -> Terms:
    """Every output is the product of a window with a kernel; what lies in the padding is 0 and no term."""
    x, weight, y = given.get("input", given.get("self")), given["weight"], _result(call)
    if given.get("transposed") or x.dim() != weight.dim():
        raise NoTerms("a transposed or unbatched convolution is not sampled")
    groups = given.get("groups", 1)
    (sample, channel, *positions), drawn = _chosen(y, m, rng)
    spatial = len(positions)
    stride, padding, dilation = (
        _each(given.get(name), spatial, 0 if name == "padding" else 1) for name in ("stride", "padding", "dilation")
    )
    chosen = len(sample)
    inside = torch.ones((chosen, 1, *weight.shape[2:]), dtype=torch.bool, device=x.device)
    index: list[Tensor] = []
    for d in range(spatial):
        at = positions[d][:, None] * stride[d] - padding[d] + torch.arange(weight.shape[2 + d], device=x.device) * dilation[d]
        shape = [chosen, 1] + [1] * spatial
        shape[2 + d] = weight.shape[2 + d]
        at = at.reshape(shape)
        inside = inside & (at >= 0) & (at < x.shape[2 + d])
        index.append(at.clamp(0, x.shape[2 + d] - 1))
    width = weight.shape[1]
    first = torch.div(channel * groups, weight.shape[0], rounding_mode="floor") * width
    channels = (first[:, None] + torch.arange(width, device=x.device)).reshape(chosen, width, *[1] * spatial)
    place = (sample.reshape(chosen, *[1] * (spatial + 1)), channels, *index)
    windows = x[place] * inside
    kernels = weight[channel]
    length = windows[0].numel()
    return Terms(
        _array(windows.reshape(chosen, -1)[:, :MOST_TERMS]), _array(kernels.reshape(chosen, -1)[:, :MOST_TERMS]), y.dtype, drawn, length
    )


def _each(given: Any, count: int, default: int) -> list[int]:
    if given is None or isinstance(given, str):
        return [default] * count
    values = [int(v) for v in given] if isinstance(given, (list, tuple)) else [int(given)]
    return values * count if len(values) == 1 else values


# Reductions.


def _slices(x: Tensor, dims: list[int], y: Tensor | None, m: int, rng: np.random.Generator) -> tuple[Array, int, int]:
    """Slices of ``x`` over ``dims``, one a sampled output: (m, n) cut at ``MOST_TERMS``; how many were drawn uniformly; uncut length.

    ``y`` holds the results, in the order of the other dimensions, where the largest are wanted too.
    """
    dims = sorted(d % x.dim() for d in dims) if x.dim() else []
    kept = [d for d in range(x.dim()) if d not in dims]
    length = math.prod(x.shape[d] for d in dims)
    if length < 1 or not x.numel():
        raise NoTerms("it sums nothing")
    m = max(1, min(m, _GATHERED // length))
    if not kept:
        return _array(x.permute(dims).reshape(1, -1)[:, :MOST_TERMS]), 1, length
    ordered = x.permute(*kept, *dims)
    shape = tuple(x.shape[d] for d in kept)
    if y is not None and y.numel() == math.prod(shape):
        index, drawn = _chosen(y.reshape(shape), m, rng)
    else:
        flat = _drawn(math.prod(shape), m, rng)
        index, drawn = tuple(torch.from_numpy(i).to(x.device) for i in np.unravel_index(flat, shape)), len(flat)
    return _array(ordered[index].reshape(len(index[0]), -1)[:, :MOST_TERMS]), drawn, length


def _dims(given: Any, x: Tensor) -> list[int]:
    dim = given.get("dim")
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return list(range(x.dim()))
    return list(dim) if isinstance(dim, (list, tuple)) else [dim]


@_samples("sum", "mean", "nansum")
def _sum(call: OpCall, given: Any, m: int, rng: np.random.Generator) -> Terms:
    x, y = given["self"], _result(call)
    rows, drawn, length = _slices(x, _dims(given, x), y, m, rng)
    return Terms(rows, None, y.dtype, drawn, length, float(rows.shape[1]) if "mean" in call.info.name else 1.0)


@_samples("norm", "linalg_vector_norm")
def _norm(call: OpCall, given: Any, m: int, rng: np.random.Generator) -> Terms:
    """The root of a sum of squares."""
    order = given.get("ord", given.get("p", 2))
    if order is not None and float(order) != 2.0:
        raise NoTerms(f"a norm of order {order} is not sampled")
    x, y = given["self"], _result(call)
    rows, drawn, length = _slices(x, _dims(given, x), y, m, rng)
    return Terms(rows, rows, y.dtype, drawn, length, root=True)


@_samples("cumsum")
def _scan(call: OpCall, given: Any, m: int, rng: np.random.Generator) -> Terms:
    """The last element of each running sum."""
    x, y = given["self"], _result(call)
    rows, drawn, length = _slices(x, [given["dim"]], y.select(given["dim"], -1) if y.dim() else y, m, rng)
    return Terms(rows, None, y.dtype, drawn, length)


@_samples("_softmax", "_log_softmax", "_safe_softmax")
def _denominator(call: OpCall, given: Any, m: int, rng: np.random.Generator) -> Terms:
    """The sum of exponentials after the shift, of which only the relative error reaches the result."""
    x, y = given["self"], _result(call)
    rows, drawn, length = _slices(x, [given["dim"]], None, m, rng)
    with np.errstate(invalid="ignore"):
        terms = np.exp(rows.astype(np.float64) - rows.max(1, keepdims=True))
    return Terms(terms, None, y.dtype, drawn, length, _binades(terms.sum(1)))


def _binades(sums: Array) -> Array:
    """2^floor(log2 |x|) of each, 1 for zeros: what remains after division lies in [1, 2)."""
    exponents = np.frexp(np.where(np.isfinite(sums) & (sums != 0), np.abs(sums), 1.0))[1]
    return np.asarray(np.ldexp(1.0, exponents - 1))


# Statistics of normalisations.


def _statistics(x: Tensor, dims: list[int], y: Tensor, m: int, rng: np.random.Generator, centred: bool) -> Terms:
    """Squares (of what the mean leaves), of whose sum only the relative error reaches the result."""
    rows, drawn, length = _slices(x, dims, None, m, rng)
    wide = rows.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):  # rows that hold an infinity: trials leave them out
        squares = (wide - wide.mean(1, keepdims=True) if centred else wide) ** 2
    return Terms(squares, None, y.dtype, drawn, length, _binades(squares.sum(1)))


@_samples("native_layer_norm", "_fused_rms_norm")
def _row_norm(call: OpCall, given: Any, m: int, rng: np.random.Generator) -> Terms:
    x, count = given["input"], len(given["normalized_shape"])
    return _statistics(x, list(range(x.dim() - count, x.dim())), _result(call), m, rng, "layer" in call.info.name)


@_samples("native_group_norm")
def _group_norm(call: OpCall, given: Any, m: int, rng: np.random.Generator) -> Terms:
    x = given["input"]
    return _statistics(x.reshape(x.shape[0], given["group"], -1), [2], _result(call), m, rng, True)


@_samples("native_batch_norm", "cudnn_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update")
def _batch_norm(call: OpCall, given: Any, m: int, rng: np.random.Generator) -> Terms:
    if given.get("training") is False:
        raise NoTerms("it uses running statistics and sums nothing")
    x = given["input"]
    return _statistics(x, [d for d in range(x.dim()) if d != 1], _result(call), m, rng, True)


@_samples("native_layer_norm_backward")
def _weight_gradient(call: OpCall, given: Any, m: int, rng: np.random.Generator) -> Terms:
    """The gradient of the weight: gradient times normalised input, over all rows."""
    y = _result(call, 1)
    x, shape = given["input"], given["normalized_shape"]
    width = math.prod(shape)
    index, drawn = _chosen(y.reshape(-1), m, rng)
    rows = x.shape[: x.dim() - len(shape)]
    length = math.prod(rows)
    grad = given["grad_out"].reshape(length, width)[:MOST_TERMS, index[0]]
    values = x.reshape(length, width)[:MOST_TERMS, index[0]]
    mean, rstd = (given[name].reshape(length, 1)[:MOST_TERMS] for name in ("mean", "rstd"))
    return Terms(_array(grad.T), _array(((values.float() - mean.float()) * rstd.float()).T), y.dtype, drawn, length)


# Scatters: what meets in one element.


@_samples("embedding_dense_backward")
def _embedding(call: OpCall, given: Any, m: int, rng: np.random.Generator) -> Terms:
    grad, indices = given["grad_output"], given["indices"].reshape(-1)
    ids = indices.cpu().numpy()
    used = ids != given["padding_idx"]
    return _meeting(grad.reshape(len(ids), -1), ids, used, _result(call).dtype, m, rng)


@_samples("index_add")
def _index_add(call: OpCall, given: Any, m: int, rng: np.random.Generator) -> Terms:
    """Without the values that were there before."""
    index, source = given["index"].reshape(-1), given["source"]
    rows = source.movedim(given["dim"], 0).reshape(index.numel(), -1) if source.dim() else source.reshape(1, 1)
    ids = index.cpu().numpy()
    return _meeting(rows, ids, np.ones(len(ids), np.bool_), _result(call).dtype, m, rng)


@_samples("index_put", "_index_put_impl", "_unsafe_index_put")
def _index_put(call: OpCall, given: Any, m: int, rng: np.random.Generator) -> Terms:
    """Rows that meet, without the values that were there before."""
    indices, values, y = given["indices"], given["values"], _result(call)
    if not given.get("accumulate"):
        raise NoTerms("it overwrites and sums nothing")
    index = indices[0] if indices else None
    if index is None or any(i is not None for i in indices[1:]) or index.dtype == torch.bool:
        raise NoTerms("only accumulation over the first dimension is sampled")
    rows = values.expand(*index.shape, *y.shape[1:]).reshape(index.numel(), -1)
    ids = index.reshape(-1).cpu().numpy() % y.shape[0]
    return _meeting(rows, ids, np.ones(len(ids), np.bool_), y.dtype, m, rng)


@_samples("scatter_add")
def _scatter_add(call: OpCall, given: Any, m: int, rng: np.random.Generator) -> Terms:
    """Without the values that were there before."""
    index, y = given["index"], _result(call)
    if index.dim() == 0 or not index.numel():
        raise NoTerms("it sums nothing")
    source = given["src"][tuple(slice(0, size) for size in index.shape)]
    ids, values = (t.movedim(given["dim"], -1).reshape(-1, index.shape[given["dim"]]) for t in (index, source))
    flat = (ids + torch.arange(len(ids), device=ids.device)[:, None] * y.shape[given["dim"]]).reshape(-1).cpu().numpy()
    return _meeting(values.reshape(-1, 1), flat, np.ones(len(flat), np.bool_), y.dtype, m, rng)


def _meeting(rows: Tensor, ids: Array, used: Array, dtype: torch.dtype, m: int, rng: np.random.Generator) -> Terms:
    """``rows`` (count, width) that are added up where ``ids`` (count,) agree: sums of a column each, filled up with zeros.

    Three quarters of the outputs are drawn among those that take part, the others are where most terms meet.
    """
    if not used.any():
        raise NoTerms("it sums nothing")
    targets, counts = np.unique(ids[used], return_counts=True)
    if counts.max() < 2:
        raise NoTerms("no two values meet")
    width = rows.shape[1]
    total = len(targets) * width
    drawn = total if total <= m else m - m // 4
    flat = _drawn(total, drawn, rng)
    crowded = np.argsort(-counts, kind="stable")[: m - m // 4]
    extra = [] if total <= m else [crowded[i % len(crowded)] * width + int(rng.integers(width)) for i in range(m // 4)]
    chosen = np.concatenate([flat, np.asarray(extra, flat.dtype)])
    n = int(min(MOST_TERMS, counts[chosen // width].max()))
    terms = np.zeros((len(chosen), n), np.float32)
    for i, (target, column) in enumerate(zip(targets[chosen // width], chosen % width, strict=True)):
        places = np.flatnonzero((ids == target) & used)[:n]
        terms[i, : len(places)] = _array(rows[torch.from_numpy(places).to(rows.device), int(column)])
    return Terms(terms, None, dtype, drawn, int(counts.max()))
