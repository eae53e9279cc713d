"""Top-p by a running sum in bf16.

top_p = 0.9 should keep {exact:.0f} of {vocab:.0f} tokens; with a bf16 running sum it keeps {kept:.0f}.

What happens
    Nucleus sampling sorts the probabilities and keeps them until their sum reaches 0.9. Once the sum has passed 0.5 its bf16
    spacing is 2^-8 = 0.0039, and a tail probability below half of that is lost when it is added. The sum stops at {stop:.2f}, never
    reaches 0.9, and no token is cut off: text is drawn from the whole tail. torch's CPU kernel for cumsum carries fp32; scans on
    devices and hand-written loops may not.

How to recognise it
    Wrong or foreign tokens once in a while, with top_p on and temperature at 1, in bf16. The last value of the cumulative sum is
    far from 1.

The repair
    softmax and running sum in fp32, for one row of the vocabulary: cheap. Or count from the other end, where the tail is summed
    first.

When it is no problem
    Peaked distributions: a few tokens above 0.01 reach 0.9 on their own.

Sources
    Holtzman et al. 2020, The Curious Case of Neural Text Degeneration; NVIDIA/Megatron-LM issue 7182.
"""

import torch
from torch import Tensor, nn

DTYPE = "bf16"
LEVEL = "practitioner"
COVERS = ("top-p", "running sum")
EXPECT = (("PL302", "aten.add"),)
CLAIMS = {"exact": (100, 1900), "vocab": (2000, 2000), "kept": (1990, 2000), "stop": (0.3, 0.89)}
QUIZ = (
    (
        "2000 tokens with a long tail; the running sum is bf16. How many tokens does top_p = 0.9 keep?",
        {
            "a few less than in fp32": "kept < exact",
            "about as many": "exact <= kept < 1.2 * exact",
            "practically all": "kept > 1.2 * exact",
        },
    ),
)
PICTURE = ("line", "running_sum", "token, most probable first")


class Nucleus(nn.Module):
    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.wide = wide

    def forward(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        p = torch.softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)) if self.wide else logits, -1)
        p = p.sort(descending=True).values
        total, sums = torch.zeros_like(p[0]), []
        for one in p:
            total = total + one
            sums.append(total)
        running = torch.stack(sums)
        return running, (running - p < 0.9).sum()


def _sample(dtype: torch.dtype, wide: bool) -> dict[str, Tensor]:
    torch.manual_seed(9)
    logits = (1.5 * torch.randn(2000)).bfloat16().to(dtype)
    running, kept = Nucleus(wide)(logits)
    return {"running_sum": running, "kept": kept}


def broken(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _sample(dtype, wide=False)


def fixed(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _sample(dtype, wide=True)


def reference() -> dict[str, Tensor]:
    return _sample(torch.float64, wide=False)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    return {
        "exact": float(reference["kept"]),
        "vocab": 2000,
        "kept": float(broken["kept"]),
        "stop": float(broken["running_sum"][-1]),
    }
