"""A recurrent state kept in bf16.

A cache rounds the state of a gated recurrence to bf16 after every token: after {tokens:.0f} tokens the slowest channel has
{reached:.0%} of its true value.

What happens
    h = d h + (1 - d) u moves the state by (1 - d)(u - h), with d = 0.999 by a thousandth of the distance. The arithmetic of a step
    is fp32, but between steps the state lies in a bf16 cache, and a change of less than half a bf16 step is rounded away when it is
    stored. Fast channels (d = 0.9) are fine; slow ones, those that carry the long memory, stop where the change equals half a step.

How to recognise it
    Long contexts get worse while short ones are fine; the last state of a long prompt differs from one computed in a single scan.
    Caches of linear attention, state-space models, running normalisers.

The repair
    Keep the state in fp32: it is small beside the weights. Then {reached_fixed:.1%} is reached.

When it is no problem
    A key-value cache that is written once and read: each entry is rounded once, and errors do not accumulate.

Sources
    Gu & Dao 2023, Mamba (fp32 for the recurrence); vllm-project/vllm issue 13466.
"""

import torch
from torch import Tensor, nn

DTYPE = "bf16"
LEVEL = "practitioner"
COVERS = ("kv cache",)
EXPECT = (("PL503", "aten._to_copy"),)
CLAIMS = {"tokens": (1000, 1000), "reached": (0.1, 0.9), "reached_fixed": (0.97, 1.03)}
QUIZ = (
    (
        "A state with decay 0.999 is stored in bf16 after each of 1000 tokens. Does it follow its input?",
        {"yes, with noise": "reached > 0.95", "only part of the way": "0.05 < reached < 0.95", "not at all": "reached < 0.05"},
    ),
)
PICTURE = ("line", "path", "token (slowest channel)")


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("decay", torch.linspace(0.98, 0.999, 16))

    def forward(self, h: Tensor, u: Tensor) -> Tensor:
        return torch.lerp(u.to(self.decay.dtype), h.to(self.decay.dtype), self.decay).to(h.dtype)


def _scan(dtype: torch.dtype, cache: torch.dtype) -> dict[str, Tensor]:
    torch.manual_seed(42)
    cell, inputs = Cell().to(torch.promote_types(dtype, torch.float32)), (1.0 + 0.2 * torch.randn(1000, 16)).bfloat16().to(dtype)
    h, path = torch.zeros(16, dtype=cache), []
    for u in inputs:
        h = cell(h, u)
        path.append(h[-1].double())
    return {"state": h, "path": torch.stack(path)}


def broken(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _scan(dtype, dtype)


def fixed(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _scan(dtype, torch.float32)


def reference() -> dict[str, Tensor]:
    return _scan(torch.float64, torch.float64)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    exact = float(reference["path"][-1])
    return {"tokens": 1000, "reached": float(broken["path"][-1]) / exact, "reached_fixed": float(fixed["path"][-1]) / exact}
