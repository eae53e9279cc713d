"""An average of weights that stands still.

An EMA with decay 0.999 kept in bf16: after {steps:.0f} steps it has followed {followed:.1%} of what it should have.

What happens
    ema + 0.001 * (w - ema) changes the average by a thousandth of the distance. bf16 needs a change of 1/512 to 1/256 of the value
    to move at all. So the average moves only where the weight is three to five times the average, and otherwise is a copy of the
    start. It is not off by a rounding error: its error is its whole displacement, though its relative error is small, which is why
    comparing values shows nothing.

How to recognise it
    The EMA model is as good as the model at the step where the EMA was made, and never gets better. Compare distances: `(ema -
    start).norm() / (w - start).norm()`.

The repair
    Keep the average in fp32, and cast a copy when it is used. With decay d the format needs about log2(1 / (1 - d)) bits more than
    the weights' movement: 10 for 0.999.

When it is no problem
    Short averages: with a decay of 0.9 and weights that move by percents, bf16 follows.

Sources
    d8ahazard/sd_dreambooth_extension issue 1415; OpenNMT-py issue 1294.
"""

import torch
from torch import Tensor, nn

DTYPE = "bf16"
LEVEL = "practitioner"
COVERS = ("ema",)
EXPECT = (("PL302", "aten.lerp_"),)
CLAIMS = {"steps": (64, 64), "followed": (-0.05, 0.3)}
QUIZ = (
    (
        "decay 0.999, an average in bf16, weights that move by a few percent. What does the average do?",
        {"it follows with some noise": "followed > 0.5", "it hardly moves": "followed <= 0.3"},
    ),
)
PICTURE = ("line", "distances", "step (distance of the average from its start)")


def _train(dtype: torch.dtype, average: torch.dtype) -> dict[str, Tensor]:
    torch.manual_seed(14)
    wide = torch.promote_types(dtype, torch.float32)
    net = nn.Linear(16, 16).to(wide)
    with torch.no_grad():
        net.weight.add_(0.5)
    x, y = torch.randn(64, 16).to(wide), torch.randn(64, 16).to(wide)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    ema = net.weight.detach().to(average)
    start = ema.to(torch.float64, copy=True)
    distances = []
    for _ in range(64):
        optimizer.zero_grad()
        (net(x) - y).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            ema.lerp_(net.weight.to(average), 1e-3)
        distances.append((ema.double() - start).norm())
    return {"average": ema.clone(), "distances": torch.stack(distances)}


def broken(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _train(dtype, dtype)


def fixed(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _train(dtype, torch.float32)


def reference() -> dict[str, Tensor]:
    return _train(torch.float64, torch.float64)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    return {"steps": broken["distances"].numel(), "followed": float(broken["distances"][-1] / reference["distances"][-1])}
