"""log(1 + exp(x)): right in the forward pass, NaN in the backward pass.

Mish written with log(1 + exp(x)): from x = {onset:.1f} on the activation is right and its gradient NaN, for {nan_share:.0%} of the
inputs here.

What happens
    exp(x) leaves fp16 at x = ln 65504 = 11.09. log(1 + inf) = inf and tanh(inf) = 1, so x * tanh(...) = x is exactly right. The
    backward pass multiplies the slope of tanh at infinity, 0, by the slope of the rest, inf / inf: NaN. For large negative x the
    same formula loses the other end: 1 + exp(x) = 1 from x = {lost_below:.1f} on ({lost_below_bf16:.1f} in bf16), so softplus is 0
    instead of exp(x).

How to recognise it
    Finite losses, NaN gradients, at one activation function. The forward pass is no evidence: infinities can be hidden by any
    bounded function.

The repair
    max(x, 0) + log1p(exp(-|x|)): the exponential is at most 1 and log1p keeps small arguments. `F.softplus` and `F.mish` do that.

When it is no problem
    Where |x| is kept small by a norm in front of the activation; or bf16, for the overflow, not for the negative end.

Sources
    Mächler 2012, Accurately computing log(1 - exp(-|a|)); GRIST corpus (Yan et al. 2021): 4 PyTorch programs.
"""

import torch
from torch import Tensor, nn

DTYPE = "fp16"
LEVEL = "practitioner"
COVERS = ("softplus", "fp16 ceiling")
EXPECT = (("PL101", "aten.exp"),)
CLAIMS = {
    "onset": (11.0, 11.3),
    "nan_share": (0.1, 0.5),
    "forward_error": (0, 0.002),
    "lost_below": (-8, -7.4),
    "lost_below_bf16": (-6.5, -5.4),
}
QUIZ = (
    (
        "x = 12 in fp16: exp(x) is inf. What is wrong with x * tanh(log(1 + exp(x)))?",
        {"the value": "forward_error > 0.01", "only the gradient": "forward_error < 0.01 and nan_share > 0", "nothing": "nan_share == 0"},
    ),
)
PICTURE = ("line", "gradient", "x from -4 to 15")


class Mish(nn.Module):
    def __init__(self, stable: bool) -> None:
        super().__init__()
        self.stable = stable

    def forward(self, x: Tensor) -> Tensor:
        softplus = x.clamp(min=0) + torch.log1p(torch.exp(-x.abs())) if self.stable else torch.log(1 + torch.exp(x))
        return x * torch.tanh(softplus)


def _activate(dtype: torch.dtype, stable: bool) -> dict[str, Tensor]:
    x = torch.linspace(-4, 15, 153).to(torch.float16).to(dtype).requires_grad_()
    out = Mish(stable)(x)
    out.sum().backward()
    return {"out": out.detach(), "gradient": x.grad, "x": x.detach()}


def broken(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _activate(dtype, stable=False)


def fixed(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _activate(dtype, stable=True)


def reference() -> dict[str, Tensor]:
    return _activate(torch.float64, stable=False)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    def lost_below(dtype: torch.dtype) -> float:
        x = torch.linspace(-12, 0, 1201).to(dtype)
        return float(x[1 + torch.exp(x) == 1].max())

    lost = broken["gradient"].isnan()
    return {
        "onset": float(broken["x"][lost].min()),
        "nan_share": float(lost.double().mean()),
        "forward_error": float((broken["out"] - reference["out"]).norm() / reference["out"].norm()),
        "lost_below": lost_below(torch.float16),
        "lost_below_bf16": lost_below(torch.bfloat16),
    }
