"""Weight decay without effect.

Decoupled weight decay multiplies bf16 weights by {factor:.6f} in each of {steps:.0f} steps and changes {changed:.0%} of them.

What happens
    AdamW shrinks each weight by 1 - lr * wd. With lr 1e-3 and wd 0.1 that is 0.9999, a relative change of 1e-4. Two neighbouring
    bf16 numbers differ by at least 2^-8 = 0.4 %, so w * 0.9999 rounds to w, for every weight of every size: relative spacing does
    not depend on size. Even the factor itself would be 1.0 if it were a bf16 tensor.

How to recognise it
    The norm of the weights grows or stays where fp32 training keeps it down. Weights without gradient (rows of tokens that do not
    occur) stay bit for bit what they were. The effect hides behind gradients that do move the weights.

The repair
    fp32 weights or masters. There the norm falls to {kept_fixed:.4f} of the start, as in fp64.

When it is no problem
    When lr * wd is above about 2^-8, or the decay is part of the gradient (L2, not decoupled): then it shares the fate of the
    gradient step.

Sources
    Loshchilov & Hutter 2019, Decoupled Weight Decay Regularization. Spacing of bf16: 8 significant bits.
"""

import torch
from torch import Tensor, nn

DTYPE = "bf16"
LEVEL = "practitioner"
COVERS = ("weight decay",)
EXPECT = (("PL301", "weight"),)
CLAIMS = {"factor": (0.9999, 0.9999), "steps": (20, 20), "changed": (0, 0), "kept_fixed": (0.9979, 0.9981)}
QUIZ = (
    (
        "bf16 weights are multiplied by 0.9999 twenty times. Which of them change?",
        {"all, by 0.2 %": "changed == 1", "the small ones": "0 < changed < 1", "none": "changed == 0"},
    ),
)
PICTURE = ("line", "norms", "step (norm of the weights over its start)")


def _decay(dtype: torch.dtype, weights: torch.dtype) -> dict[str, Tensor]:
    torch.manual_seed(0)
    embedding = nn.Embedding(64, 16).to(weights)
    start = embedding.weight.detach().clone()
    optimizer = torch.optim.AdamW(embedding.parameters(), lr=1e-3, weight_decay=0.1)
    norms = []
    for _ in range(20):
        optimizer.zero_grad()
        (embedding(torch.zeros(4, dtype=torch.long)).to(dtype) * 0).sum().backward()  # no gradient: decay alone
        optimizer.step()
        norms.append(embedding.weight.detach().double().norm() / start.double().norm())
    return {"norms": torch.stack(norms), "changed": (embedding.weight.detach() != start).double().mean()}


def broken(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _decay(dtype, dtype)


def fixed(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _decay(dtype, torch.float32)


def reference() -> dict[str, Tensor]:
    return _decay(torch.float64, torch.float64)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    return {
        "factor": 1 - 1e-3 * 0.1,
        "steps": broken["norms"].numel(),
        "changed": float(broken["changed"]),
        "kept_fixed": float(fixed["norms"][-1]),
    }
