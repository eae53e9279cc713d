"""Healthy: a scaler that skips its first steps.

The first {skipped:.0f} steps have infinite gradients and are skipped, the scale falls from 2^{start:.0f} to 2^{end:.0f}, and then
it trains.

What it looks like
    Overflow in the backward pass, infinite gradient norms, steps that are not taken, a scale that is halved {skipped:.0f} times in
    a row. The beginning of a collapse looks the same.

Why it is fine
    The scaler looks for the largest scale that fits. Its start is too high on purpose; one skip for each octave too many, and the
    weights are untouched by a skipped step. What tells calibration from collapse is the cause: here the exact gradient times the
    scale is above 65504, so halving helps, and the scale settles.

When it would be a problem
    If the gradients stayed infinite at every scale (an overflow in the forward pass, NaN in the weights, stale gradients), if the
    schedule went on meanwhile, or if the run were too short to notice.

Sources
    torch.amp.GradScaler (backoff_factor 0.5). Micikevicius et al. 2018, section 3.2.
"""

import torch
from torch import Tensor, nn

DTYPE = "fp16"
LEVEL = "first steps"
COVERS = ("false alarm", "dynamic scaler")
CLAIMS = {"skipped": (3, 12), "start": (20, 20), "end": (8, 17), "fall": (0.02, 1)}
QUIZ = (
    (
        "The scale starts at 2^20 and the largest gradient overflows. What happens to the weights in the skipped steps?",
        {"they become NaN": "fall != fall", "nothing, and training starts when the scale fits": "fall > 0 and skipped > 0"},
    ),
)
PICTURE = ("line", "log2_scale", "iteration")


def program(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    torch.manual_seed(3)
    low = dtype is not torch.float64
    net, x = nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 2)), torch.randn(32, 12)
    y = 3.0 * torch.randn(32, 2) + 5.0
    if not low:
        net, x, y = net.double(), x.double(), y.double()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, enabled=low)
    scales, losses = [], []
    for _ in range(20):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype, enabled=low):
            out = net(x)
        loss = (out.to(y.dtype) - y).square().mean()
        scaler.scale(loss).backward()
        scales.append(scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
    return {"log2_scale": torch.tensor(scales).log2(), "losses": torch.stack(losses)}


def reference() -> dict[str, Tensor]:
    values = program(torch.float64)
    del values["log2_scale"]  # fp64 needs none
    return values


def numbers(program: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    scales = program["log2_scale"]
    return {
        "skipped": float(scales[0] - scales[-1]),
        "start": float(scales[0]),
        "end": float(scales[-1]),
        "fall": 1 - float(program["losses"][-1] / program["losses"][0]),
    }
