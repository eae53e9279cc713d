"""Greedy tokens that tie.

Logits near 20 in bf16 step by 1/8: {flips:.1%} of the greedy tokens differ from fp32, and casting the logits to fp32 does not help.

What happens
    Between 16 and 32 bf16 numbers are 2^-3 = 0.125 apart. Of {vocab:.0f} candidates the two best are often closer than that, tie
    after rounding, and the smaller token id wins. `logits.float()` afterwards is too late: the projection has rounded its result
    already. One different token changes everything that is generated after it.

How to recognise it
    Greedy decoding that differs between engines or batch sizes; evaluation scores that wobble by tenths. Look at the gap of the two
    best logits in units of the spacing.

The repair
    Let the projection return fp32: the same bf16 operands, the fp32 accumulator not rounded ({flips_fixed:.1%} differ then). In
    torch: cast both operands, or a matmul with an fp32 output.

When it is no problem
    Sampling at temperature 1: a change of 0.06 in a logit changes a probability by 6 %, which sampling noise hides.

Sources
    sgl-project/sglang issue 33627; He et al. 2025, Defeating Nondeterminism in LLM Inference.
"""

import torch
from torch import Tensor, nn

DTYPE = "bf16"
LEVEL = "practitioner"
COVERS = ("argmax", "spacing")
EXPECT = (("PL505", "aten.argmax"),)
CLAIMS = {"flips": (0.005, 0.2), "vocab": (2048, 2048), "flips_fixed": (0, 0.004)}
QUIZ = (
    (
        "The logits come from a bf16 projection and are cast to fp32 before argmax. Do the flips disappear?",
        {"yes": "flips < 0.001", "no": "flips >= 0.005"},
    ),
)


class Head(nn.Module):
    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.norm, self.lm_head, self.wide = nn.LayerNorm(128), nn.Linear(128, 2048, bias=False), wide

    def forward(self, h: Tensor) -> tuple[Tensor, Tensor]:
        h = self.norm(h)
        wide = torch.promote_types(h.dtype, torch.float32)
        logits = h.to(wide) @ self.lm_head.weight.to(wide).t() if self.wide else self.lm_head(h).to(wide)
        return logits, logits.argmax(-1)


def _decode(dtype: torch.dtype, wide: bool) -> dict[str, Tensor]:
    torch.manual_seed(27)
    model, h = Head(wide), torch.randn(512, 128).bfloat16()
    with torch.no_grad():
        model.lm_head.weight.copy_((torch.randn(2048, 128) * 0.5).bfloat16())
        _, tokens = model.to(dtype)(h.to(dtype))
    return {"tokens": tokens}


def broken(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _decode(dtype, wide=False)


def fixed(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _decode(dtype, wide=True)


def reference() -> dict[str, Tensor]:
    return _decode(torch.float64, wide=True)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    def flips(run: dict[str, Tensor]) -> float:
        return float((run["tokens"] != reference["tokens"]).double().mean())

    return {"flips": flips(broken), "vocab": 2048, "flips_fixed": flips(fixed)}
