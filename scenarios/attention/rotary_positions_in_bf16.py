"""Rotary positions in bf16.

Of {positions:.0f} positions bf16 tells {distinct:.0f} apart: the score between tokens 7 apart depends on where they stand, by up to
{wobble:.2f}.

What happens
    bf16 holds every integer up to 256 only. Positions 257, 259, ... become their even neighbours, above 512 multiples of 4, near
    4096 of 16. Rotary encoding multiplies the position by frequencies from 1 down to 1e-4 and takes sine and cosine: a position
    that is off by 8 turns the fastest pair by 8 radians. Relative encoding rests on cos(a - b) = the same for equal distances; with
    rounded positions it is not.

How to recognise it
    Good on short prompts, worse with every doubling beyond 256 tokens, in bf16 only. Print `positions.unique().numel()`.

The repair
    Keep positions and angles in fp32 and round sine and cosine. Their errors of 2^-9 do not grow with position: the score varies by
    {wobble_fixed:.2f}.

When it is no problem
    Sequences up to 256 (2048 in fp16), or position ids used as integers to index a table.

Sources
    Su et al. 2021, RoFormer; Wang et al. 2024, When Precision Meets Position: BFloat16 Breaks Down RoPE in Long-Context Training,
    arXiv:2411.13476.
"""

import torch
from torch import Tensor

DTYPE = "bf16"
LEVEL = "practitioner"
COVERS = ("rope positions", "integers")
EXPECT = (("PL106", "aten._to_copy"),)
CLAIMS = {"positions": (4096, 4096), "distinct": (769, 769), "wobble": (0.3, 10), "wobble_fixed": (0, 0.2)}
QUIZ = (
    (
        "How many different numbers are there among the positions 0 to 4095 in bf16?",
        {"4096": "distinct == 4096", "2048": "distinct == 2048", "769": "distinct == 769", "256": "distinct == 256"},
    ),
)
PICTURE = ("line", "scores", "position of the query (key 7 tokens before)")


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.cat([even * cos - odd * sin, even * sin + odd * cos], -1)


def _scores(dtype: torch.dtype, wide: bool) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    positions = torch.arange(4096).to(torch.promote_types(dtype, torch.float32) if wide else dtype)
    exponents = torch.arange(0, 32, 2, dtype=torch.float64) / 32
    angles = positions[:, None] * (10000.0**-exponents).to(positions.dtype)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    q, k = torch.randn(2, 32, generator=generator).to(dtype)
    scores = (_rotate(q, cos[7:], sin[7:]) * _rotate(k, cos[:-7], sin[:-7])).to(torch.promote_types(dtype, torch.float32)).sum(-1)
    return {"scores": scores, "positions": positions}


def broken(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _scores(dtype, wide=False)


def fixed(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _scores(dtype, wide=True)


def reference() -> dict[str, Tensor]:
    return _scores(torch.float64, wide=False)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    def wobble(run: dict[str, Tensor]) -> float:
        return float((run["scores"] - reference["scores"].mean()).abs().max())

    return {
        "positions": broken["positions"].numel(),
        "distinct": broken["positions"].unique().numel(),
        "wobble": wobble(broken),
        "wobble_fixed": wobble(fixed),
    }
