"""Binary cross entropy on probabilities.

sigmoid rounds to 1 from a score of {onset:.1f} on, log(1 - 1) is minus infinity: {inf_share:.0%} of the losses are infinite.

What happens
    The numbers next to 1 are 2^-11 apart in fp16 and 2^-8 in bf16: 1 - p is at least 4.9e-4, or 0. From a score of {onset:.1f} on
    ({onset_bf16:.1f} in bf16) p = 1 exactly, so bf16 is worse than fp16 here, although its range is larger. log(1 - p) is -inf for
    a sample that is confidently wrong. torch's `binary_cross_entropy` clamps the log at -100, which keeps the loss finite and
    leaves the gradient at inf * 0.

How to recognise it
    A loss with infinities, or with plateaus of exactly 100; NaN gradients for outliers. "unsafe to autocast" is the error that
    PyTorch raises for `binary_cross_entropy` under autocast.

The repair
    Give the scores to `F.binary_cross_entropy_with_logits`: it computes max(x, 0) - x y + log1p(exp(-|x|)), in which nothing is
    subtracted from 1. The largest loss here is then {largest_fixed:.1f}.

When it is no problem
    Probabilities that do not come from a sigmoid and are bounded away from 0 and 1, as with label smoothing on both sides.

Sources
    PyTorch, Automatic Mixed Precision: prefer binary_cross_entropy_with_logits. GRIST corpus (Yan et al. 2021): 6 PyTorch programs.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

DTYPE = "fp16"
LEVEL = "first steps"
COVERS = ("bce", "spacing")
EXPECT = (("PL108", "aten.log"),)
CLAIMS = {"onset": (7.3, 8.5), "onset_bf16": (5.5, 6.5), "inf_share": (0.2, 0.5), "largest_fixed": (11, 13)}
QUIZ = (
    (
        "From which score on is 1 - sigmoid(score) zero in fp16?",
        {"about 17": "onset > 12", "about 8": "7 < onset < 9", "about 6": "onset < 7"},
    ),
)
PICTURE = ("line", "loss", "score from 0 to 12 (label 0)")


def _losses(dtype: torch.dtype, on_scores: bool) -> dict[str, Tensor]:
    scores = torch.linspace(0, 12, 97).to(torch.float16).to(dtype)
    labels = torch.zeros_like(scores)
    if on_scores:
        loss = F.binary_cross_entropy_with_logits(scores, labels, reduction="none")
    else:
        p = torch.sigmoid(scores)
        loss = -torch.log(1 - p)  # the label is 0
    return {"loss": loss, "scores": scores}


def broken(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _losses(dtype, on_scores=False)


def fixed(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _losses(dtype, on_scores=True)


def reference() -> dict[str, Tensor]:
    return _losses(torch.float64, on_scores=True)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    lost = broken["loss"].isinf()
    rounded = torch.linspace(0, 12, 97).bfloat16()
    return {
        "onset": float(broken["scores"][lost].min()),
        "onset_bf16": float(rounded[torch.sigmoid(rounded) == 1].min()),
        "inf_share": float(lost.double().mean()),
        "largest_fixed": float(fixed["loss"].max()),
    }
