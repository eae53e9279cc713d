"""Gumbel noise from bf16 uniforms.

-log(-log(u)) with u rounded to bf16: one draw in {one_in:.0f} is infinite, and with {vocab:.0f} tokens {wrong:.0%} of the samples
are decided by that alone.

What happens
    Sampling by the Gumbel trick takes the argmax of logits + g with g = -log(-log(u)). u below 1 but above 1 - 2^-9 rounds to 1 in
    bf16, log(1) = 0, and -log(0) is infinite: the token wins whatever its logit. P(u > 1 - 2^-9) = 1/512. With {vocab:.0f} tokens
    {wrong:.0%} of the samples have such a winner, drawn uniformly from the vocabulary; with 32000 all of them.

How to recognise it
    Samples that ignore the logits: rare tokens as often as frequent ones. No NaN reaches an output, since argmax returns an
    integer. Entropy of the samples close to log(vocabulary).

The repair
    Draw and transform in fp32 and add the noise in fp32, where u = 1 does not occur (torch.rand is below 1): {wrong_fixed:.0%} of
    the samples are wrong then. Or use exponential noise, `torch.empty_like(p).exponential_()`.

When it is no problem
    Two or three categories and noise that is only a regulariser.

Sources
    Maddison, Tarlow & Minka 2014, A* Sampling; Jang, Gu & Poole 2017, Categorical Reparameterization with Gumbel-Softmax.
"""

import torch
from torch import Tensor, nn

DTYPE = "bf16"
LEVEL = "expert"
COVERS = ("sampling", "spacing")
EXPECT = (("PL108", "aten.log"),)
CLAIMS = {"one_in": (400, 700), "vocab": (256, 256), "wrong": (0.2, 0.6), "wrong_fixed": (0, 0.02)}
QUIZ = (
    (
        "u is uniform and rounded to bf16. How often is it exactly 1?",
        {"never: u < 1": "one_in > 1e6", "once in 512": "400 < one_in < 700", "once in 256": "one_in < 300"},
    ),
)


class Sampler(nn.Module):
    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.wide = wide

    def forward(self, logits: Tensor, u: Tensor) -> Tensor:
        wide = torch.promote_types(logits.dtype, torch.float32)
        u = u.to(wide if self.wide else logits.dtype)
        return logits - torch.log(-torch.log(u))


def _draw(dtype: torch.dtype, wide: bool) -> dict[str, Tensor]:
    torch.manual_seed(0)
    logits = torch.full((400, 256), -20.0)
    logits[:, :2] = 0.0  # only two tokens are possible
    u = torch.rand(400, 256)
    if dtype is torch.float64:
        u = u.double()
    noisy = Sampler(wide)(logits.to(dtype), u)
    return {"tokens": noisy.argmax(-1), "ones": (u.to(dtype) == 1).double().mean()}


def broken(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _draw(dtype, wide=False)


def fixed(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _draw(dtype, wide=True)


def reference() -> dict[str, Tensor]:
    return _draw(torch.float64, wide=False)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    return {
        "one_in": 1 / float(broken["ones"]),
        "vocab": 256,
        "wrong": float((broken["tokens"] > 1).double().mean()),
        "wrong_fixed": float((fixed["tokens"] > 1).double().mean()),
    }
