"""An fp64 reference that is itself wrong.

gelu(-9) is -1.0e-18. fp64 computes it with a relative error of {error_9:.0%}, at -8 of {error_8:.1%}: a comparison with fp64 would
find nothing.

What happens
    gelu(x) = x (1 + erf(x / sqrt 2)) / 2. For x = -9 erf is -1 + 2.3e-19, which fp64 rounds to -1: 1 + erf = 0, although gelu is
    not. fp32 loses it from about -5.5 on. Here a log is taken of the size of the activation, as a gate in log space does: -inf in
    fp32, -inf in naive fp64, {exact:.1f} in truth. Low and high precision agree, and both are wrong. A reference is not right
    because it is wide; it is right where the formula is well conditioned.

How to recognise it
    Results that do not change with precision and disagree with another formula. fp64 has other such points: 1 - cos x near 0,
    log(sigmoid(-800)), log(1 - exp(-x)) near 0. Compare with mpmath, or with a rewritten formula.

The repair
    gelu(x) = x erfc(-x / sqrt 2) / 2: erfc computes the tail itself. It is right to {error_fixed:.1e} in fp32. The audit has such
    references for the ops that need them, which is why it names this one.

When it is no problem
    In a forward pass a value of 1e-18 and zero are the same. It is the log, the ratio, or the gradient of it that differs.

Sources
    Higham 2002, section 1.14. Reference values: mpmath at 50 digits.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

DTYPE = "fp32"
LEVEL = "expert"
COVERS = ("wrong reference",)
EXPECT = (("PL108", "aten.log"),)
CLAIMS = {"error_8": (0.005, 0.05), "error_9": (1, 1), "exact": (-43, -39), "error_fixed": (0, 1e-5)}
QUIZ = (
    (
        "What is the relative error of torch's gelu at x = -9 in fp64?",
        {"about 1e-16": "error_9 < 1e-10", "about 2 %": "0.001 < error_9 < 0.5", "100 %": "error_9 == 1"},
    ),
)
PICTURE = ("line", "log_size", "x from -4 to -9")


def _log_size(dtype: torch.dtype, tail: bool) -> dict[str, Tensor]:
    x = torch.linspace(-4, -9, 41, dtype=torch.float64).to(dtype)
    gelu = x * torch.special.erfc(-x / math.sqrt(2)) / 2 if tail else F.gelu(x)
    return {"log_size": torch.log(-gelu)}


def broken(dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    return _log_size(dtype, tail=False)


def fixed(dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    return _log_size(dtype, tail=True)


def reference() -> dict[str, Tensor]:
    return _log_size(torch.float64, tail=True)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    import mpmath

    def error(x: float) -> float:
        with mpmath.workdps(50):
            exact = x * mpmath.erfc(-x / mpmath.sqrt(2)) / 2
            return float(abs((mpmath.mpf(float(F.gelu(torch.tensor(x, dtype=torch.float64)))) - exact) / exact))

    return {
        "error_8": error(-8.0),
        "error_9": error(-9.0),
        "exact": float(reference["log_size"][-1]),
        "error_fixed": float((fixed["log_size"] / reference["log_size"] - 1).abs().max()),
    }
