"""A mean over many pixels.

The mean of an image is {mean:.2f}, and its loss is NaN: the sum of {pixels:.0f} pixels does not exist in fp16.

What happens
    A mean is a sum and a division. The sum of {pixels:.0f} pixels of about {mean:.2f} is {total:.0f}, above 65504. A dice loss
    divides two such sums, inf / inf = NaN. torch's `mean` is safe, since its kernel keeps the sum in fp32; `sum() / n` stores it in
    fp16 in between.

How to recognise it
    Fine on crops of 128 x 128, NaN on whole images. The size of the reduction decides, not the values. Sums over pixels, tokens
    times vocabulary, boxes, time steps.

The repair
    Sum with `dtype=torch.float32` and go back to fp16 when the result is a ratio. The loss is then {loss_fixed:.4f}, in fp64
    {loss:.4f}. Under autocast many losses are on the list of fp32 ops; hand-written ones are not.

When it is no problem
    When the terms have both signs and cancel, or the reduction has a bounded length.

Sources
    qubvel-org/segmentation_models.pytorch issue 463 (dice loss in fp16). PyTorch, Autocast Op Reference.
"""

import torch
from torch import Tensor, nn

DTYPE = "fp16"
LEVEL = "first steps"
COVERS = ("pixel mean", "fp16 ceiling")
EXPECT = (("PL102", "aten.sum"),)
CLAIMS = {"mean": (0.4, 0.6), "pixels": (262144, 262144), "total": (65520, 3e5), "loss": (0.2, 0.8), "loss_fixed": (0.2, 0.8)}
QUIZ = (
    (
        "512 x 512 probabilities of about 0.5 are summed into an fp16 number. Does the sum fit?",
        {"yes": "total < 65504", "no": "total >= 65520"},
    ),
)
PICTURE = ("bars", "loss", "dice loss")


class Dice(nn.Module):
    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.wide = wide

    def forward(self, scores: Tensor, target: Tensor) -> Tensor:
        p = torch.sigmoid(scores)
        if self.wide:
            p, target = p.float(), target.float()
        return 1 - 2 * (p * target).sum() / (p.sum() + target.sum())


def _loss(dtype: torch.dtype, wide: bool) -> dict[str, Tensor]:
    torch.manual_seed(0)
    scores = torch.randn(512, 512).to(dtype).requires_grad_()
    target = (torch.rand(512, 512) > 0.5).to(dtype)
    loss = Dice(wide)(scores, target)
    loss.backward()
    return {"loss": loss.detach(), "gradient": scores.grad, "total": torch.sigmoid(scores.detach().double()).sum()}


def broken(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _loss(dtype, wide=False)


def fixed(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _loss(dtype, wide=True)


def reference() -> dict[str, Tensor]:
    return _loss(torch.float64, wide=False)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    pixels = reference["gradient"].numel()
    return {
        "mean": float(reference["total"]) / pixels,
        "pixels": pixels,
        "total": float(reference["total"]),
        "loss": float(reference["loss"]),
        "loss_fixed": float(fixed["loss"]),
    }
