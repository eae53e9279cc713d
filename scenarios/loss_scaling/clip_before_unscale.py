"""Clipping gradients that still carry the loss scale.

`clip_grad_norm_` runs before `unscale_`: the weights move {ratio:.1e} times as far as they should, and the loss stays flat.

What happens
    After `scaler.scale(loss).backward()` every gradient is 2^12 = 4096 times too long, on purpose. `clip_grad_norm_(params, 1.0)`
    sees a norm of {norm:.2g}, shortens it to 1, and `scaler.step` divides by 4096: the step has a length of 2.4e-4 instead of 1.
    Nothing is rounded; fp64 would do the same. The loss scale is a unit, and here a length with it is compared with one without.

How to recognise it
    A logged gradient norm in the tens of thousands, a loss that hardly moves under SGD. Adam hides the factor by its normalisation
    and shows it when the scale changes: then the step size jumps for a thousand steps. The trouble vanishes in bf16, where there is
    no scaler.

The repair
    `scaler.unscale_(optimizer)` once, after the last backward and before clipping; `scaler.step` knows that it was done. Then the
    norm is {norm_fixed:.2g}.

When it is no problem
    When max_norm is multiplied by the scale as well. Or when the norm is only logged.

Sources
    PyTorch, Automatic Mixed Precision examples, "Gradient clipping". Lightning issue 9694; rwth-i6/returnn issue 1590.
"""

import torch
from torch import Tensor, nn

DTYPE = "fp16"
LEVEL = "first steps"
COVERS = ("scale and unscale",)
EXPECT = (("PL402", "clip_grad_norm_"),)
CLAIMS = {"ratio": (1e-4, 1e-3), "norm": (1e4, 1e6), "norm_fixed": (0.2, 20)}
QUIZ = (
    (
        "max_norm is 1, the scale 4096, the true gradient norm about 9. How long is the SGD step (over lr) without unscale_?",
        {"1": "norm < 1", "about 9": "1 <= norm < 100", "1 / 4096": "norm > 1000"},
    ),
)
PICTURE = ("line", "losses", "step")


def _train(dtype: torch.dtype, unscale_first: bool) -> dict[str, Tensor]:
    torch.manual_seed(3)
    low = dtype is not torch.float64
    net, x, y = nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 1)), torch.randn(64, 24), torch.randn(64, 1) + 3.0
    if not low:
        net, x, y = net.double(), x.double(), y.double()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, enabled=low)
    start = net[0].weight.detach().clone()
    losses, norms = [], []
    for _ in range(10):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype, enabled=low):
            out = net(x)
        loss = (out.to(y.dtype) - y).square().mean()
        scaler.scale(loss).backward()
        if unscale_first:
            scaler.unscale_(optimizer)
        norms.append(nn.utils.clip_grad_norm_(net.parameters(), max_norm=1.0))
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
    return {"losses": torch.stack(losses), "norm": norms[0], "moved": (net[0].weight.detach() - start).norm()}


def broken(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _train(dtype, unscale_first=False)


def fixed(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _train(dtype, unscale_first=True)


def reference() -> dict[str, Tensor]:
    return _train(torch.float64, unscale_first=False)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    return {
        "ratio": float(broken["moved"] / fixed["moved"]),
        "norm": float(broken["norm"]),
        "norm_fixed": float(fixed["norm"]),
    }
