"""Attention scores that are scaled too late.

q . k is {score:.0f}, the score that softmax needs {scaled:.0f}: dividing after the product is too late for fp16.

What happens
    A score is q . k / sqrt(d). With d = {d:.0f} and queries and keys of size {size:.0f} the product is {score:.0f}, beyond 65504,
    and the division by sqrt(d) = {root:.0f} meets an infinity. Softmax of a row with an infinity is NaN. The scaled score fits
    easily.

How to recognise it
    NaN from one attention layer, in fp16 only, for inputs with large activations, at a wide head dimension. The first infinity is
    in the product, not in the softmax.

The repair
    Scale one operand first: (q / sqrt(d)) . k. It costs nothing, since the multiplication moves to a smaller tensor, and fused
    kernels scale in fp32 registers anyway. For head dimensions that are powers of four the factor is a power of two, so the results
    are the same to the last bit.

When it is no problem
    With normalised queries and keys, scores are at most sqrt(d) times the gain.

Sources
    Vaswani et al. 2017, section 3.2.1; Shoeybi et al. 2019, Megatron-LM (scale by layer to keep fp16 in range).
"""

import torch
from torch import Tensor, nn

DTYPE = "fp16"
LEVEL = "first steps"
COVERS = ("scores before scaling", "fp16 ceiling")
EXPECT = (("PL102", "aten.bmm"),)
CLAIMS = {"score": (65520, 5e5), "scaled": (1000, 60000), "d": (64, 64), "size": (10, 100), "root": (8, 8)}
QUIZ = (
    (
        "64 products of about 40 x 40 are summed, then divided by 8. Does fp16 hold every number on the way?",
        {"yes, the score is about 13000": "score < 65504", "no, the sum is above 65504": "score > 65504 and scaled < 65504"},
    ),
)


class Attention(nn.Module):
    def __init__(self, scale_first: bool) -> None:
        super().__init__()
        self.scale_first = scale_first

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        root = q.shape[-1] ** 0.5
        scores = (q / root) @ k.transpose(-1, -2) if self.scale_first else (q @ k.transpose(-1, -2)) / root
        return torch.softmax(scores, -1) @ v


def _attend(dtype: torch.dtype, scale_first: bool) -> dict[str, Tensor]:
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 16, 64), torch.randn(2, 16, 64), torch.randn(2, 16, 64)
    q[:, 0] = k[:, 3] = 40.0  # a query that has found its key
    q, k, v = (t.to(torch.float16).to(dtype) for t in (q, k, v))
    return {"out": Attention(scale_first)(q, k, v), "largest_score": (q.double() @ k.double().transpose(-1, -2)).max()}


def broken(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _attend(dtype, scale_first=False)


def fixed(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _attend(dtype, scale_first=True)


def reference() -> dict[str, Tensor]:
    return _attend(torch.float64, scale_first=False)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    score = float(reference["largest_score"])
    return {"score": score, "scaled": score / 8, "d": 64, "size": 40, "root": 8}
