"""Healthy: zeros after ReLU and dropout.

{zeros:.0%} of the activations and {dead:.0%} of one gradient are exactly zero, and nothing was lost.

What it looks like
    Most of a tensor is zero. Underflow looks the same: zeros where numbers should be.

Why it is fine
    These zeros are exact: ReLU and dropout put them there, in fp64 as well. What tells them from underflow is not their number but
    whether fp64 has a number in that place, and whether those numbers carry weight. Rows of an embedding that do not occur, units
    that are never active, weights of a frozen part: zero gradients that mean zero.

When it would be a problem
    When fp64 has non-zeros there, with a noticeable share of the sum of squares.

Sources
    Srivastava et al. 2014, Dropout. The measure: share of energy flushed, `precisionlab explain PL105`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DTYPE = "fp16"
LEVEL = "first steps"
COVERS = ("false alarm",)
CLAIMS = {"zeros": (0.6, 0.95), "dead": (0.05, 0.5), "error": (0, 0.01)}
QUIZ = (
    (
        "Three quarters of the activations are exactly zero in fp16. How far is the gradient from that of fp64?",
        {"three quarters of it are missing": "error > 0.5", "less than a percent": "error < 0.01"},
    ),
)
PICTURE = ("histogram", "activations", "size")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(32, 64), nn.Linear(64, 4)
        nn.init.constant_(self.first.bias[:16], -20.0)  # units that are never active

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = F.dropout(torch.relu(self.first(x)), 0.5)
        return self.last(h), h


def program(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    torch.manual_seed(0)
    model, x = Net().to(dtype), torch.randn(64, 32).to(dtype)
    out, hidden = model(x)
    F.cross_entropy(out.float() if dtype is not torch.float64 else out, torch.arange(64) % 4).backward()
    return {"activations": hidden.detach(), "gradient": model.first.weight.grad}


def reference() -> dict[str, Tensor]:
    return program(torch.float64)


def numbers(program: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    g, exact = program["gradient"], reference["gradient"]
    return {
        "zeros": float((program["activations"] == 0).double().mean()),
        "dead": float((g == 0).double().mean()),
        "error": abs(1 - float((g * exact).sum() / exact.square().sum())),
    }
