"""The fp32 norm of ten million elements.

No half precision anywhere: the norm of 10^7 equal fp32 gradients comes out {error:.2%} too small.

What happens
    torch's CPU kernel for `vector_norm` in fp32 adds squares into a few running fp32 sums. With 10^7 squares of 100 the running sum
    passes 10^8, where fp32 numbers are 8 apart: each addition of 100 is rounded to a multiple of 8, and the roundings all go the
    same way. The exact norm is {exact:.1f}, the kernel gives {found:.1f}. `get_total_norm`, and with it `clip_grad_norm_`, inherits
    that. With 10^8 elements it is off by percents.

How to recognise it
    A logged norm that changes when the same gradients are cut into other pieces. An accumulator's trouble grows with the length of
    the sum: error about n u at worst, where u = 2^-24 = 6e-8 and n = 10^7.

The repair
    Sum in blocks: norms of rows of 4000, then the norm of those. Two short sums instead of a long one, and the result is right to
    {error_fixed:.1e}. Or sum in fp64: `vector_norm(g, dtype=torch.float64)`.

When it is no problem
    When the norm is only compared with a threshold that nobody chose to a percent. That is why the audit calls this risky.

Sources
    pytorch/pytorch issues 15602, 68326, 151761 and 169237. Higham 2002, section 4.2.
"""

import torch
from torch import Tensor, nn

DTYPE = "fp32"
LEVEL = "expert"
COVERS = ("fp32 norm",)
EXPECT = (("PL502", "aten._foreach_norm"),)
VERDICT = "risky"
CLAIMS = {"error": (0.001, 0.02), "exact": (31622, 31623), "found": (31000, 31600), "error_fixed": (0, 1e-5)}
QUIZ = (
    (
        "u of fp32 is 6e-8. How large is the relative error of the fp32 norm of 10^7 equal numbers?",
        {"about 1e-7": "error < 1e-6", "about 1e-4": "1e-6 <= error < 1e-3", "about 1 %": "error >= 1e-3"},
    ),
)
PICTURE = ("bars", "norm", "norm of 10^7 gradients of 10")


def _norm(dtype: torch.dtype, in_blocks: bool) -> dict[str, Tensor]:
    weight = nn.Parameter(torch.zeros(2_500, 4_000, dtype=dtype))
    weight.grad = torch.full_like(weight, 10.0)
    if in_blocks:
        norm = torch.linalg.vector_norm(torch.linalg.vector_norm(weight.grad, dim=1))
        weight.grad.mul_(1.0 / norm)
    else:
        norm = nn.utils.clip_grad_norm_([weight], 1.0)
    return {"norm": norm, "clipped": weight.grad[0, 0].clone()}


def broken(dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    return _norm(dtype, in_blocks=False)


def fixed(dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    return _norm(dtype, in_blocks=True)


def reference() -> dict[str, Tensor]:
    return _norm(torch.float64, in_blocks=False)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    exact = float(reference["norm"])
    return {
        "error": 1 - float(broken["norm"]) / exact,
        "exact": exact,
        "found": float(broken["norm"]),
        "error_fixed": abs(1 - float(fixed["norm"]) / exact),
    }
