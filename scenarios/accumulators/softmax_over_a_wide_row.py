"""The statistics of a softmax over a wide row.

The maximum is subtracted, each exponential is at most 1, and the log-partition is still infinite: {states:.0f} of them are added.

What happens
    log sum exp(x - max) + max keeps every term in range, not their number. With {states:.0f} nearly equal scores the sum is about
    {total:.0f}, above 65504. log(inf) = inf, the true value is {exact:.2f}. torch's `logsumexp` in fp16 stores that sum in fp16;
    its `softmax` and `log_softmax` keep their statistics in fp32 and are safe. The same holds for the mean and the variance of a
    LayerNorm that is written out in half.

How to recognise it
    Inf or zero gradients for large vocabularies, lattices, contrastive batches, never for small ones; fine after training has made
    the distribution peaked.

The repair
    Take the statistic in fp32 and round the result: {fixed:.2f}. Or use the fused loss, which does.

When it is no problem
    Peaked distributions: the sum of the exponentials is then close to 1, whatever the width.

Sources
    google-research/last issue 43 (lattices in half). Blanchard, Higham & Higham 2021, Accurately computing the log-sum-exp and
    softmax functions.
"""

import torch
from torch import Tensor, nn

DTYPE = "fp16"
LEVEL = "practitioner"
COVERS = ("softmax statistics",)
EXPECT = (("PL102", "aten.logsumexp"),)
CLAIMS = {"states": (70000, 70000), "total": (65520, 71000), "exact": (10, 13), "fixed": (10, 13)}
QUIZ = (
    (
        "Each term is exp(x - max), at most 1. When does the fp16 sum of n of them overflow?",
        {"never: the maximum was subtracted": "total < 1", "when about 65520 of them are close to 1": "total > 65504"},
    ),
)


class Scorer(nn.Module):
    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.states, self.wide = nn.Linear(4, 70000, bias=False), wide
        nn.init.uniform_(self.states.weight, -0.005, 0.005)

    def forward(self, context: Tensor) -> Tensor:
        scores = self.states(context)
        return torch.logsumexp(scores.float() if self.wide else scores, -1).to(scores.dtype)


def _partition(dtype: torch.dtype, wide: bool) -> dict[str, Tensor]:
    torch.manual_seed(31)
    model, context = Scorer(wide).to(dtype), torch.randn(1, 4).to(dtype)
    out = model(context)
    out.sum().backward()
    scores = model.states(context).detach().double()
    return {
        "log_partition": out.detach(),
        "gradient_sum": model.states.weight.grad.double().abs().sum(),
        "total": (scores - scores.max()).exp().sum(),
    }


def broken(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _partition(dtype, wide=False)


def fixed(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _partition(dtype, wide=True)


def reference() -> dict[str, Tensor]:
    return _partition(torch.float64, wide=False)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    return {
        "states": 70000,
        "total": float(reference["total"]),
        "exact": float(reference["log_partition"]),
        "fixed": float(fixed["log_partition"]),
    }
