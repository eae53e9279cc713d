"""A mask of -1e9.

-1e9 is the usual mask value; cast to fp16 it is minus infinity, and a row masked completely turns into NaN.

What happens
    In fp32 a row of scores - 1e9 is finite, and its softmax is uniform: harmless, since nobody reads a padded row. 1e9 is
    {times:.0f} times the largest fp16 number, so the cast makes it infinite. A row with one unmasked entry still works, exp(-inf) =
    0. A row without one is NaN, {nan_rows:.0f} of {rows:.0f} rows here, and NaN times probability zero is NaN in the next layer: it
    spreads to every token that attends, even with weight zero, to a padded one.

How to recognise it
    Works in fp32 and bf16 (whose range is that of fp32), NaN in fp16, for padded batches. Search for 1e9, 1e10, -10000.0 * 1e5 in
    the mask code.

The repair
    `torch.finfo(dtype).min` in `masked_fill`, or better a boolean mask given to `scaled_dot_product_attention`. And zero the output
    of rows that have nothing to attend to.

When it is no problem
    When every row keeps an entry, as in a causal mask without padding: -inf is then exactly what is meant, and it is not reported.

Sources
    huggingface/transformers, `_prepare_4d_attention_mask` (finfo.min); PyTorch issue 41508 (softmax of a fully masked row).
"""

import torch
from torch import Tensor, nn

DTYPE = "fp16"
LEVEL = "first steps"
COVERS = ("masks", "masked rows")
EXPECT = (("PL103", "aten._to_copy"),)
CLAIMS = {"times": (15200, 15300), "nan_rows": (4, 4), "rows": (20, 20)}
QUIZ = (
    (
        "A mask of -1e9 is cast to fp16 and added to the scores. Which rows are NaN after softmax?",
        {"all rows with a mask": "nan_rows > 4", "rows that are masked completely": "nan_rows == 4", "none": "nan_rows == 0"},
    ),
)


class Attention(nn.Module):
    def forward(self, x: Tensor, blocked: Tensor, lowest: float | None) -> Tensor:
        scores = (x / x.shape[-1] ** 0.5) @ x.transpose(-1, -2)
        if lowest is None:
            scores = scores.masked_fill(blocked, torch.finfo(x.dtype).min)
        else:
            scores = scores + torch.zeros(blocked.shape).masked_fill(blocked, lowest).to(x.dtype)
        return torch.softmax(scores, -1) @ x


def _attend(dtype: torch.dtype, lowest: float | None) -> dict[str, Tensor]:
    torch.manual_seed(1)
    x = torch.randn(2, 10, 16).to(torch.float16).to(dtype)
    blocked = torch.ones(10, 10, dtype=torch.bool).triu(1).repeat(2, 1, 1)
    blocked[1, :, :4] = True  # four tokens of padding on the left
    return {"out": Attention()(x, blocked, lowest)}


def broken(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _attend(dtype, -1e9)


def fixed(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _attend(dtype, None)


def reference() -> dict[str, Tensor]:
    return _attend(torch.float64, None)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    return {
        "times": 1e9 / 65504,
        "nan_rows": float(broken["out"].isnan().any(-1).sum()),
        "rows": broken["out"].shape[0] * broken["out"].shape[1],
    }
