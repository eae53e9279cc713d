"""The spacing of numbers: neighbours that become equal.

bf16 has {per_octave:.0f} numbers between 64 and 128, {step:.2g} apart: a chain of atoms with bonds of 1.5 turns into bonds from
{shortest:.2f} to {longest:.2f}.

What happens
    A format with p significant bits has 2^(p-1) numbers in every octave. bf16 has p = 8, so the spacing after 1.0 is 2^-7 = 0.0078;
    fp16 has p = 11 and 2^-10 = 0.00098. The spacing doubles with every octave: near 100 it is {step:.2g} in bf16. Coordinates of a
    molecule that sits around 100 are rounded to that grid before they are subtracted. The difference of two neighbours is exact,
    but it is the difference of rounded numbers: the mean error of a bond of 1.5 is {error:.2f}.

How to recognise it
    Differences of large, similar numbers: coordinates, timestamps, positions, losses near convergence. The values look right to two
    digits, their differences come in steps. Print `x.unique().numel()`: here {distinct:.0%} of the coordinates are distinct.

The repair
    Subtract before rounding. Here the differences are taken in fp32 and rounded afterwards, when they are small: near 1.5 the
    spacing is 0.0078. Moving the origin into the molecule does the same. A wider result type behind the subtraction does not help;
    the bits are gone before it.

When it is no problem
    When only the size of the numbers matters, not their differences. A relative error of at most 2^-8 = 0.4 % in an activation is
    what networks are trained with.

Sources
    Higham 2002, Accuracy and Stability of Numerical Algorithms, section 1.7 (cancellation). Coordinates in bf16:
    aqlaboratory/openfold-3 issue 353.
"""

import torch
from torch import Tensor

DTYPE = "bf16"
LEVEL = "first steps"
COVERS = ("spacing",)
EXPECT = (("PL501", "aten.sub"),)
CLAIMS = {
    "per_octave": (128, 128),
    "step": (0.5, 0.5),
    "shortest": (0.3, 1.3),
    "longest": (1.7, 2.6),
    "error": (0.1, 0.4),
    "distinct": (0.2, 0.4),
}
QUIZ = (
    (
        "Atoms near 100, bonds of exactly 1.5, coordinates stored in bf16. How far off is a bond on average?",
        {
            "by less than 0.006, the precision of bf16 at 1.5": "error < 0.006",
            "by 0.006 to 0.1": "0.006 <= error < 0.1",
            "by more than 0.1": "error >= 0.1",
        },
    ),
)
PICTURE = ("line", "bonds", "bond along the chain")


def _bonds(dtype: torch.dtype, subtract_first: bool) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    steps = torch.randn(60, 3, generator=generator, dtype=torch.float64)
    steps = 1.5 * steps / steps.norm(dim=-1, keepdim=True)
    chain = 100.0 + steps.cumsum(0)
    wide = chain.to(torch.promote_types(dtype, torch.float32))
    coordinates = wide if subtract_first else wide.to(dtype)
    between = (coordinates[1:] - coordinates[:-1]).to(dtype)
    return {"bonds": between.square().sum(-1).sqrt(), "coordinates": coordinates.flatten()}


def broken(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _bonds(dtype, subtract_first=False)


def fixed(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _bonds(dtype, subtract_first=True)


def reference() -> dict[str, Tensor]:
    return broken(torch.float64)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    return {
        "per_octave": 2.0**7 if torch.finfo(torch.bfloat16).eps == 2.0**-7 else float("nan"),
        "step": 64 * torch.finfo(torch.bfloat16).eps,
        "shortest": float(broken["bonds"].min()),
        "longest": float(broken["bonds"].max()),
        "error": float((broken["bonds"] - 1.5).abs().mean()),
        "distinct": broken["coordinates"].unique().numel() / broken["coordinates"].numel(),
    }
