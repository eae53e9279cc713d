"""A product that passes 65504.

Two ordinary numbers, {left:.0f} and {right:.0f}, have the product {exact:.0f}; fp16 ends at 65504 and stores infinity.

What happens
    The largest finite fp16 number is (2 - 2^-10) * 2^15 = 65504. The next one would be 65536, and what lies halfway or beyond, from
    65520 on, rounds to infinity. Here a gated unit multiplies an activation of {left:.0f} by a gate of {right:.0f}. Each has room
    to spare; the product needs {exact:.0f}. One infinity is enough: the norm behind it computes inf / inf, and NaN is what the
    layers above see: {nan_share:.0%} of the outputs.

How to recognise it
    Activations or the loss become inf or NaN, always for the same few inputs (a long prompt, a bright image), at the same layer,
    and not in bf16. Look for the first inf, not for the first NaN: the NaN appears one op later, in the norm or the softmax. In
    fp16 ask of every product and square how large its factors are: two of 256 suffice.

The repair
    Divide before multiplying: here the gate is scaled by 2^-6, which a scale-invariant norm behind it cancels exactly. A power of
    two costs no bit. Where nothing cancels the factor, keep this op and the one that reads it in fp32, or use bf16, whose largest
    number is 3.4e38.

When it is no problem
    When the infinity is never used: a masked score of -inf under a softmax with one finite entry, or a scaled gradient that the
    scaler throws away. An infinity is a fault only where something finite was due.

Sources
    IEEE 754-2019, table 3.5 (binary16). The same failure in a released model: huggingface/transformers issue 4586 and 5651 (T5 in
    fp16).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

DTYPE = "fp16"
LEVEL = "first steps"
COVERS = ("fp16 ceiling",)
EXPECT = (("PL101", "aten.mul"),)
CLAIMS = {"left": (300, 300), "right": (250, 250), "exact": (75000, 75000), "nan_share": (0.2, 0.3)}
QUIZ = (
    (
        "h = 300 and gate = 250 are fp16 tensors. How much of a LayerNorm's output over a row of four that holds h * gate is finite?",
        {"all of it: the norm brings it back in range": "nan_share == 0", "none of that row, the other rows are fine": "0 < nan_share < 1"},
    ),
)
PICTURE = ("bars", "largest", "largest product (scaled by 2^-6 in the fixed version)")


def _layer(dtype: torch.dtype, shift: float) -> dict[str, Tensor]:
    hidden = torch.tensor([[1.0, 2.0, 3.0, 4.0], [300.0, 2.0, 3.0, 4.0], [5.0, 1.0, 2.0, 2.0], [9.0, 3.0, 1.0, 1.0]], dtype=dtype)
    gate = torch.full_like(hidden, 250.0) * shift
    product = hidden * gate
    out = F.layer_norm(product, (4,), eps=1e-5)
    return {"largest": product.max(), "out": out}


def broken(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _layer(dtype, 1.0)


def fixed(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _layer(dtype, 2.0**-6)


def reference() -> dict[str, Tensor]:
    return broken(torch.float64)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    return {
        "left": 300,
        "right": 250,
        "exact": float(reference["largest"]),
        "nan_share": float(broken["out"].isnan().double().mean()),
    }
