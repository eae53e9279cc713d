"""A loss scale that collapses.

Gradients are cleared only after a successful step. The first overflow stays in `.grad`, and the scale falls from 2^{start:.0f} to
2^{end:.0f}.

What happens
    A dynamic scaler answers a non-finite gradient by halving its scale and skipping the step. That is a remedy only if the next
    gradient is computed afresh. Here `zero_grad` runs only when the step was taken: after the first overflow `.grad` holds
    infinity, the next backward adds to it, infinity plus g is infinity, and the scale halves again. It never comes back: a scaler
    doubles once in 2000 clean steps, and there are none.

How to recognise it
    A logged scale that falls by a factor of two in every iteration. Below 1 it is certain: no scale that small is ever needed. The
    loss stays finite, the forward pass is fine. The same picture comes from NaN in the weights, or an infinity made in the forward
    pass, where the scale is not the cause at all.

The repair
    Clear gradients in every iteration, skipped or not. With that the same run overflows {skips_fixed:.0f} times, finds its scale
    and trains: the loss falls by {fall_fixed:.0%}.

When it is no problem
    Ten or so skips at the start from 65536 or more. That is calibration.

Sources
    PaddlePaddle issue 67895; NVIDIA/apex issue 834. torch.amp.GradScaler: backoff_factor 0.5, growth_interval 2000.
"""

import torch
from torch import Tensor, nn

DTYPE = "fp16"
LEVEL = "practitioner"
COVERS = ("scale collapse", "dynamic scaler")
EXPECT = (("PL405", "aten.add_"),)
CLAIMS = {"start": (18, 18), "end": (-30, -10), "skips_fixed": (1, 10), "fall_fixed": (0.1, 1.0)}
QUIZ = (
    (
        "zero_grad is called only when the step was taken. The first gradient overflows. What does the scale do in the next 40 iterations?",
        {"it halves a few times until gradients fit": "end > 0", "it halves every time": "end <= -10"},
    ),
)
PICTURE = ("line", "log2_scale", "iteration")


def _train(dtype: torch.dtype, always_clear: bool) -> dict[str, Tensor]:
    torch.manual_seed(1)
    low = dtype is not torch.float64
    net, x = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)), torch.randn(64, 16)
    y = 30.0 * x[:, :1] + 5.0
    if not low:
        net, x, y = net.double(), x.double(), y.double()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**18, enabled=low)
    scales, losses = [], []
    for _ in range(40):
        with torch.autocast("cpu", dtype, enabled=low):
            out = net(x)
        loss = (out.to(y.dtype) - y).square().mean()
        scaler.scale(loss).backward()
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if always_clear or scaler.get_scale() >= before:
            optimizer.zero_grad()
        scales.append(before)
        losses.append(loss.detach())
    return {"log2_scale": torch.tensor(scales).log2(), "loss": losses[-1], "first_loss": losses[0]}


def broken(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _train(dtype, always_clear=False)


def fixed(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _train(dtype, always_clear=True)


def reference() -> dict[str, Tensor]:
    values = _train(torch.float64, always_clear=True)
    del values["log2_scale"]  # fp64 needs none
    return values


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    return {
        "start": float(broken["log2_scale"][0]),
        "end": float(broken["log2_scale"][-1]),
        "skips_fixed": float(fixed["log2_scale"][0] - fixed["log2_scale"][-1]),
        "fall_fixed": 1 - float(fixed["loss"] / fixed["first_loss"]),
    }
