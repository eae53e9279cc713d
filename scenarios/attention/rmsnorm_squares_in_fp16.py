"""An RMSNorm that squares in fp16.

Activations of {outlier:.0f} are well inside fp16, their squares are not: the norm sets those tokens to exactly zero, and nothing is
NaN.

What happens
    x / sqrt(mean(x^2) + eps). fp16 squares overflow from |x| = 256 on. The mean of a row with one infinite square is infinite, its
    reciprocal root is 0, and x * 0 = 0: the whole token disappears, without inf or NaN in any output. Transformers have outlier
    features of hundreds in a few channels, often at the first token.

How to recognise it
    Outputs that are exactly zero for some tokens, gradients that vanish for the norm's gain. The loss is finite, so it goes
    unnoticed for a long time: {zero_share:.0%} of the tokens are zero here.

The repair
    Square and average in fp32, and round the result: `x.float()` before `pow`. That is what the fused `rms_norm` kernels do.

When it is no problem
    bf16, whose range is that of fp32: 256 squared is nothing there. And activations that are kept below 200.

Sources
    Zhang & Sennrich 2019, Root Mean Square Layer Normalization; Dettmers et al. 2022, LLM.int8() (outlier features).
"""

import torch
from torch import Tensor, nn

DTYPE = "fp16"
LEVEL = "first steps"
COVERS = ("rmsnorm squares", "fp16 ceiling")
EXPECT = (("PL101", "aten.pow"),)
CLAIMS = {"outlier": (400, 400), "zero_share": (0.25, 0.25)}
QUIZ = (
    (
        "One feature of a token is 400. What does an RMSNorm written in fp16 give for that token?",
        {"NaN": "zero_share == 0", "zeros": "zero_share > 0"},
    ),
)


class RMSNorm(nn.Module):
    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.gain, self.wide = nn.Parameter(torch.ones(32)), wide

    def forward(self, x: Tensor) -> Tensor:
        h = x.to(torch.promote_types(x.dtype, torch.float32)) if self.wide else x
        return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * self.gain


def _norm(dtype: torch.dtype, wide: bool) -> dict[str, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(8, 32)
    x[:2, 5] = 400.0  # an outlier feature
    model, x = RMSNorm(wide).to(dtype), x.to(torch.float16).to(dtype)
    out = model(x)
    out.square().mean().backward()
    return {"out": out.detach(), "gradient": model.gain.grad}


def broken(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _norm(dtype, wide=False)


def fixed(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _norm(dtype, wide=True)


def reference() -> dict[str, Tensor]:
    return _norm(torch.float64, wide=False)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    return {"outlier": 400, "zero_share": float((broken["out"] == 0).all(-1).double().mean())}
