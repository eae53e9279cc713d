"""A resumed run whose scaler starts anew.

The optimizer is loaded from a checkpoint, the scaler is not: the first {lost:.0f} steps after the resume are thrown away.

What happens
    The state of a `GradScaler` is its scale and how many clean steps it has seen. Not restored, it starts at its initial value,
    2^28 here, although the run had settled at 2^12. It has to find the way down by skipping a step for every octave. The optimizer,
    the schedule and the data go on counting: the learning rate belongs to steps that were never taken.

How to recognise it
    After a resume the scale in the log jumps up and comes down in halves; the loss is flat for as long. Harmless with 65536 against
    32768; with a large initial scale or many restarts it is a share of the training.

The repair
    Save `scaler.state_dict()` beside the optimizer's and load it. Then {lost_fixed:.0f} steps are lost.

When it is no problem
    When the initial scale is about what the run had settled at, or when resumes are rare: a few lost steps are nothing.

Sources
    PyTorch, Automatic Mixed Precision recipe, "Saving/Resuming".
"""

import torch
from torch import Tensor, nn

DTYPE = "fp16"
LEVEL = "practitioner"
COVERS = ("scaler state",)
EXPECT = (("PL401", "GradScaler.step"),)
CLAIMS = {"lost": (11, 20), "lost_fixed": (0, 0)}
QUIZ = (
    (
        "The run had settled at a scale of 2^12; a new scaler starts at 2^28. How many steps does it lose?",
        {"none, it is dynamic": "lost == 0", "one": "lost == 1", "one for each octave": "lost > 10"},
    ),
)
PICTURE = ("line", "log2_scale", "iteration after the resume")


def _resume(dtype: torch.dtype, with_scaler: bool) -> dict[str, Tensor]:
    torch.manual_seed(3)
    low = dtype is not torch.float64
    net, x = nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 2)), torch.randn(32, 12)
    y = 3.0 * torch.randn(32, 2) + 5.0
    if not low:
        net, x, y = net.double(), x.double(), y.double()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
    past = {"step": torch.tensor(5000.0)}
    state = {i: {**past, "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.ones_like(p)} for i, p in enumerate(net.parameters())}
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**28, enabled=low)
    if with_scaler and low:
        scaler.load_state_dict({**scaler.state_dict(), "scale": 2.0**12})
    scales = []
    for _ in range(24):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype, enabled=low):
            out = net(x)
        loss = (out.to(y.dtype) - y).square().mean()
        scaler.scale(loss).backward()
        scales.append(scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()
    return {"log2_scale": torch.tensor(scales).log2(), "loss": loss.detach()}


def broken(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _resume(dtype, with_scaler=False)


def fixed(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _resume(dtype, with_scaler=True)


def reference() -> dict[str, Tensor]:
    values = _resume(torch.float64, with_scaler=True)
    del values["log2_scale"]  # fp64 needs none
    return values


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    def lost(run: dict[str, Tensor]) -> float:
        return float(run["log2_scale"][0] - run["log2_scale"][-1])

    return {"lost": lost(broken), "lost_fixed": lost(fixed)}
