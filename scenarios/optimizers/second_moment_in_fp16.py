"""A second moment kept in fp16.

Gradients of {gradient:.1e} have a second moment of {moment:.1e}, which fp16 stores as zero: the step is {ratio:.0f} times too long.

What happens
    v is an average of squares: (1 - beta2) g^2 = 0.001 g^2 after the first step. The smallest fp16 number is 6.0e-8, and below
    3.0e-8 there is zero, so v vanishes for |g| < 5.5e-3, which is to say for nearly all gradients of a large model. The quotient m
    / (sqrt(v) + eps) then is m / eps. With the usual eps that is infinite or enormous; here eps is 1e-5 and the step is {ratio:.0f}
    times as long as Adam's.

How to recognise it
    Weights that jump in the first steps, a loss that explodes with a learning rate that works in fp32. `(v == 0).float().mean()`.

The repair
    Keep v in fp32. Or store sqrt(v), whose exponent range is half as wide; or use the block formats of 8-bit optimizers, which have
    a scale for each block.

When it is no problem
    bf16 keeps 1e-11 as a number; there the trouble is another one (beta2, and averages that stand still).

Sources
    Dettmers et al. 2022, 8-bit Optimizers via Block-wise Quantization. 0.001 g^2 < 2^-25 for |g| < 5.46e-3.
"""

import torch
from torch import Tensor, nn

DTYPE = "fp16"
LEVEL = "practitioner"
COVERS = ("second moment", "fp16 floors")
EXPECT = (("PL105", "aten.addcmul_"), ("PL302", "aten.addcmul_"))
CLAIMS = {"gradient": (1e-5, 5e-3), "moment": (1e-14, 3e-8), "ratio": (2, 100), "zeros": (0.9, 1.0)}
QUIZ = (
    (
        "beta2 = 0.999, v in fp16. Below which gradient is v zero after the first step?",
        {"6e-8, the smallest fp16 number": "zeros == 0", "about 5e-3": "zeros > 0.9"},
    ),
)


def _train(dtype: torch.dtype, state: torch.dtype) -> dict[str, Tensor]:
    torch.manual_seed(0)
    wide = torch.promote_types(dtype, torch.float32)
    weight, x = nn.Parameter(torch.randn(64, dtype=wide)), torch.randn(256, 64).to(wide)
    v = torch.zeros(64, dtype=state)
    start, size = weight.detach().clone(), None
    for t in range(1, 6):
        (gradient,) = torch.autograd.grad((x @ weight).square().mean() * 1e-4, weight)
        size = gradient.abs().mean() if size is None else size
        narrow = gradient.to(state)
        with torch.no_grad():
            v.mul_(0.999).addcmul_(narrow, narrow, value=1e-3)
            corrected = v.to(wide) / (1 - 0.999**t)
            weight -= 1e-2 * gradient / (corrected.sqrt() + 1e-5)
    moved = (weight.detach() - start).abs().mean()
    return {"moved": moved, "gradient_size": size, "zeros": (v == 0).double().mean()}


def broken(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _train(dtype, dtype)


def fixed(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _train(dtype, torch.float32)


def reference() -> dict[str, Tensor]:
    return _train(torch.float64, torch.float64)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    gradient = float(reference["gradient_size"])
    return {
        "gradient": gradient,
        "moment": 1e-3 * gradient**2,
        "ratio": float(broken["moved"] / reference["moved"]),
        "zeros": float(broken["zeros"]),
    }
