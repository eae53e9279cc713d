"""KL divergence at a low temperature.

Distillation at temperature {temperature:.2f}: probabilities of {share:.0%} of the classes are zero in fp16, and the divergence is
NaN.

What happens
    Dividing the logits by a temperature below 1 stretches their gaps: {gap:.0f} becomes {stretched:.0f}, and exp(-{stretched:.0f})
    is below the smallest fp16 number. sum p (log p - log q) then has terms 0 * log 0 = 0 * -inf = NaN. In the limit p log p goes to
    0; the formula does not.

How to recognise it
    NaN at low temperatures only, or late in training when teachers are confident. `kl_div` of log-probabilities is safe; `p * (p /
    q).log()` is not.

The repair
    Stay in logs: log p = log_softmax, and p (log p - log q) with p = exp(log p). A probability that underflows then multiplies a
    finite log and contributes 0, and the divergence is {exact:.1f}. `F.kl_div(log_q, log_p, log_target=True)`.

When it is no problem
    Temperatures above 1, where gaps shrink. Distillation usually has those.

Sources
    Hinton, Vinyals & Dean 2015, Distilling the Knowledge in a Neural Network. PyTorch, torch.nn.functional.kl_div.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DTYPE = "fp16"
LEVEL = "practitioner"
COVERS = ("kl", "log softmax")
EXPECT = (("PL108", "aten.log"),)
CLAIMS = {"temperature": (0.1, 0.1), "share": (0.1, 0.99), "gap": (1, 6), "stretched": (17.5, 60), "exact": (0.1, 100)}
QUIZ = (
    (
        "One class has probability 0 after rounding. What does p * (log p - log q) contribute?",
        {"0": "share == 0", "NaN, and the sum is lost": "share > 0"},
    ),
)
PICTURE = ("bars", "divergence", "mean divergence")


class Divergence(nn.Module):
    def __init__(self, in_logs: bool) -> None:
        super().__init__()
        self.in_logs = in_logs

    def forward(self, teacher: Tensor, student: Tensor) -> Tensor:
        t, s = teacher / 0.1, student / 0.1
        if self.in_logs:
            log_p, log_q = F.log_softmax(t, -1), F.log_softmax(s, -1)
            return (log_p.exp() * (log_p - log_q)).sum(-1).mean()
        p, q = torch.softmax(t, -1), torch.softmax(s, -1)
        return (p * (torch.log(p) - torch.log(q))).sum(-1).mean()


def _distill(dtype: torch.dtype, in_logs: bool) -> dict[str, Tensor]:
    torch.manual_seed(0)
    teacher, student = torch.randn(16, 20).to(torch.float16).to(dtype), torch.randn(16, 20).to(torch.float16).to(dtype)
    return {
        "divergence": Divergence(in_logs)(teacher, student),
        "zero_share": (torch.softmax(teacher / 0.1, -1) == 0).double().mean(),
        "gap": (teacher.max(-1).values - teacher.min(-1).values).mean(),
    }


def broken(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _distill(dtype, in_logs=False)


def fixed(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _distill(dtype, in_logs=True)


def reference() -> dict[str, Tensor]:
    return _distill(torch.float64, in_logs=False)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    gap = float(reference["gap"])
    return {
        "temperature": 0.1,
        "share": float(broken["zero_share"]),
        "gap": gap,
        "stretched": gap / 0.1,
        "exact": float(reference["divergence"]),
    }
