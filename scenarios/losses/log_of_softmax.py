"""log(softmax(x)) in two steps.

A logit {onset:.1f} below the largest has probability zero in fp16, and log 0 is minus infinity; the true value is -{onset:.1f}.

What happens
    softmax gives exp(x - max) / sum. The smallest fp16 number is 2^-24 = e^-16.6, half of it e^-17.3: a class that is more than
    about {onset:.1f} below the largest has probability 0, though its log-probability is an ordinary number. log(0) = -inf. In bf16
    and fp32 the same happens at gaps of {onset_bf16:.0f} and {onset_fp32:.0f}. The log is right about the 0 it was given; the fault
    is that log and softmax are computed apart.

How to recognise it
    The loss is inf for a confidently wrong sample, once in a while, more often as training sharpens the distribution. Afterwards 0
    * inf makes NaN of the gradient.

The repair
    `F.log_softmax`: (x - max) - log(sum exp(x - max)) has no small number in it. `F.cross_entropy` takes logits and does the same.

When it is no problem
    Where gaps are small: a softmax over attention scores needs no log. The zero probabilities themselves do no harm.

Sources
    Higham 2002, section 1.14; Blanchard, Higham & Higham 2021. Found in 8 of 22 PyTorch programs of the GRIST corpus (Yan et al.
    2021).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

DTYPE = "fp16"
LEVEL = "first steps"
COVERS = ("log softmax", "fp16 floors")
EXPECT = (("PL108", "aten.log"),)
CLAIMS = {"onset": (17.0, 17.5), "onset_bf16": (90, 95), "onset_fp32": (103, 105)}
QUIZ = (
    (
        "From which gap between two logits on is log(softmax(x)) minus infinity in fp16?",
        {"about 11, where exp overflows": "onset < 12", "about 17": "16 < onset < 18", "about 104": "onset > 100"},
    ),
)
PICTURE = ("line", "loss", "gap between the logits (0 to 24)")


def _losses(dtype: torch.dtype, fused: bool) -> dict[str, Tensor]:
    gap = torch.linspace(0, 24, 193, dtype=torch.float64)
    logits = torch.stack([torch.zeros_like(gap), -gap], -1).to(dtype)
    logp = F.log_softmax(logits, -1) if fused else torch.log(torch.softmax(logits, -1))
    return {"loss": -logp[:, 1], "gap": -logits[:, 1]}


def broken(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _losses(dtype, fused=False)


def fixed(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _losses(dtype, fused=True)


def reference() -> dict[str, Tensor]:
    return _losses(torch.float64, fused=True)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    def onset(dtype: torch.dtype) -> float:
        gap = torch.linspace(80, 110, 301).to(dtype)
        p = torch.softmax(torch.stack([torch.zeros_like(gap), -gap], -1), -1)[:, 1]
        return float(gap[p == 0].min())

    return {
        "onset": float(broken["gap"][broken["loss"].isinf()].min()),
        "onset_bf16": onset(torch.bfloat16),
        "onset_fp32": onset(torch.float32),
    }
