"""Infinity times a mask of zero.

Two tokens are masked out, their importance ratios are infinite, and the loss is NaN: inf * 0 is not 0.

What happens
    A policy loss multiplies exp(new - old) by a mask. exp leaves fp16 at 11.09; the masked tokens have log-ratios of up to
    {worst:.0f}, which mean nothing and are to be ignored. But inf * 0 = NaN by IEEE 754, and a sum with one NaN is NaN. The
    gradient of the masked entries is 0 * inf as well. The sum over the others would be {loss:.3f}.

How to recognise it
    NaN although every value that matters is small. Search for `* mask` behind exp, log, division or sqrt.

The repair
    Mask the argument, not the result: `log_ratio.masked_fill(~mask, 0.0)` before exp, and clamp it; the loss is then
    {loss_fixed:.3f}. `torch.where(mask, exp(x), 0)` repairs the forward pass only: its gradient still multiplies 0 by inf.

When it is no problem
    Where the masked values are finite for certain, a multiplication is fine. bf16 only moves the limit to 88.

Sources
    PyTorch, numerical accuracy notes and issue 52248 (gradient of torch.where). PrimeIntellect-ai/prime-rl issue 2972.
"""

import torch
from torch import Tensor, nn

DTYPE = "fp16"
LEVEL = "practitioner"
COVERS = ("fp16 ceiling", "masks")
EXPECT = (("PL101", "aten.exp"),)
CLAIMS = {"worst": (18, 25), "loss": (-5, 5), "loss_fixed": (-5, 5), "nan": (1, 1)}
QUIZ = (
    (
        "Two of 44 tokens have an infinite ratio and a mask of 0. What is sum(ratio * advantage * mask)?",
        {"the sum over the other 42": "nan == 0", "NaN": "nan == 1"},
    ),
)
PICTURE = ("bars", "loss", "policy loss")


class PolicyLoss(nn.Module):
    def __init__(self, mask_first: bool) -> None:
        super().__init__()
        self.mask_first = mask_first

    def forward(self, log_ratio: Tensor, advantage: Tensor, mask: Tensor) -> Tensor:
        if self.mask_first:
            log_ratio = log_ratio.masked_fill(~mask, 0.0)
        keep = mask.to(log_ratio.dtype)
        return -(log_ratio.exp() * advantage * keep).sum() / keep.sum()


def _loss(dtype: torch.dtype, mask_first: bool) -> dict[str, Tensor]:
    torch.manual_seed(40)
    new = (-3.0 - torch.rand(4, 11)).to(torch.float16).to(dtype).requires_grad_()
    old = (new.detach().double() + 0.05 * torch.randn(4, 11)).to(torch.float16).to(dtype)
    mask = torch.ones(4, 11, dtype=torch.bool)
    mask[1, 3] = mask[3, 7] = False  # tokens that the policy did not draw
    old[1, 3], old[3, 7] = -24.0, -16.5
    loss = PolicyLoss(mask_first)(new - old, torch.randn(4, 1).to(torch.float16).to(dtype), mask)
    loss.backward()
    return {"loss": loss.detach(), "gradient": new.grad, "log_ratio": (new - old).detach()}


def broken(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _loss(dtype, mask_first=False)


def fixed(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _loss(dtype, mask_first=True)


def reference() -> dict[str, Tensor]:
    return _loss(torch.float64, mask_first=False)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    return {
        "worst": float(reference["log_ratio"].max()),
        "loss": float(reference["loss"]),
        "loss_fixed": float(fixed["loss"]),
        "nan": float(broken["loss"].isnan()),
    }
