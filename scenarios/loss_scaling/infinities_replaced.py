"""Overflow detection that somebody defeated.

`nan_to_num_` on the gradients hides the overflow from the scaler, and {zeroed:.0%} of the last layer's gradient is zero, the
largest part.

What happens
    A dynamic scaler works by overflow: it raises the scale until a gradient is infinite, skips that step, and halves. Here a
    well-meant line replaces infinities and NaN by zero before `scaler.step`. The scaler sees only finite gradients, keeps a scale
    of 2^16 that is too high, and takes steps in which whatever overflowed is zero: the largest, most important entries.

How to recognise it
    A scale that never falls, whatever its initial value. Gradients of which the largest entries are exactly zero. The line itself:
    `nan_to_num`, `torch.where(isfinite(g), g, 0)`, or a clip by value before `unscale_`.

The repair
    Let infinities reach `scaler.step`. One skipped step costs nothing; a step in a wrong direction does. With the line removed the
    scaler goes down to 2^{scale_end_fixed:.0f}, where everything fits.

When it is no problem
    After `unscale_`, on a step that the scaler has already decided to skip, replacing values changes nothing.

Sources
    Micikevicius et al. 2018, section 3.2 (skip the update when an overflow is detected). torch.amp.GradScaler documentation.
"""

import torch
from torch import Tensor, nn

DTYPE = "fp16"
LEVEL = "expert"
COVERS = ("scale too high", "dynamic scaler")
EXPECT = (("PL405", "aten.nan_to_num_"), ("PL202", "aten.mm"))
CLAIMS = {"zeroed": (0.05, 0.5), "scale_end": (16, 16), "scale_end_fixed": (8, 15)}
QUIZ = (
    (
        "Infinite gradients are replaced by zero before scaler.step. Where does a scale that starts at 2^16 go?",
        {"down until everything fits": "scale_end < 16", "nowhere": "scale_end == 16", "up": "scale_end > 16"},
    ),
)
PICTURE = ("line", "log2_scale", "iteration")


def _train(dtype: torch.dtype, replace: bool) -> dict[str, Tensor]:
    torch.manual_seed(3)
    low = dtype is not torch.float64
    net, x = nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 2)), torch.randn(32, 12)
    y = 3.0 * torch.randn(32, 2) + 5.0
    if not low:
        net, x, y = net.double(), x.double(), y.double()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, enabled=low)
    scales, first = [], None
    for _ in range(12):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype, enabled=low):
            out = net(x)
        loss = (out.to(y.dtype) - y).square().mean()
        scaler.scale(loss).backward()
        if replace:
            for p in net.parameters():
                p.grad.nan_to_num_(0.0, 0.0, 0.0)
        first = net[2].weight.grad.clone() if first is None else first
        scales.append(scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()
    return {"log2_scale": torch.tensor(scales).log2(), "zeros": (first == 0).double().mean(), "loss": loss.detach()}


def broken(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _train(dtype, replace=True)


def fixed(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _train(dtype, replace=False)


def reference() -> dict[str, Tensor]:
    values = _train(torch.float64, replace=False)
    del values["log2_scale"]  # fp64 needs none
    return values


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    return {
        "zeroed": float(broken["zeros"]),
        "scale_end": float(broken["log2_scale"][-1]),
        "scale_end_fixed": float(fixed["log2_scale"][-1]),
    }
