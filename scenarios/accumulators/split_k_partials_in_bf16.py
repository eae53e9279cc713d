"""Split-k: partial sums that are rounded and then cancel.

A product over {terms:.0f} terms is split in four and its parts stored in bf16: the result is off by {error:.0%}, unsplit by
{error_fixed:.1%}.

What happens
    To use more cores a kernel splits the sum over k in parts and adds the partial results. If those go through memory in bf16, each
    is rounded to 8 bits. Here the parts are about {part:.0f} with opposite signs, the result about {size:.1f}: storing {part:.0f}
    costs up to {rounding:.1f}, and nothing makes them smaller when the large numbers cancel.

    The error of a sum is relative to the largest partial sum, not to the result.

How to recognise it
    Results that change with the shape (the split is chosen by shape), with the batch size, or between libraries; only for some
    layers, those whose inputs have a large mean.

The repair
    Keep the partial sums in fp32 until they are added. It costs memory traffic for the workspace only.

When it is no problem
    When the parts do not cancel: a random-sign sum of four parts has partial sums of the size of the result, and an error of at
    most about 2^-8.

Sources
    modular/modular issue 7165. Higham 2002, section 4.2. cuBLAS: split-k workspaces are fp32 unless reduced-precision reduction is
    allowed.
"""

import math

import torch
from torch import Tensor, nn

DTYPE = "bf16"
LEVEL = "expert"
COVERS = ("split-k",)
EXPECT = (("PL501", "aten.add"),)
CLAIMS = {
    "terms": (4096, 4096),
    "error": (0.05, 1.0),
    "error_fixed": (0, 0.01),
    "part": (50, 2000),
    "size": (0.5, 60),
    "rounding": (0.1, 5),
}
QUIZ = (
    (
        "Partial sums of a few hundred, stored in bf16, cancel to a few. Roughly how large is the relative error of the result?",
        {"2^-8, one rounding": "error < 0.005", "tens of percent": "error >= 0.05"},
    ),
)


class SplitLinear(nn.Module):
    def __init__(self, workspace: torch.dtype) -> None:
        super().__init__()
        self.weight, self.workspace = nn.Parameter(torch.randn(16, 4096) * 4096**-0.5 + 0.02), workspace

    def forward(self, x: Tensor) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        pairs = zip(x.chunk(4, -1), self.weight.chunk(4, -1), strict=True)
        parts = [(a.to(wide) @ b.to(wide).t()).to(self.workspace) for a, b in pairs]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total.to(x.dtype)


def _project(dtype: torch.dtype, workspace: torch.dtype) -> dict[str, Tensor]:
    torch.manual_seed(38)
    layer, x = SplitLinear(workspace), torch.randn(64, 4096)
    x[:, :2048] += 8.0
    x[:, 2048:] -= 8.0
    with torch.no_grad():
        layer, x = layer.to(torch.bfloat16).to(dtype), x.to(torch.bfloat16).to(dtype)
        out = layer(x)
        part = (x[:, :1024].double() @ layer.weight[:, :1024].double().t()).abs().mean()
    return {"out": out, "part": part}


def broken(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _project(dtype, dtype)


def fixed(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _project(dtype, torch.float32)


def reference() -> dict[str, Tensor]:
    return _project(torch.float64, torch.float64)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    def error(run: dict[str, Tensor]) -> float:
        return float((run["out"] - reference["out"]).norm() / reference["out"].norm())

    part = float(reference["part"])
    return {
        "terms": 4096,
        "error": error(broken),
        "error_fixed": error(fixed),
        "part": part,
        "size": float(reference["out"].abs().mean()),
        "rounding": 2.0 ** (math.floor(math.log2(part)) - 8),
    }
