"""One long sum, or many short ones.

The same {terms:.0f} bf16 terms with the same bf16 accumulator: in one row off by {error:.0%}, in blocks of {block:.0f} by
{error_fixed:.2%}.

What happens
    Adding n terms in a row makes the running sum n times as large as a term, and each rounding relative to that sum. The error
    bound is n u times the sum of sizes; with u = 2^-8 in bf16 it says nothing from n = 256 on, and the sum stops. Adding blocks of
    b and then the n/b results gives b + n/b instead of n: 2 sqrt(n) at best. Pairwise summation gives log2(n). The accumulator is
    as narrow as before; only the order changed.

How to recognise it
    A reduction whose error grows with its length. The order is a choice of the kernel, and changes with the shape, the device and
    the version: `precisionlab probe` shows it for the machine at hand.

The repair
    Blocks, or a wider accumulator, or both: what tensor cores and BLAS kernels do. In hand-written scans and rings the row has to
    be cut by hand.

When it is no problem
    Terms with mean zero. Their partial sums grow like the square root, and rounding errors do not accumulate with one sign.

Sources
    Higham 1993, The accuracy of floating point summation; Blanchard, Higham & Mary 2020, A class of fast and accurate summation
    algorithms.
"""

import torch
from torch import Tensor

DTYPE = "bf16"
LEVEL = "practitioner"
COVERS = ("block order", "running sum")
EXPECT = (("PL302", "aten.add"),)
CLAIMS = {"terms": (1024, 1024), "error": (0.4, 0.6), "block": (32, 32), "error_fixed": (0, 0.02)}
QUIZ = (
    (
        "1024 numbers between 0 and 1 are summed with a bf16 accumulator, once in a row and once in 32 blocks of 32. Which helps?",
        {
            "nothing: the accumulator is as narrow": "error_fixed > 0.3 * error",
            "blocks: errors of 50 % become 1 %": "error_fixed < 0.05 * error",
        },
    ),
)


def _add_up(columns: Tensor) -> Tensor:
    total = columns[:, 0]
    for column in columns[:, 1:].unbind(1):
        total = total + column
    return total


def _sum(dtype: torch.dtype, block: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    terms = torch.rand(64, 1024, generator=generator).to(torch.bfloat16).to(dtype)
    if block:
        blocks = torch.stack([_add_up(part) for part in terms.split(block, 1)], 1)
        return {"sums": _add_up(blocks)}
    return {"sums": _add_up(terms)}


def broken(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _sum(dtype, 0)


def fixed(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _sum(dtype, 32)


def reference() -> dict[str, Tensor]:
    return _sum(torch.float64, 0)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    def error(run: dict[str, Tensor]) -> float:
        return float((run["sums"] - reference["sums"]).norm() / reference["sums"].norm())

    return {"terms": 1024, "error": error(broken), "block": 32, "error_fixed": error(fixed)}
