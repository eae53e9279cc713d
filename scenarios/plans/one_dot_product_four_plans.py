"""One dot product under four plans.

{terms:.0f} products, stored in bf16: off by {narrow:.0f} rounding units with a bf16 accumulator, by {blocks:.1f} in blocks of 32,
by {wide:.2f} with an fp32 accumulator.

What happens
    A dtype plan has three parts: the format of the stored result, the format of the arithmetic, and the format of the running sum.
    They are chosen apart and fail apart. The same positive terms under four plans, errors in units of bf16's u = 2^-8, as emulated
    bit for bit:

        storage  sum                 error    judged
        bf16     bf16, in one row    {narrow:6.1f}   broken: it stagnates
        bf16     bf16, blocks of 32  {blocks:6.2f}   risky: 64 roundings, not 1
        bf16     fp32, in one row    {wide:6.2f}   safe: one rounding
        fp32     fp32, in one row    {all_wide:6.4f}   safe, twice the memory

    The second part of a plan hardly matters here: products of two bf16 numbers are exact in fp32.

How to recognise it
    A mean relative error far above 2^-8 in a reduction. CPU kernels accumulate bf16 in fp32, so the first two plans show only in
    hand-written loops, or in emulation (`precisionlab audit --target`).

The repair
    Widen the accumulator first. It costs a register, not memory, and takes away all but the last rounding. Storage is widened only
    where the next op cancels.

When it is no problem
    Short sums (up to about 2^4 terms in bf16), or terms of mean zero.

Sources
    Higham & Mary 2022, Mixed precision algorithms in numerical linear algebra, section 2; Blanchard et al. 2020, Mixed precision
    block fused multiply-add.
"""

import torch
from torch import Tensor

from precisionlab.formats import BF16, FP32, AccumulationOrder, AccumulationPlan, Format
from precisionlab.plans import trials

DTYPE = "bf16"
LEVEL = "practitioner"
COVERS = ("four plans", "running sum", "block order")
EXPECT = (("PL503", "aten.add_"),)
CLAIMS = {"terms": (1024, 1024), "narrow": (20, 200), "blocks": (0.2, 5), "wide": (0.1, 0.5), "all_wide": (0, 0.01)}
QUIZ = (
    (
        "Which part of the plan makes the difference for a long sum of positive bf16 products?",
        {
            "the storage format": "wide > 10",
            "the accumulation format": "narrow / wide > 50",
            "neither": "narrow < 2",
        },
    ),
)
PICTURE = ("line", "running_sum", "terms (first output)")


def _products() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.rand(64, 1024, generator=generator).bfloat16().double() for _ in range(2))
    return a * b


def _dot(storage: torch.dtype, accumulation: torch.dtype) -> dict[str, Tensor]:
    total, running = torch.zeros(64, dtype=accumulation), []
    for column in _products().to(torch.promote_types(storage, torch.float32)).unbind(1):
        total += column
        running.append(total[0].to(torch.float64, copy=True))
    return {"dots": total.to(storage), "running_sum": torch.stack(running)}


def broken(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _dot(dtype, dtype)


def fixed(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _dot(dtype, torch.float32)


def reference() -> dict[str, Tensor]:
    return _dot(torch.float64, torch.float64)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    terms = _products().numpy()

    def error_u(storage: Format, plan: AccumulationPlan) -> float:
        (trial,) = trials(terms, storage, [plan])
        return trial.error_rms_u * storage.u / BF16.u

    running = AccumulationOrder.SEQUENTIAL
    return {
        "terms": terms.shape[1],
        "narrow": error_u(BF16, AccumulationPlan(running, BF16)),
        "blocks": error_u(BF16, AccumulationPlan(AccumulationOrder.BLOCKED, BF16, block=32)),
        "wide": error_u(BF16, AccumulationPlan(running, FP32)),
        "all_wide": error_u(FP32, AccumulationPlan(running, FP32)),
    }
