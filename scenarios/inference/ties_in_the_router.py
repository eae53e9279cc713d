"""Ties in a router.

A router picks the best of {experts:.0f} experts from bf16 scores: {ties:.1%} of the tokens have two equal best scores, and the
lower index wins.

What happens
    Scores of a trained router lie between 8 and 16, where bf16 steps by 1/16. Two good experts often round to the same score.
    `topk` and `argmax` resolve a tie by position, so experts with a low index get more tokens, and {flips:.1%} of the tokens go to
    another expert than in fp64. The output is continuous in the scores only inside one choice: a flip changes it by the difference
    of two networks.

How to recognise it
    Training and inference engines disagree about single tokens; load statistics drift towards low indices; results depend on the
    batch size. No value is wrong by more than a rounding.

The repair
    Router in fp32: a cast of the input and the weight of one small layer. {flips_fixed:.1%} of the tokens then go elsewhere than in
    fp64. Router z-losses keep the scores small, where spacing is fine.

When it is no problem
    Flips between experts of equal score are not wrong as such, since both are as good; that is why the audit calls it risky. It
    matters where two runs must agree, as in reinforcement learning on sampled text.

Sources
    Fedus, Zoph & Shazeer 2021, Switch Transformers, section 2.4 (selective precision); Zoph et al. 2022, ST-MoE.
"""

import torch
from torch import Tensor, nn

DTYPE = "bf16"
LEVEL = "practitioner"
COVERS = ("router", "argmax")
EXPECT = (("PL505", "aten.argmax"),)
VERDICT = "risky"
CLAIMS = {"experts": (64, 64), "ties": (0.005, 0.2), "flips": (0.005, 0.2), "flips_fixed": (0, 0.02)}
QUIZ = (
    (
        "Router scores around 12 in bf16, whose step there is 1/16. Which share of the tokens has a tie at the top?",
        {"none in practice": "ties < 0.001", "a few percent": "0.001 < ties < 0.2", "most": "ties >= 0.2"},
    ),
)


class MoE(nn.Module):
    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.router, self.experts, self.wide = nn.Linear(64, 64, bias=False), nn.Embedding(64, 8), wide

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.wide:
            wide = torch.promote_types(x.dtype, torch.float32)
            scores = x.to(wide) @ self.router.weight.to(wide).t()
        else:
            scores = self.router(x)
        chosen = scores.argmax(-1)
        return scores, self.experts(chosen)


def _route(dtype: torch.dtype, wide: bool) -> dict[str, Tensor]:
    torch.manual_seed(2)
    model, x = MoE(wide), torch.randn(2000, 64).bfloat16()
    with torch.no_grad():
        model.router.weight.copy_((0.5 * torch.randn(64, 64)).bfloat16())
        scores, _ = model.to(dtype)(x.to(dtype))
    return {"scores": scores}


def broken(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _route(dtype, wide=False)


def fixed(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _route(dtype, wide=True)


def reference() -> dict[str, Tensor]:
    return _route(torch.float64, wide=False)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    def flips(run: dict[str, Tensor]) -> float:
        return float((run["scores"].argmax(-1) != reference["scores"].argmax(-1)).double().mean())

    best = broken["scores"].topk(2, -1).values
    return {
        "experts": 64,
        "ties": float((best[:, 0] == best[:, 1]).double().mean()),
        "flips": flips(broken),
        "flips_fixed": flips(fixed),
    }
