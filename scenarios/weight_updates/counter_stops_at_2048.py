"""A counter that stops at 2048.

An fp16 counter of samples ends at {end:.0f}; {true:.0f} were counted.

What happens
    fp16 has 11 significant bits: from 2048 on its numbers are 2 apart. 2048 + 1 lies halfway between 2048 and 2050 and rounds to
    the even one, 2048. The counter is stuck for good. In bf16 that happens at 256, in fp32 at 16 777 216.

How to recognise it
    A count, an average divided by it, or a schedule that depends on it, freezes at a power of two. Model-wide casts
    (`model.half()`) convert float buffers, and counters are often float buffers.

The repair
    Count in int64, which `.half()` leaves alone, or in fp32. The counter then ends at {end_fixed:.0f}.

When it is no problem
    When the counter is added in large portions: 2048 + 32 is exact.

Sources
    IEEE 754-2019, section 4.3.1 (ties to even).
"""

import torch
from torch import Tensor, nn

DTYPE = "fp16"
LEVEL = "first steps"
COVERS = ("counters", "integers")
EXPECT = (("PL302", "aten.add_"),)
CLAIMS = {"end": (2048, 2048), "true": (2100, 2100), "end_fixed": (2100, 2100)}
QUIZ = (
    (
        "An fp16 counter stands at 2040 and is raised by one sixty times. Where does it end?",
        {"2100": "end == 2100", "2048": "end == 2048", "2099 or 2101": "abs(end - 2100) == 1"},
    ),
)
PICTURE = ("line", "path", "batch")


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.full((), 2040.0))
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        return self.layer(x)


def _count(dtype: torch.dtype, wide_counter: bool) -> dict[str, Tensor]:
    torch.manual_seed(0)
    model = Counting().to(dtype)
    if wide_counter:
        model.seen = model.seen.float()
    path = []
    for _ in range(60):
        model(torch.ones(1, 4, dtype=dtype))
        path.append(model.seen.to(torch.float64, copy=True))
    return {"seen": model.seen.clone(), "path": torch.stack(path)}


def broken(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _count(dtype, wide_counter=False)


def fixed(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _count(dtype, wide_counter=True)


def reference() -> dict[str, Tensor]:
    return _count(torch.float64, wide_counter=False)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    return {"end": float(broken["seen"]), "true": float(reference["seen"]), "end_fixed": float(fixed["seen"])}
