"""Sums into an indexed place: the gradients of embeddings and of indexing."""

from __future__ import annotations

import torch

from precisionlab.backends.cases import case

Tensor = torch.Tensor
aten = torch.ops.aten


def _zeros(n: int, x: Tensor) -> Tensor:
    return torch.zeros(n, dtype=torch.long, device=x.device)


@case("aten.index_add", "rows")
def index_add_rows(x: Tensor) -> Tensor:
    return aten.index_add(x.new_zeros(1, x.shape[0]), 0, _zeros(x.shape[1], x), x.t().contiguous())[0]


@case("aten.index_add", "scaled rows")
def index_add_scaled(x: Tensor) -> Tensor:
    """With alpha = -1 and the terms negated: a factor takes another path, which adds row by row."""
    return aten.index_add(x.new_zeros(1, x.shape[0]), 0, _zeros(x.shape[1], x), -x.t().contiguous(), alpha=-1)[0]


@case("aten.index_add", "elements", rows=1)
def index_add_elements(x: Tensor) -> Tensor:
    return aten.index_add(x.new_zeros(1), 0, _zeros(x.shape[1], x), x[0])


@case("aten.scatter_add", "columns")
def scatter_add_columns(x: Tensor) -> Tensor:
    rows, n = x.shape
    return aten.scatter_add(x.new_zeros(1, rows), 0, torch.zeros(n, rows, dtype=torch.long, device=x.device), x.t().contiguous())[0]


@case("aten.scatter_add", "rows")
def scatter_add_rows(x: Tensor) -> Tensor:
    """The index of a whole row at a time, expanded, as graph networks write it."""
    rows, n = x.shape
    return aten.scatter_add(x.new_zeros(1, rows), 0, _zeros(n, x)[:, None].expand(n, rows), x.t().contiguous())[0]


@case("aten.scatter_add", "last dimension")
def scatter_add_last(x: Tensor) -> Tensor:
    return aten.scatter_add(x.new_zeros(x.shape[0], 1), 1, torch.zeros_like(x, dtype=torch.long), x)[:, 0]


@case("aten.scatter_add", "elements", rows=1)
def scatter_add_elements(x: Tensor) -> Tensor:
    return aten.scatter_add(x.new_zeros(1), 0, _zeros(x.shape[1], x), x[0])


@case("aten.scatter_reduce")
def scatter_reduce(x: Tensor) -> Tensor:
    rows, n = x.shape
    index = torch.zeros(n, rows, dtype=torch.long, device=x.device)
    return aten.scatter_reduce(x.new_zeros(1, rows), 0, index, x.t().contiguous(), "sum")[0]


@case("aten.index_put", "accumulate, rows")
def index_put_rows(x: Tensor) -> Tensor:
    """The backward pass of ``table[index]``."""
    return aten.index_put(x.new_zeros(1, x.shape[0]), [_zeros(x.shape[1], x)], x.t().contiguous(), True)[0]


@case("aten.index_put", "accumulate, elements", rows=1)
def index_put_elements(x: Tensor) -> Tensor:
    return aten.index_put(x.new_zeros(1), [_zeros(x.shape[1], x)], x[0], True)


@case("aten.embedding_dense_backward")
def embedding_backward(x: Tensor) -> Tensor:
    return aten.embedding_dense_backward(x.t().contiguous(), _zeros(x.shape[1], x), 1, -1, False)[0]


@case("aten._embedding_bag_forward_only")
def embedding_bag(x: Tensor) -> Tensor:
    return aten._embedding_bag_forward_only(x.t().contiguous(), torch.arange(x.shape[1], device=x.device), _zeros(1, x), False, 0)[0][0]


@case("aten._embedding_bag_dense_backward")
def embedding_bag_backward(x: Tensor) -> Tensor:
    """Of n bags with the same one row each."""
    zeros, bags, sizes = _zeros(x.shape[1], x), torch.arange(x.shape[1], device=x.device), torch.ones_like(_zeros(x.shape[1], x))
    return aten._embedding_bag_dense_backward(x.t().contiguous(), zeros, bags, sizes, zeros, 1, False, 0, None)[0]


@case("aten.segment_reduce")
def segment_reduce(x: Tensor) -> Tensor:
    lengths = torch.full((1,), x.shape[1], dtype=torch.long, device=x.device)
    return aten.segment_reduce(x.t().contiguous(), "sum", lengths=lengths)[0]
