"""Healthy: a causal mask of minus infinity.

{masked:.0%} of the attention scores are -inf, and the attention is right to {error:.2%}.

What it looks like
    Half of all scores are infinite in every layer and every step. A watch for non-finite values reports each of them.

Why it is fine
    The infinities are written, not computed: fp64 has the same. softmax turns -inf into a probability of exactly zero, exp(-inf) =
    0, as long as the row keeps one finite entry, and a causal row always keeps the token itself. No infinity leaves the softmax.
    The audit compares with fp64 and looks at what becomes of a value; it does not look for values.

When it would be a problem
    Rows in which everything is masked (left padding): inf - inf = NaN. And a large negative number that was meant to be finite,
    such as -1e9 in fp16.

Sources
    Vaswani et al. 2017, section 3.2.3.
"""

import torch
from torch import Tensor, nn

DTYPE = "fp16"
LEVEL = "first steps"
COVERS = ("false alarm", "masks")
CLAIMS = {"masked": (0.4, 0.5), "error": (0, 0.005)}
QUIZ = (
    (
        "Nearly half of the scores are -inf. How many of the outputs are inf or NaN?",
        {"as many": "error > 1", "none": "error < 0.01"},
    ),
)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = self.qkv(x).chunk(3, -1)
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        scores = ((q / 32**0.5) @ k.transpose(-1, -2)).masked_fill(future, -torch.inf)
        return self.out(torch.softmax(scores, -1) @ v), future.double().mean()


def program(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    torch.manual_seed(0)
    model, x = Attention().to(dtype), torch.randn(4, 16, 32).to(dtype)
    out, masked = model(x)
    out.square().mean().backward()
    return {"out": out.detach(), "masked": masked, "gradient": model.qkv.weight.grad}


def reference() -> dict[str, Tensor]:
    return program(torch.float64)


def numbers(program: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    return {"masked": float(program["masked"]), "error": float((program["out"] - reference["out"]).norm() / reference["out"].norm())}
