"""Dividing by the loss scale twice.

The gradients are divided by hand and again by the scaler: steps are {ratio:.1e} times as long as they should be.

What happens
    `scaler.step` divides gradients by the scale unless `scaler.unscale_` has been called. It cannot know that somebody divided them
    by hand. Two divisions by 2^12 = 4096 leave 1/4096 of the step. Every number is finite and exact, since the factors are powers
    of two.

How to recognise it
    A learning rate that has to be raised by orders of magnitude to see any progress, in fp16 only. Under Adam: a run that looks
    normal until the scale doubles.

The repair
    Divide once: `scaler.unscale_(optimizer)` in the place of the division by hand. The scale is a unit that gradients carry from
    the backward pass on; clipping, weight decay, noise and the norm must see gradients without it, and the optimizer exactly once.

When it is no problem
    Gradients that are divided by hand and given to `optimizer.step`, without the scaler, and with a check for infinities. That is
    what a hand-written loop does.

Sources
    PyTorch, Automatic Mixed Precision examples, "Working with unscaled gradients".
"""

import torch
from torch import Tensor, nn

DTYPE = "fp16"
LEVEL = "practitioner"
COVERS = ("scale and unscale",)
EXPECT = (("PL403", "aten.div_"),)
CLAIMS = {"ratio": (1e-4, 1e-3)}
QUIZ = (
    (
        "The scale is 4096; gradients are divided by it by hand, then scaler.step runs. How long is the step?",
        {"4096 times too short": "ratio < 1e-3", "right": "0.5 < ratio < 2", "4096 times too long": "ratio > 1000"},
    ),
)
PICTURE = ("line", "losses", "step")


def _train(dtype: torch.dtype, by_hand: bool) -> dict[str, Tensor]:
    torch.manual_seed(3)
    low = dtype is not torch.float64
    net, x, y = nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 2)), torch.randn(32, 12), torch.randn(32, 2) + 2.0
    if not low:
        net, x, y = net.double(), x.double(), y.double()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=4096.0, enabled=low)
    start = net[0].weight.detach().clone()
    losses = []
    for _ in range(6):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype, enabled=low):
            out = net(x)
        loss = (out.to(y.dtype) - y).square().mean()
        scaler.scale(loss).backward()
        if by_hand:
            for p in net.parameters():
                p.grad /= scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
    return {"losses": torch.stack(losses), "moved": (net[0].weight.detach() - start).norm()}


def broken(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _train(dtype, by_hand=True)


def fixed(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _train(dtype, by_hand=False)


def reference() -> dict[str, Tensor]:
    return _train(torch.float64, by_hand=False)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    return {"ratio": float(broken["moved"] / reference["moved"])}
