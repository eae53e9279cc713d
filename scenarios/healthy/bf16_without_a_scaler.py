"""Healthy: bf16 gradients of 1e-20, without a scaler.

Gradients of about {size:.0e} would be zero in fp16 at any sane loss scale; bf16 keeps {kept:.1%} of them, unscaled.

What it looks like
    Gradients {octaves_below_fp16:.0f} octaves below fp16's smallest number, and no GradScaler in sight. Code that was written for
    fp16 has one, and its absence looks like an oversight.

Why it is fine
    bf16 has the 8 exponent bits of fp32: it reaches from 1.2e-38 to 3.4e38. Range is what a loss scale buys, and bf16 has it. What
    it lacks is bits, 8 against 11, and a scale cannot add any: a number is rounded by up to 2^-8 of itself at 1e-20 as at 1.

When it would be a problem
    Never for range, unless the hardware flushes subnormals and the numbers are below 1e-38. A scaler with bf16 is not wrong either:
    powers of two cost nothing, and its check for infinities may be welcome. bf16's troubles are swamped updates, sums, differences,
    counts: see the scenarios on those.

Sources
    Kalamkar et al. 2019, A Study of BFLOAT16 for Deep Learning Training, arXiv:1905.12322.
"""

import torch
from torch import Tensor, nn

DTYPE = "bf16"
LEVEL = "first steps"
COVERS = ("false alarm", "bf16 range")
CLAIMS = {"size": (1e-23, 1e-18), "kept": (0.98, 1.02), "octaves_below_fp16": (35, 60)}
QUIZ = (
    (
        "The loss is multiplied by 1e-18 and nothing is scaled. How much of the gradient survives in bf16?",
        {"nothing": "kept < 0.1", "all but a rounding": "kept > 0.98"},
    ),
)
PICTURE = ("histogram", "gradient", "size")


def program(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    torch.manual_seed(0)
    low = dtype is not torch.float64
    net, x, y = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)), torch.randn(64, 16), torch.randn(64, 4)
    if not low:
        net, x, y = net.double(), x.double(), y.double()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e16)
    with torch.autocast("cpu", dtype, enabled=low):
        out = net(x)
    loss = 1e-18 * (out.to(y.dtype) - y).square().mean()
    loss.backward()
    gradient = net[0].weight.grad.clone()
    optimizer.step()
    return {"loss": loss.detach(), "gradient": gradient}


def reference() -> dict[str, Tensor]:
    return program(torch.float64)


def numbers(program: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    g, exact = program["gradient"], reference["gradient"]
    size = float(exact.abs().median())
    return {
        "size": size,
        "kept": float((g * exact).sum() / exact.square().sum()),
        "octaves_below_fp16": float(torch.log2(torch.tensor(2.0**-24 / size))),
    }
