"""Healthy: a softmax whose tail is zero.

{zeros:.0%} of the attention weights underflow to zero in fp16; together they hold {share:.1e} of the probability.

What it looks like
    Numbers become zero that are not zero in fp64: real underflow, in {zeros:.0%} of the entries, in every attention layer.

Why it is fine
    A weight below 3e-8 multiplies a value of size 1 and is added to a sum of size 1, whose rounding is 5e-4. What was flushed is
    {share:.1e} of the row. The audit weighs an underflow by its share of what the tensor carries (limit 10 %) and then by its
    consequence, and here both are nothing.

When it would be a problem
    If a log is taken of these weights (a loss, an entropy, a divergence): -inf. Then use log_softmax.

Sources
    Blanchard, Higham & Higham 2021, Accurately computing the log-sum-exp and softmax functions.
"""

import torch
from torch import Tensor, nn

DTYPE = "fp16"
LEVEL = "first steps"
COVERS = ("false alarm", "fp16 floors")
CLAIMS = {"zeros": (0.3, 0.95), "share": (0, 1e-5), "error": (0, 0.005)}
QUIZ = (
    (
        "More than a third of the attention weights underflow. How wrong is the output?",
        {"by a third": "error > 0.1", "by less than one percent": "error < 0.01"},
    ),
)
PICTURE = ("histogram", "weights", "size")


class Attention(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        weights = torch.softmax((q / q.shape[-1] ** 0.5) @ k.transpose(-1, -2), -1)
        return weights @ v, weights


def program(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    torch.manual_seed(0)
    q, k, v = (torch.randn(4, 32, 16).to(torch.float16).to(dtype) for _ in range(3))
    out, weights = Attention()(4 * q, 4 * k, v)
    return {"out": out, "weights": weights}


def reference() -> dict[str, Tensor]:
    return program(torch.float64)


def numbers(program: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    zero = program["weights"] == 0
    return {
        "zeros": float(zero.double().mean()),
        "share": float(reference["weights"][zero].sum() / reference["weights"].sum()),
        "error": float((program["out"] - reference["out"]).norm() / reference["out"].norm()),
    }
