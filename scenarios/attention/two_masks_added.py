"""Two masks that add up to minus infinity.

Each mask is finite, -65504; their sum is not, and {nan_share:.0%} of the padded sequence's outputs are NaN.

What happens
    A causal mask and a padding mask are written as the most negative finite number, so that a row masked completely still has a
    finite softmax (uniform, and ignored later). Added to each other, or to a score below -16, they pass the end of fp16: -65504 -
    65504 = -inf. A row that holds only -inf has the softmax exp(-inf + inf) = NaN. Left padding makes such rows: the first token of
    a padded sequence may attend to nothing.

How to recognise it
    NaN for padded batches, none for a single prompt; left padding, not right. In bf16 the same sum overflows too, since finfo.min
    is at the end of every format.

The repair
    Combine the masks as booleans and write the large number once, with `masked_fill`. The scores underneath are replaced, not added
    to, and {nan_fixed:.0%} of the outputs are NaN.

When it is no problem
    A -inf in a row that keeps a finite entry: softmax gives it probability zero, which was meant.

Sources
    unslothai/unsloth issue 9708; NVIDIA-NeMo/Automodel issue 2658.
"""

import torch
from torch import Tensor, nn

DTYPE = "fp16"
LEVEL = "practitioner"
COVERS = ("masks", "masked rows")
EXPECT = (("PL101", "aten.add"),)
CLAIMS = {"nan_share": (0.2, 0.6), "nan_fixed": (0, 0)}
QUIZ = (
    (
        "finfo(fp16).min + finfo(fp16).min is written into every entry of a row. What is the softmax of that row?",
        {"uniform": "nan_share == 0", "NaN": "nan_share > 0"},
    ),
)


class Attention(nn.Module):
    def __init__(self, added: bool) -> None:
        super().__init__()
        self.added = added

    def forward(self, x: Tensor, causal: Tensor, padding: Tensor) -> Tensor:
        k = x * torch.cat([-torch.ones(1), torch.ones(15)]).to(x.dtype)
        scores, lowest = (x / 4) @ k.transpose(-1, -2), torch.finfo(x.dtype).min
        if self.added:
            plane = torch.zeros(causal.shape, dtype=x.dtype).masked_fill(causal, lowest)
            pad = torch.zeros(padding.shape, dtype=x.dtype).masked_fill(padding, lowest)
            scores = scores + (plane + pad[:, None, :])
        else:
            scores = scores.masked_fill(causal | padding[:, None, :], lowest)
        return torch.softmax(scores, -1) @ x


def _attend(dtype: torch.dtype, added: bool) -> dict[str, Tensor]:
    torch.manual_seed(1)
    x = torch.randn(2, 10, 16).to(torch.float16).to(dtype)
    x[:, :, 0] = 9.0  # queries and keys share an offset of opposite sign: scores near -20
    padding = torch.zeros(2, 10, dtype=torch.bool)
    padding[1, :4] = True
    causal = torch.ones(10, 10, dtype=torch.bool).triu(1)
    scores = Attention(added)(x, causal, padding)
    return {"alone": scores[0], "padded": scores[1]}


def broken(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _attend(dtype, added=True)


def fixed(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _attend(dtype, added=False)


def reference() -> dict[str, Tensor]:
    return _attend(torch.float64, added=False)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    return {"nan_share": float(broken["padded"].isnan().double().mean()), "nan_fixed": float(fixed["padded"].isnan().double().mean())}
