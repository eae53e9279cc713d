"""Healthy: bf16 weights that stand still beside fp32 masters.

In a typical step {frozen:.1%} of the bf16 weights do not change, and the training is right: the masters move.

What it looks like
    The weights that the model uses are bit for bit the same after the step, for many steps. That is what swamped updates look like.

Why it is fine
    The step is added to an fp32 master copy, where it is not lost; the bf16 copy changes when the masters have moved by half a bf16
    step. Over {steps:.0f} steps the masters cover {travelled:.1%} of the way that fp64 takes. An update is lost only where the sum
    of all updates is.

When it would be a problem
    If the masters were made anew from the bf16 weights in each step, or after each resume, or if the optimizer held the bf16
    weights.

Sources
    Micikevicius et al. 2018, section 3.1.
"""

import torch
from torch import Tensor, nn

DTYPE = "bf16"
LEVEL = "first steps"
COVERS = ("false alarm", "bf16 weights", "swamped update")
CLAIMS = {"frozen": (0.5, 1.0), "steps": (60, 60), "travelled": (0.9, 1.1)}
QUIZ = (
    (
        "Small steps: most bf16 weights do not change in a step. How far do their fp32 masters get, compared with fp64?",
        {"nowhere": "travelled < 0.1", "half of the way": "0.1 < travelled < 0.9", "as far": "travelled >= 0.9"},
    ),
)
PICTURE = ("line", "distances", "step (how far the masters went)")


def program(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    torch.manual_seed(105)
    wide = torch.promote_types(dtype, torch.float32)
    model, x = nn.Linear(16, 16, bias=False), torch.randn(256, 16).bfloat16()
    with torch.no_grad():
        model.weight.add_(torch.sign(model.weight))
        y = x.float() @ (model.weight + 0.05 * torch.randn(16, 16)).t()
    model, x, y = model.to(dtype), x.to(dtype), y.to(wide)
    master = nn.Parameter(model.weight.detach().to(wide))
    optimizer = torch.optim.SGD([master], lr=1e-2)
    start, frozen, distances = master.detach().clone(), [], []
    for _ in range(60):
        model.zero_grad()
        (model(x).to(wide) - y).square().mean().backward()
        master.grad = model.weight.grad.to(wide)
        optimizer.step()
        with torch.no_grad():
            new = master.to(dtype)
            frozen.append((new == model.weight).double().mean())
            model.weight.copy_(new)
        distances.append((master.detach() - start).double().norm())
    return {"frozen": torch.stack(frozen), "distances": torch.stack(distances)}


def reference() -> dict[str, Tensor]:
    return program(torch.float64)


def numbers(program: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    return {
        "frozen": float(program["frozen"].median()),
        "steps": program["distances"].numel(),
        "travelled": float(program["distances"][-1] / reference["distances"][-1]),
    }
