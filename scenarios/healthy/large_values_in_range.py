"""Healthy: activations in the tens of thousands in fp16.

The residual stream reaches {largest:.0f}, nearly half of what fp16 holds, and the output is right to {error:.2%}.

What it looks like
    Values in the tens of thousands in a format that ends at 65504. Rules of thumb call that dangerous.

Why it is fine
    Relative precision does not depend on size: fp16 has 11 bits at 30000 as at 1. The scale is taken out by the norm behind it,
    computed in fp32. What counts is headroom, {headroom:.1f} octaves here, and whether anything squares these numbers.

When it would be a problem
    With half an octave of headroom or less (PL104 says so), with a square or a product behind it that is not in fp32, or where
    small numbers are added to the large ones and must survive.

Sources
    IEEE 754-2019: relative spacing is constant within the normal range.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DTYPE = "fp16"
LEVEL = "first steps"
COVERS = ("false alarm", "fp16 ceiling")
CLAIMS = {"largest": (15000, 40000), "error": (0, 0.005), "headroom": (0.6, 2.2)}
QUIZ = (
    (
        "Activations reach nearly half of fp16's largest number. By how much does that raise their relative error?",
        {"a thousandfold": "error > 0.1", "not at all": "error < 0.005"},
    ),
)
PICTURE = ("histogram", "stream", "size")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.head = nn.Linear(32, 64), nn.Linear(64, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        stream = self.wide(x)
        return self.head(F.layer_norm(stream, (64,))), stream


def program(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    torch.manual_seed(0)
    model, x = Net(), torch.randn(64, 32)
    with torch.no_grad():
        model.wide.weight.mul_(11000.0)
        out, stream = model.to(dtype)(x.to(dtype))
    return {"out": out, "stream": stream}


def reference() -> dict[str, Tensor]:
    return program(torch.float64)


def numbers(program: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    largest = program["stream"].abs().max()
    return {
        "largest": float(largest),
        "error": float((program["out"] - reference["out"]).norm() / reference["out"].norm()),
        "headroom": float((65504 / largest).log2()),
    }
