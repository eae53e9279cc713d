"""A loss scale that is too low.

The loss is scaled by 8, the gradients are still zero in fp16: {lost:.0%} of those of the first layer.

What happens
    A gradient g survives in fp16 if S g is at least 2^-24 = 6.0e-8, and keeps all its bits if S g is at least 2^-14 = 6.1e-5. With
    gradients of about 1.5e-9 a scale of 8 lifts them to 1.2e-8, still below half the smallest number that fp16 has. What the
    backward pass then multiplies by weights below 1 is zero again, so the first layer keeps {kept:.0%} of its gradient, the layers
    above more.

    The formula to choose S by: S at least 2^-14 / q, with q the gradient size below which you can afford losses, and at most 65504
    / g_max.

How to recognise it
    Training works but lags behind fp32 or bf16, most in early layers. The share of exact zeros among the gradients, `(g ==
    0).float().mean()`, falls when the scale is raised: then it was too low. A dynamic scaler never tells, since it reacts to
    overflow only; after a collapse it can stay too low for thousands of steps.

The repair
    Raise the scale until the largest gradient is near the top of the format: 65536 here, and the first layer keeps
    {kept_fixed:.1%}. The audit prints the scale that it measured from the gradients themselves.

When it is no problem
    When what is lost is immaterial. Micikevicius et al. needed a factor of 8 only for an SSD detector, although 67 % of its
    activation gradients were zero: what mattered lay just below the floor.

Sources
    Micikevicius et al. 2018, Mixed Precision Training, section 3.2. torch.amp.GradScaler documentation.
"""

import torch
from torch import Tensor, nn

DTYPE = "fp16"
LEVEL = "practitioner"
COVERS = ("scale too low", "scale window")
EXPECT = (("PL201", "0.weight"),)
CLAIMS = {"lost": (0.3, 1.0), "kept": (0.0, 0.6), "kept_fixed": (0.99, 1.01)}
QUIZ = (
    (
        "Output gradients of 1.5e-9, a loss scale of 8, a floor of 6e-8. How much of the first layer's gradient arrives?",
        {
            "all of it: fp32 parameters have fp32 gradients": "kept > 0.95",
            "most of it": "0.6 < kept <= 0.95",
            "less than 60 %": "kept <= 0.6",
        },
    ),
)
PICTURE = ("histogram", "gradient", "size")


def _train(dtype: torch.dtype, scale: float) -> dict[str, Tensor]:
    torch.manual_seed(0)
    low = dtype is not torch.float64
    net, x, y = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 8)), torch.randn(256, 16), torch.randn(256, 8)
    if not low:
        net, x, y = net.double(), x.double(), y.double()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    with torch.autocast("cpu", dtype, enabled=low):
        out = net(x)
    loss = 1.5e-6 * (out.to(y.dtype) - y).square().mean()
    (loss * scale).backward()
    for p in net.parameters():
        p.grad /= scale
    gradient = net[0].weight.grad.clone()
    optimizer.step()
    return {"loss": loss, "gradient": gradient}


def broken(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _train(dtype, scale=8.0)


def fixed(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _train(dtype, scale=65536.0)


def reference() -> dict[str, Tensor]:
    return _train(torch.float64, scale=1.0)


def _kept(gradient: Tensor, exact: Tensor) -> float:
    return float((gradient * exact).sum() / exact.square().sum())


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    return {
        "lost": float((broken["gradient"] == 0).double().mean()),
        "kept": _kept(broken["gradient"], reference["gradient"]),
        "kept_fixed": _kept(fixed["gradient"], reference["gradient"]),
    }
