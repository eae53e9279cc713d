"""A cosine above 1.

The cosine of a vector with itself comes out as {largest:.4f} in fp16, and {nan_share:.0%} of the angles are NaN.

What happens
    dot / (norm * norm) is rounded four times. The exact value of equal vectors is 1, where there is no room above: half of the
    results land on 1 + 2^-10, outside the domain of acos, which answers NaN. Cauchy-Schwarz holds for real numbers, not for rounded
    ones.

How to recognise it
    NaN for pairs that are equal or parallel: duplicates in a batch, a model compared with its copy, converged embeddings. acos,
    asin, sqrt(1 - c^2), atanh.

The repair
    Clamp the cosine to [-1, 1] before the inverse function: 1 - angle / pi is then right to {error_fixed:.3f}. Or avoid it: the
    angle as 2 atan2(|a - b|, |a + b|) of the unit vectors is accurate for all angles, acos is not near 0.

When it is no problem
    When the cosine is only compared or used as a loss: 1.001 is as good as 1.

Sources
    NVIDIA/apex issue 211; Kahan 2006, How Futile are Mindless Assessments of Roundoff in Floating-Point Computation?, section 12
    (angles).
"""

import torch
from torch import Tensor

DTYPE = "fp16"
LEVEL = "first steps"
COVERS = ("cosine",)
EXPECT = (("PL108", "aten.acos"),)
CLAIMS = {"largest": (1.0009, 1.003), "nan_share": (0.05, 0.7), "error_fixed": (0, 0.06)}
QUIZ = (
    (
        "a . a / (|a| |a|) in fp16: can it be larger than 1?",
        {"no, by Cauchy-Schwarz": "largest <= 1", "yes": "largest > 1"},
    ),
)
PICTURE = ("line", "cosines", "pair of equal vectors")


def _angles(dtype: torch.dtype, clamp: bool) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(64, 48, generator=generator).to(torch.float16).to(dtype)
    cosines = (a * a).sum(-1) / (a.norm(dim=-1) * a.norm(dim=-1))
    angles = torch.acos(cosines.clamp(-1, 1) if clamp else cosines)
    return {"cosines": cosines, "similarity": 1 - angles / torch.pi}


def broken(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _angles(dtype, clamp=False)


def fixed(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _angles(dtype, clamp=True)


def reference() -> dict[str, Tensor]:
    return _angles(torch.float64, clamp=True)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    return {
        "largest": float(broken["cosines"].max()),
        "nan_share": float(broken["similarity"].isnan().double().mean()),
        "error_fixed": float((fixed["similarity"] - 1).abs().max()),
    }
