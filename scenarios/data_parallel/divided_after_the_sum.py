"""Summed first, divided afterwards.

{ranks:.0f} ranks have finite gradients of about {each:.0f}; their fp16 sum is infinite, their mean would be {mean:.0f}.

What happens
    An average can be computed as (sum g) / n or as sum (g / n). In fp16 the first overflows when n g passes 65504, the second loses
    small gradients when g / n falls below 6e-8. With {ranks:.0f} ranks the numbers in between need 8 octaves more room than the
    result.

How to recognise it
    Every rank logs finite gradients, the reduced gradient is inf, the scaler skips. Adding nodes makes it worse; halving the loss
    scale helps, until gradients underflow.

The repair
    Divide in two parts, by sqrt(n) before the sum and by sqrt(n) after it: half of the octaves at each end. Here the largest
    partial sum is then {peak:.0f}. Or reduce in fp32 or bf16.

When it is no problem
    Few ranks, or a loss scale that leaves log2(n) octaves of headroom.

Sources
    horovod issue 1699; facebookresearch/fairscale issue 565 (gradient_predivide_factor).
"""

import torch
from torch import Tensor, nn

DTYPE = "fp16"
LEVEL = "practitioner"
COVERS = ("divide and sum",)
EXPECT = (("PL101", "aten.add"),)
CLAIMS = {"ranks": (256, 256), "each": (256, 5000), "mean": (256, 5000), "peak": (1000, 65504)}
QUIZ = (
    (
        "256 ranks, gradients of about 1000, summed in fp16 and divided by 256 afterwards. How large may a gradient be at most?",
        {"65504": "each > 65504", "about 256": "each * 256 > 65504 and each < 65504"},
    ),
)
PICTURE = ("line", "path", "rank (partial sum)")


def _rank(rank: int, dtype: torch.dtype) -> Tensor:
    torch.manual_seed(20)
    net = nn.Linear(8, 1).to(dtype)
    x = (torch.rand(4, 8, generator=torch.Generator().manual_seed(rank)) + 0.5).to(dtype)
    (64.0 * (net(x) - 7.0).square().mean()).backward()
    return net.weight.grad.flatten()


def _reduce(dtype: torch.dtype, before: float) -> dict[str, Tensor]:
    gradients = [_rank(rank, dtype) for rank in range(256)]
    total = gradients[0] / before
    path = [total[0].double()]
    for gradient in gradients[1:]:
        total = total + gradient / before
        path.append(total[0].double())
    return {"mean": total / (256 / before), "first_rank": gradients[0], "path": torch.stack(path)}


def broken(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _reduce(dtype, 1.0)


def fixed(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _reduce(dtype, 16.0)


def reference() -> dict[str, Tensor]:
    return _reduce(torch.float64, 1.0)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    return {
        "ranks": 256,
        "each": float(broken["first_rank"].abs().mean()),
        "mean": float(reference["mean"].abs().mean()),
        "peak": float(fixed["path"].abs().max()),
    }
