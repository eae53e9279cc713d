"""A static loss scale that is too high.

With a scale of 2^24 every step overflows and is skipped: {taken:.0f} of {steps:.0f} steps are taken, and the loss does not move.

What happens
    A scaled gradient must stay below 65504. Here the largest gradient of an output is {largest:.1e}; times 2^24 = 1.7e7 that is
    {scaled:.1e}, infinity in fp16. The loop does what it should: it looks for infinities, and throws the step away. But its scale
    is a constant, so the next step is thrown away as well, and so is every other one.

How to recognise it
    The loss is a flat line and the weights are bit for bit those of the start. Nothing warns: overflow detection works, that is the
    trouble. Count the steps that were taken, not the iterations.

The repair
    A scale that reacts: halve it when a gradient overflows, and try to double it after many clean steps. `torch.amp.GradScaler`
    does that. Where the scale must be a constant, take it from the window that the audit prints: with 2^10 all {steps:.0f} steps
    are taken here.

When it is no problem
    When the scale is still being found. A dynamic scaler that starts at 2^24 skips about as many steps as there are powers of two
    too many, and then trains.

Sources
    Micikevicius et al. 2018, section 3.2; NVIDIA, Train With Mixed Precision, "Choosing a scaling factor". torch.amp.GradScaler
    documentation.
"""

import torch
from torch import Tensor, nn

DTYPE = "fp16"
LEVEL = "first steps"
COVERS = ("scale too high", "scale window")
EXPECT = (("PL202", "aten._to_copy"),)
CLAIMS = {"taken": (0, 0), "steps": (6, 6), "largest": (0.05, 5.0), "scaled": (65520, 1e8)}
QUIZ = (
    (
        "A loop skips steps whose gradients are not finite and keeps its scale at 2^24. How many of 6 steps does it take?",
        {"none": "taken == 0", "the first is skipped, five are taken": "taken == 5", "all": "taken == 6"},
    ),
)
PICTURE = ("line", "losses", "step")


def _train(dtype: torch.dtype, scale: float) -> dict[str, Tensor]:
    torch.manual_seed(0)
    low = dtype is not torch.float64
    net, x, y = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1)), torch.randn(64, 16), torch.randn(64, 1) + 2.0
    if not low:
        net, x, y = net.double(), x.double(), y.double()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    losses, taken, largest = [], 0, 0.0
    for _ in range(6):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype, enabled=low):
            out = net(x)
        out.retain_grad()
        loss = (out.to(y.dtype) - y).square().mean()
        (loss * scale).backward()
        losses.append(loss.detach())
        largest = max(largest, float(out.grad.abs().max()) / scale)
        if all(bool(torch.isfinite(p.grad).all()) for p in net.parameters()):
            for p in net.parameters():
                p.grad /= scale
            optimizer.step()
            taken += 1
    return {"losses": torch.stack(losses), "taken": torch.tensor(taken), "largest": torch.tensor(largest)}


def broken(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _train(dtype, scale=2.0**24)


def fixed(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _train(dtype, scale=2.0**10)


def reference() -> dict[str, Tensor]:
    return _train(torch.float64, scale=1.0)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    largest = float(reference["largest"])
    return {"taken": float(broken["taken"]), "steps": broken["losses"].numel(), "largest": largest, "scaled": largest * 2.0**24}
