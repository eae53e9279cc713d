"""BatchNorm sees the micro-batch, not the batch.

Accumulating {micro:.0f} micro-batches of {size:.0f} gives the gradient of another function than the batch of {whole:.0f}: they
differ by {difference:.0%}.

What happens
    Accumulation adds gradients of separate forward passes. For a mean of losses that is the gradient of the large batch, unless
    samples influence each other inside the forward pass, as they do in BatchNorm: each micro-batch is normalised by its own mean
    and variance. With {size:.0f} samples the variance is off by sqrt(2/{size:.0f}), about {noise:.0%}, and the backward pass
    through mean and variance subtracts projections that belong to {size:.0f} samples, not to {whole:.0f}. It is exact arithmetic of
    another function: fp64 has the same difference.

How to recognise it
    Results that depend on how a batch is cut, in every precision. It is often blamed on bf16 since both come with the same change
    of configuration. Run the cut in fp64: if the difference stays, it is no rounding.

The repair
    A norm without batch statistics (GroupNorm, LayerNorm), or frozen statistics, or synchronised statistics where the parts run in
    parallel. With GroupNorm the cut changes nothing ({difference_fixed:.1e}).

When it is no problem
    Micro-batches of a few hundred samples.

Sources
    Ioffe & Szegedy 2015; Wu & He 2018, Group Normalization, figure 1 (error by batch size).
"""

import torch
from torch import Tensor, nn

DTYPE = "bf16"
LEVEL = "practitioner"
COVERS = ("batchnorm micro-batches",)
UNNAMED = (
    "The bf16 run and its fp64 twin normalise by the same few samples and agree, so the audit calls this program safe, and numerically it "
    "is. What is wrong is the function, not the arithmetic: a program is compared with itself in fp64, not with the one that was meant."
)
CLAIMS = {"micro": (8, 8), "size": (4, 4), "whole": (32, 32), "noise": (0.7, 0.72), "difference": (0.2, 3.0), "difference_fixed": (0, 0.03)}
QUIZ = (
    (
        "Eight micro-batches of 4 through a BatchNorm, in fp64. How far is the accumulated gradient from that of the batch of 32?",
        {"1e-16, it is fp64": "difference < 1e-10", "a percent": "1e-10 <= difference < 0.05", "tens of percent": "difference >= 0.2"},
    ),
)


def _gradient(dtype: torch.dtype, norm: nn.Module, parts: int) -> Tensor:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 16), norm, nn.ReLU(), nn.Linear(16, 1)).to(dtype)
    x, y = (torch.randn(32, 16) + 1.0).to(dtype), torch.randn(32, 1).to(dtype)
    for part, target in zip(x.chunk(parts), y.chunk(parts), strict=True):
        ((net(part) - target).square().mean() / parts).backward()
    return net[0].weight.grad.flatten()


def _compare(dtype: torch.dtype, make: type[nn.Module], *args: int) -> dict[str, Tensor]:
    return {"in_parts": _gradient(dtype, make(*args), 8), "whole": _gradient(dtype, make(*args), 1)}


def broken(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _compare(dtype, nn.BatchNorm1d, 16)


def fixed(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _compare(dtype, nn.GroupNorm, 4, 16)


def reference() -> dict[str, Tensor]:
    return _compare(torch.float64, nn.BatchNorm1d, 16)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    def difference(run: dict[str, Tensor]) -> float:
        return float((run["in_parts"] - run["whole"]).norm() / run["whole"].norm())

    return {
        "micro": 8,
        "size": 4,
        "whole": 32,
        "noise": (2 / 4) ** 0.5,
        "difference": difference(reference),
        "difference_fixed": difference(fixed),
    }
