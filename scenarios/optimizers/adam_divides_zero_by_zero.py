"""Adam divides zero by zero.

A row without gradient, Adam's default eps, fp16 weights: {nan_share:.0%} of the weights are NaN after one step.

What happens
    Adam's step is m / (sqrt(v) + eps). Where the gradient is zero (a token that does not occur in the batch) m and v are zero, and
    eps = 1e-8 is all that keeps the quotient defined. Added to an fp16 zero it is rounded: everything up to 2^-25 = 3.0e-8 is
    stored as 0. 0 / 0 = NaN. Rows whose gradients are tiny but not zero divide by zero as well and become infinite: v = 0.001 g^2
    is below the floor for |g| < 5.5e-3.

How to recognise it
    NaN weights after the very first step, in exactly the rows without gradient; the loss of that step was fine.

The repair
    fp32 weights, or masters, so that state and eps are fp32: {nan_fixed:.0%} of the weights are NaN then. If everything must be
    fp16, eps >= 1e-4, and a scale on the second moment.

When it is no problem
    bf16: 1e-8 is an ordinary bf16 number, though v keeps only 8 bits.

Sources
    Kingma & Ba 2015, Adam. Yun 2023, on eps as the main cause of failures in half, arXiv:2307.16189.
"""

import torch
from torch import Tensor, nn

DTYPE = "fp16"
LEVEL = "first steps"
COVERS = ("adam eps", "fp16 floors")
EXPECT = (("PL108", "aten.addcdiv_"),)
CLAIMS = {"nan_share": (0.5, 1.0), "nan_fixed": (0, 0)}
QUIZ = (
    (
        "Which rows of an fp16 embedding are NaN after one Adam step with the default eps?",
        {"none": "nan_share == 0", "those whose tokens did not occur": "nan_share > 0"},
    ),
)


def _step(dtype: torch.dtype, weights: torch.dtype) -> dict[str, Tensor]:
    torch.manual_seed(0)
    embedding = nn.Embedding(32, 8).to(weights)
    optimizer = torch.optim.Adam(embedding.parameters(), lr=1e-3)
    out = embedding(torch.arange(8)).to(dtype)  # 24 of 32 rows do not occur
    loss = out.square().sum()
    loss.backward()
    optimizer.step()
    return {"loss": loss.detach(), "weight": embedding.weight.detach().clone()}


def broken(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _step(dtype, dtype)


def fixed(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _step(dtype, torch.float32)


def reference() -> dict[str, Tensor]:
    return _step(torch.float64, torch.float64)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    return {"nan_share": float(broken["weight"].isnan().double().mean()), "nan_fixed": float(fixed["weight"].isnan().double().mean())}
