"""Clipping inside the micro-batch loop.

The accumulated gradient is clipped after every backward: the update points {cosine:.2f} (cosine) along the true one, and the early
micro-batches have {share:.1%} of it.

What happens
    `clip_grad_norm_` shortens all that has been accumulated so far. After the second micro-batch the first has been shortened
    twice, after {micro:.0f} it has been shortened {micro:.0f} times. Micro-batch k keeps only the product of all later clip
    factors: the sum is dominated by the last one or two. No number is rounded, so fp64 is equally wrong.

How to recognise it
    A run with accumulation behaves like one with a small batch, and results depend on the order of the micro-batches. The clip call
    has one level of indentation too many.

The repair
    Clip once, after the last backward and before the step.

When it is no problem
    When gradients never reach max_norm: then no clip does anything. Per-sample clipping for differential privacy clips each
    gradient before it is added, not the sum.

Sources
    huggingface/transformers issue 1563; facebookresearch/lingua issue 59.
"""

import torch
from torch import Tensor, nn

DTYPE = "bf16"
LEVEL = "first steps"
COVERS = ("clip per micro-batch",)
EXPECT = (("PL404", "clip_grad_norm_"),)
CLAIMS = {"cosine": (0.3, 0.9), "share": (0, 0.1), "micro": (8, 8)}
QUIZ = (
    (
        "Eight micro-batches, each clipped as it is added. Which share of the update comes from the first four?",
        {"half": "0.4 < share < 0.6", "less than a tenth": "share < 0.1"},
    ),
)
PICTURE = ("line", "by_micro_batch", "micro-batch (its part of the update)")


def _train(dtype: torch.dtype, clip_each: bool) -> dict[str, Tensor]:
    low = dtype is not torch.float64
    net = nn.Linear(64, 1, bias=False).to(torch.float32 if low else dtype)
    nn.init.zeros_(net.weight)
    torch.manual_seed(5)
    x = torch.zeros(8, 16, 64, dtype=net.weight.dtype)  # each micro-batch is another kind of text, with its own eight features
    for k in range(8):
        x[k, :, 8 * k : 8 * k + 8] = torch.rand(16, 8) + 0.5
    y = torch.full((8, 16, 1), 20.0, dtype=x.dtype)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        for part, target in zip(x, y, strict=True):
            with torch.autocast("cpu", dtype, enabled=low):
                out = net(part)
            ((out.to(y.dtype) - target).square().mean() / 8).backward()
            if clip_each:
                nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        if not clip_each:
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    update = net.weight.detach().flatten()
    return {"update": update, "by_micro_batch": update.view(8, 8).norm(dim=1) / update.norm()}


def broken(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _train(dtype, clip_each=True)


def fixed(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _train(dtype, clip_each=False)


def reference() -> dict[str, Tensor]:
    return _train(torch.float64, clip_each=False)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    return {
        "cosine": float(torch.cosine_similarity(broken["update"], reference["update"], dim=0)),
        "share": float(broken["by_micro_batch"][:4].square().sum()),
        "micro": broken["by_micro_batch"].numel(),
    }
