"""An accumulator that truncates.

Rounding toward zero in an fp32 accumulator makes every sum too small: by {bias:.1e} on average at n = 4096, {bias_short:.1e} at n =
256.

What happens
    Tensor cores align the products of a block to the largest and cut off what does not fit. Each cut takes away up to one unit of
    the last place, half of one on average, and never adds. Errors of rounding to nearest have both signs and grow like sqrt(n);
    these have one sign and grow like n: {ratio:.1f} times as large for 16 times as many terms. Here the accumulator of a V100 is
    emulated on sums of positive products.

How to recognise it
    A mean signed error that is not zero, `((lo - hi) / hi).mean()`, with a size proportional to the length of the sum. Each single
    result is within its bound. It shows in sums of one sign: probabilities times values, norms, positive activations.

The repair
    Promote: take the partial sum out into an fp32 register that rounds to nearest, every few blocks, as kernels for fp8 do. With
    nearest rounding the mean error here is {bias_fixed:.1e}.

When it is no problem
    Data of both signs: the bias has the sign of the running sum and averages out. And half-precision results: 2^-11 hides a bias of
    1e-4 in each, not in their mean.

Sources
    Fasi, Higham, Mikaitis & Pranesh 2021, Numerical behavior of NVIDIA tensor cores. DeepSeek-AI 2024, DeepSeek-V3 Technical
    Report, section 3.3.2.
"""

import numpy as np
import torch
from torch import Tensor

from precisionlab import formats

DTYPE = "fp16"
LEVEL = "expert"
COVERS = ("truncation bias",)
UNNAMED = (
    "This accumulator is emulated in NumPy; torch's kernels on this machine round to nearest, so there is no op here that could be named. "
    "precisionlab probe measures what a machine's kernels do, and audit --target judges by the profile of another machine."
)
CLAIMS = {
    "bias": (-1.2e-4, -5e-5),
    "bias_short": (-8e-6, -3e-6),
    "ratio": (12, 22),
    "bias_fixed": (-1e-6, 1e-6),
}
QUIZ = (
    (
        "Each addition is rounded toward zero instead of to nearest. How does the mean error grow from n = 256 to n = 4096?",
        {"by 4, the square root of 16": "2 < ratio < 6", "by 16": "12 < ratio < 22", "not at all": "ratio < 2"},
    ),
)
PICTURE = ("line", "errors", "sum (relative errors at n = 4096, sorted)")


def _errors(n: int, plan: formats.AccumulationPlan | None) -> Tensor:
    rng = np.random.default_rng(1)
    a, b = (formats.round_to(rng.uniform(size=(100, n)), formats.FP16) for _ in range(2))
    exact = (a * b).sum(-1)
    found = exact if plan is None else formats.accumulate(a * b, plan)
    return torch.from_numpy((found - exact) / exact)


def _sums(plan: formats.AccumulationPlan | None) -> dict[str, Tensor]:
    return {"errors": _errors(4096, plan).sort().values, "errors_256": _errors(256, plan)}


def broken() -> dict[str, Tensor]:
    return _sums(formats.V100)


def fixed() -> dict[str, Tensor]:
    nearest = formats.SumRounding.NEAREST_EVEN
    return _sums(formats.AccumulationPlan(formats.AccumulationOrder.BLOCK_FMA, formats.FP32, block=4, bits=44, rounding=nearest))


def reference() -> dict[str, Tensor]:
    return _sums(None)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    return {
        "bias": float(broken["errors"].mean()),
        "bias_short": float(broken["errors_256"].mean()),
        "ratio": float(broken["errors"].mean() / broken["errors_256"].mean()),
        "bias_fixed": float(fixed["errors"].mean()),
    }
