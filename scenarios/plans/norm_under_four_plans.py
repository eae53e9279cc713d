"""A norm under four plans.

The norm of {count:.0f} gradients of {size:.0f}: storage, compute and accumulation decide between {exact:.0f}, infinity and
{bf16:.0f}.

What happens
    sqrt(sum g^2) has three places where a format can be too narrow, and each has its own failure. With g = {size:.0f}, g^2 =
    {square:.0f} and a sum of {total:.1e}:

        storage  compute  accumulation   result
        fp16     fp16     fp16           {narrow} (the sum does not fit)
        fp16     fp16     fp32           {wide_sum:.0f} (the squares still must)
        fp16     fp32     fp32           {wide:.0f} (for gradients of any size)
        bf16     bf16     bf16           {bf16:.0f} (the sum stands still)

    The repair of one plan is not the repair of another: fp16 needs range, bf16 needs bits.

How to recognise it
    inf in fp16, a norm that is too small in bf16, and neither in fp32.

The repair
    fp32 for compute and accumulation; the stored norm may be fp16.

When it is no problem
    Norms well below 256 in fp16, sums of at most a few hundred terms in bf16.

Sources
    Higham & Mary 2022, Mixed precision algorithms in numerical linear algebra; Micikevicius et al. 2018, section 3.3 (arithmetic
    precision).
"""

import torch
from torch import Tensor

DTYPE = "fp16"
LEVEL = "practitioner"
COVERS = ("four plans", "global norm")
EXPECT = (("PL101", "aten.add"),)
CLAIMS = {
    "count": (1024, 1024),
    "size": (100, 100),
    "square": (10000, 10000),
    "total": (1.02e7, 1.03e7),
    "exact": (3200, 3200),
    "narrow": (1e999, 1e999),
    "wide_sum": (3199, 3201),
    "wide": (3199, 3201),
    "bf16": (1000, 2500),
}
QUIZ = (
    (
        "The same hand-written norm in bf16 instead of fp16: what does it give?",
        {"infinity": "bf16 > 1e9", "3200": "3100 < bf16 < 3300", "too little": "bf16 < 3000"},
    ),
)


def _norm(storage: torch.dtype, compute: torch.dtype, accumulation: torch.dtype) -> Tensor:
    g = torch.full((1024,), 100.0, dtype=storage).to(compute)
    total = torch.zeros((), dtype=accumulation)
    for one in (g * g).to(accumulation):
        total = total + one
    return total.sqrt().to(storage)


def broken(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return {"norm": _norm(dtype, dtype, dtype)}


def fixed(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return {"norm": _norm(dtype, torch.float32, torch.float32)}


def reference() -> dict[str, Tensor]:
    return {"norm": _norm(torch.float64, torch.float64, torch.float64)}


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    return {
        "count": 1024,
        "size": 100,
        "square": 100.0**2,
        "total": 1024 * 100.0**2,
        "exact": float(reference["norm"]),
        "narrow": float(broken["norm"]),
        "wide_sum": float(_norm(torch.float16, torch.float16, torch.float32)),
        "wide": float(fixed["norm"]),
        "bf16": float(_norm(torch.bfloat16, torch.bfloat16, torch.bfloat16)),
    }
