"""Gradients too far apart for any loss scale.

Two parts of a network have gradients {apart:.0f} octaves apart; fp16 has {window:.0f}, so no scale keeps both.

What happens
    From 65504 down to the smallest subnormal 6.0e-8 fp16 spans 40 octaves, 30 of them with all bits. A scale moves that window, it
    does not widen it. The two losses here are summed, and the gradient of the second is 2^45 times that of the first: with a scale
    that suits the first the second overflows, with one that suits the second the first is zero. A dynamic scaler follows the
    ceiling, so it is always the small one that loses.

How to recognise it
    One part of the model (often a late-added head, an auxiliary loss with a tiny weight, an embedding) does not learn in fp16
    whatever the scale. Look at the spread of log2 of the gradients over all layers, not at one norm.

The repair
    Bring the losses to one size before they are summed, or keep the extreme part in fp32, where there are 277 octaves. Here both
    losses have weights of the same order. bf16 would do as well. A scale for each loss also works: each with its own backward pass
    into fp32 gradients.

When it is no problem
    When the small gradients belong to something that need not learn. That is why the audit calls this risky and not broken.

Sources
    Micikevicius et al. 2018, figure 3. Zhao et al. 2019, Adaptive Loss Scaling for Mixed Precision Training, arXiv:1910.12385.
"""

import math

import torch
from torch import Tensor, nn

DTYPE = "fp16"
LEVEL = "expert"
COVERS = ("scale window",)
EXPECT = (("PL409", "aten.mm"),)
VERDICT = "risky"
CLAIMS = {"apart": (40, 50), "window": (39.9, 40)}
QUIZ = (
    (
        "How many octaves are there between the largest and the smallest positive number of fp16?",
        {"30": "window == 30", "40": "39.9 < window < 40.1", "277": "window == 277"},
    ),
)
PICTURE = ("histogram", "gradients", "size")


def _train(dtype: torch.dtype, weight: float) -> dict[str, Tensor]:
    torch.manual_seed(0)
    low = dtype is not torch.float64
    a, b, x = nn.Linear(16, 16), nn.Linear(16, 16), torch.randn(32, 16)
    if not low:
        a, b, x = a.double(), b.double(), x.double()
    optimizer = torch.optim.SGD([*a.parameters(), *b.parameters()], lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=low)
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype, enabled=low):
            one, two = a(x), b(x)
        wide = torch.promote_types(dtype, torch.float32)
        loss = one.to(wide).square().mean() + two.to(wide).square().mean() * weight
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    if low:
        return {"log2_scale": torch.tensor(scaler.get_scale()).log2()}
    return {"gradients": torch.cat([a.weight.grad.flatten(), b.weight.grad.flatten()])}


def broken(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _train(dtype, 2.0**45)


def fixed(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _train(dtype, 4.0)


def reference() -> dict[str, Tensor]:
    return _train(torch.float64, 2.0**45)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    small, large = reference["gradients"].abs().chunk(2)
    fp16 = torch.finfo(torch.float16)
    window = math.log2(fp16.max / (fp16.smallest_normal * fp16.eps))
    return {"apart": float((large.median() / small.median()).log2()), "window": window}
