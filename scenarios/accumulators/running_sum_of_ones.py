"""A running sum of ones.

{terms:.0f} ones, added one after another in bf16, are {end:.0f}.

What happens
    A sum s + x rounds to s as soon as x is at most half the spacing at s. With 8 bits the spacing passes 1 at 256: 256 + 1 = 257
    lies between 256 and 258 and rounds to the even one, 256. From then on every term is lost, and the error is the rest of the sum:
    {error:.0%}. In fp16 the same happens at 2048, in fp32 at 16 777 216. For other terms: the sum stops where its spacing is twice
    the terms, at 2^8 to 2^9 times their size in bf16, 2^11 to 2^12 in fp16.

How to recognise it
    Sums that end at a power of two. Results that depend on the order of the terms. CPU kernels hide it:
    `torch.ones(4096).bfloat16().sum()` is 4096 here, since the kernel sums in fp32. The loop, `index_add`, a scan on a device, a
    ring all-reduce have the narrow accumulator.

The repair
    An fp32 accumulator, rounded once at the end. Its own roundings are 2^-24 each, so the length no longer matters.

When it is no problem
    Short sums, or sums whose terms cancel: with mean zero the partial sums stay small and nothing stagnates.

Sources
    Higham 2002, section 4.2; Wang et al. 2018, Training Deep Neural Networks with 8-bit Floating Point Numbers (swamping).
"""

import torch
from torch import Tensor

DTYPE = "bf16"
LEVEL = "first steps"
COVERS = ("running sum", "spacing")
EXPECT = (("PL302", "aten.add_"),)
CLAIMS = {"terms": (600, 600), "end": (256, 256), "error": (0.5, 0.6)}
QUIZ = (
    (
        "600 ones are added one by one to a bf16 sum. What is the result?",
        {"600": "end == 600", "596 or 604, rounded": "590 < end < 610 and end != 600", "256": "end == 256", "512": "end == 512"},
    ),
)
PICTURE = ("line", "path", "terms")


def _sum(dtype: torch.dtype, accumulator: torch.dtype) -> dict[str, Tensor]:
    ones = torch.ones(600, dtype=dtype)
    total = torch.zeros((), dtype=accumulator)
    path = []
    for one in ones:
        total += one
        path.append(total.to(torch.float64, copy=True))
    return {"total": total, "path": torch.stack(path)}


def broken(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _sum(dtype, dtype)


def fixed(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _sum(dtype, torch.float32)


def reference() -> dict[str, Tensor]:
    return _sum(torch.float64, torch.float64)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    return {
        "terms": broken["path"].numel(),
        "end": float(broken["total"]),
        "error": 1 - float(broken["total"] / reference["total"]),
    }
