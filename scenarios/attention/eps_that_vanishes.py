"""An eps that vanishes.

x / sqrt(sum x^2 + 1e-8) guards a zero vector in fp32; in fp16 the guard is zero and {nan_share:.0%} of the outputs are NaN.

What happens
    The smallest positive fp16 number is 6.0e-8; half of it, 3.0e-8, and everything below rounds to zero. 0 + 1e-8 is therefore 0
    and rsqrt(0) is infinite, 0 * inf NaN. The guard works for every vector that does not need it. Where squares are small but not
    zero it is just as useless: entries of 1e-4 have squares of 1e-8, which are zero as well.

How to recognise it
    NaN for padded, empty or untrained (zero) vectors, in fp16 only. Look at every eps below 1e-7: 1e-8, 1e-12 and finfo(fp32).tiny
    are all zero in fp16.

The repair
    An eps for the format: with 1e-4 {nan_fixed:.0%} of the outputs are NaN. Or compute the normalisation in fp32. An eps inside a
    fused kernel (LayerNorm, `F.normalize` under autocast) is applied in fp32.

When it is no problem
    When the denominator is never small. bf16 holds 1e-8 without trouble.

Sources
    IEEE 754-2019, section 3.3. Yun 2023, on Adam's eps in half, arXiv:2307.16189.
"""

import torch
from torch import Tensor, nn

DTYPE = "fp16"
LEVEL = "first steps"
COVERS = ("vanishing eps", "fp16 floors")
EXPECT = (("PL108", "aten.rsqrt"),)
CLAIMS = {"nan_share": (0.25, 0.25), "nan_fixed": (0, 0)}
QUIZ = (
    (
        "What is 0 / sqrt(0 + 1e-8) in fp16?",
        {"0": "nan_share == 0", "NaN, since 1e-8 is 0": "nan_share > 0"},
    ),
)


class Normalise(nn.Module):
    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + self.eps)


def _normalise(dtype: torch.dtype, eps: float) -> dict[str, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(8, 16)
    x[3:5] = 0.0  # padding
    return {"out": Normalise(eps)(x.to(torch.float16).to(dtype))}


def broken(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _normalise(dtype, 1e-8)


def fixed(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _normalise(dtype, 1e-4)


def reference() -> dict[str, Tensor]:
    return _normalise(torch.float64, 1e-8)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    return {"nan_share": float(broken["out"].isnan().double().mean()), "nan_fixed": float(fixed["out"].isnan().double().mean())}
