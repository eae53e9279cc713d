"""Distances by expansion: |a|^2 + |b|^2 - 2 a.b.

Points {apart:.2f} apart, far from the origin: the expanded formula in bf16 gives distances from {low:.2f} to {high:.2f}.

What happens
    The expansion turns all pairwise distances into one matrix product, which is why it is used. The three terms are about
    {size:.0f} each here, the result {result:.2f}. Terms rounded to 8 bits carry errors of up to {rounding:.0f}: what is left after
    the cancellation is rounding noise, some of it negative and clamped to zero. The direct form subtracts first and squares small
    numbers.

How to recognise it
    Zero or negative squared distances between different points; nearest neighbours that are not; clusters far from the origin that
    dissolve. `torch.cdist` switches to the expansion above 25 points.

The repair
    Subtract first, in fp32: every distance is then right to {error_fixed:.1%}. If the product form is needed, centre the points:
    distances do not change, the terms shrink to the size of the result.

When it is no problem
    Points around the origin, as far from each other as from it: unit vectors, normalised embeddings.

Sources
    Higham 2002, section 1.7. PyTorch, torch.cdist (compute_mode).
"""

import math

import torch
from torch import Tensor

DTYPE = "bf16"
LEVEL = "practitioner"
COVERS = ("distances",)
EXPECT = (("PL501", "aten.sub"),)
CLAIMS = {
    "apart": (0.3, 1.5),
    "low": (0, 0.4),
    "high": (1, 8),
    "size": (1000, 4000),
    "result": (0.1, 2.5),
    "rounding": (2, 8),
    "error_fixed": (0, 0.02),
}
QUIZ = (
    (
        "|a|^2 is 1600, |a - b| is about 0.6. How close does |a|^2 + |b|^2 - 2 a.b come in bf16?",
        {"within a percent": "high < 0.7", "the result is noise": "high > 1"},
    ),
)


def _distances(dtype: torch.dtype, direct: bool) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(7)
    points = (10.0 + 0.1 * torch.randn(64, 16, generator=generator)).to(torch.bfloat16).to(dtype)
    a, b = points[:32], points[32:]
    if direct:
        wide = torch.promote_types(dtype, torch.float32)
        d = (a.to(wide)[:, None] - b.to(wide)[None]).square().sum(-1).sqrt().to(dtype)
    else:
        d = (a.square().sum(-1)[:, None] + b.square().sum(-1)[None] - 2 * (a @ b.t())).clamp(min=0).sqrt()
    return {"distances": d, "square_of_size": a.square().sum(-1)}


def broken(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _distances(dtype, direct=False)


def fixed(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _distances(dtype, direct=True)


def reference() -> dict[str, Tensor]:
    return _distances(torch.float64, direct=True)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    size = float(reference["square_of_size"].mean())
    return {
        "apart": float(reference["distances"].mean()),
        "low": float(broken["distances"].min()),
        "high": float(broken["distances"].max()),
        "size": size,
        "result": float(reference["distances"].square().mean()),
        "rounding": 2.0 ** (math.floor(math.log2(size)) - 8),
        "error_fixed": float((fixed["distances"] / reference["distances"] - 1).abs().max()),
    }
