"""A schedule that steps on skipped iterations.

The scaler skips {skipped:.0f} iterations while it calibrates; the schedule counts them, and the run gets {share:.0%} of its
learning rate.

What happens
    `scaler.step` skips silently. `scheduler.step()` behind it does not know. Starting at 65536 with large targets the scaler needs
    {skipped:.0f} skips to find its scale, and a linear decay over 20 steps is by then half over. The sum of the learning rates of
    the steps that were really taken is {share:.0%} of what was planned, and a warm-up can be skipped altogether.

How to recognise it
    PyTorch warns only in the simplest case ("lr_scheduler.step() before optimizer.step()"), when the very first step is skipped.
    Otherwise only a plot of the rate against the steps that were taken shows it.

The repair
    Step the schedule only when the scale did not fall: `if scaler.get_scale() >= before: scheduler.step()`.

When it is no problem
    With thousands of steps and a handful of skips. The audit asks how much of the base rate the skipped iterations used up: above
    10 % it is a finding.

Sources
    pytorch/pytorch issue 55585; Lightning issue 18828; huggingface/transformers issue 11144.
"""

import torch
from torch import Tensor, nn

DTYPE = "fp16"
LEVEL = "practitioner"
COVERS = ("skipped steps", "dynamic scaler")
EXPECT = (("PL406", "lr_scheduler.step"),)
CLAIMS = {"skipped": (5, 15), "share": (0.05, 0.6)}
QUIZ = (
    (
        "A decay over 20 iterations; the scaler skips about half of them at the start. Which share of the planned sum of rates is used?",
        {"all of it": "share > 0.95", "less than 60 %": "share < 0.6"},
    ),
)
PICTURE = ("line", "rates", "step that was taken")


def _train(dtype: torch.dtype, guarded: bool) -> dict[str, Tensor]:
    torch.manual_seed(35)
    low = dtype is not torch.float64
    net, x = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)), torch.randn(32, 16)
    y = 400.0 * x[:, :1]
    if not low:
        net, x, y = net.double(), x.double(), y.double()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-5)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=20)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, enabled=low)
    rates, skipped = [], 0
    while optimizer.param_groups[0]["lr"] > 0:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype, enabled=low):
            out = net(x)
        loss = (out.to(y.dtype) - y).square().mean()
        scaler.scale(loss).backward()
        before, rate = scaler.get_scale(), optimizer.param_groups[0]["lr"]
        scaler.step(optimizer)
        scaler.update()
        taken = scaler.get_scale() >= before
        skipped += not taken
        rates += [rate] if taken else []
        if taken or not guarded:
            schedule.step()
    return {"rates": torch.tensor(rates), "skipped": torch.tensor(skipped), "loss": loss.detach()}


def broken(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _train(dtype, guarded=False)


def fixed(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _train(dtype, guarded=True)


def reference() -> dict[str, Tensor]:
    return _train(torch.float64, guarded=True)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    return {"skipped": float(broken["skipped"]), "share": float(broken["rates"].sum() / reference["rates"].sum())}
