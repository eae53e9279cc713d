"""Gradient accumulation without the 1/N.

The micro-batch losses are summed, not averaged: in fp16 the gradient buffer passes 65504, and {taken:.0f} of {steps:.0f} steps are
taken.

What happens
    `backward` adds to `.grad`. After N micro-batches it holds the sum of N mean gradients, N times the gradient of the large batch.
    In exact arithmetic that is a learning rate N times too high (Adam hides it, clipping hides it). In an fp16 buffer it is also N
    times closer to the ceiling: {micro:.0f} scaled gradients of about {each:.0f} make {total:.0f}. Each is finite, their sum is
    not.

How to recognise it
    Overflow or skipped steps that appear when the number of micro-batches is raised although each batch is the same. A gradient
    norm that grows in proportion to N.

The repair
    Divide the loss by N before backward: each addend is N times smaller and the buffer ends at the mean. Losses that are sums over
    tokens should be divided by the number of tokens of the whole step.

When it is no problem
    When the optimizer's learning rate was meant for the sum and the buffer is fp32.

Sources
    openai/guided-diffusion issue 111 (micro-batch gradients summed, not averaged).
"""

import torch
from torch import Tensor, nn

DTYPE = "fp16"
LEVEL = "practitioner"
COVERS = ("missing 1/N",)
EXPECT = (("PL202", "aten.add_"),)
CLAIMS = {"taken": (0, 0), "steps": (4, 4), "micro": (16, 16), "each": (1000, 60000), "total": (65520, 1e6)}
QUIZ = (
    (
        "Sixteen gradients of about 15000 are added into an fp16 buffer, and steps with inf are skipped. Which of four are taken?",
        {"all": "taken == 4", "none": "taken == 0"},
    ),
)
PICTURE = ("line", "losses", "step")


def _train(dtype: torch.dtype, divide: bool) -> dict[str, Tensor]:
    torch.manual_seed(6)
    net, scale = nn.Linear(32, 1).to(dtype), 512.0
    x, y = (torch.rand(16, 8, 32) + 0.5).to(dtype), torch.full((16, 8, 1), 12.0, dtype=dtype)
    wide = torch.promote_types(dtype, torch.float32)
    masters = [p.detach().to(wide).requires_grad_() for p in net.parameters()]
    optimizer = torch.optim.SGD(masters, lr=1e-3)
    losses, taken, each = [], 0, None
    for _ in range(4):
        net.zero_grad()
        for part, target in zip(x, y, strict=True):
            loss = (net(part) - target).square().mean()
            ((loss / 16 if divide else loss).to(wide) * scale).backward()
            each = net.weight.grad.abs().max().clone() if each is None else each
        losses.append(loss.detach())
        if all(bool(torch.isfinite(p.grad).all()) for p in net.parameters()):
            for master, p in zip(masters, net.parameters(), strict=True):
                master.grad = p.grad.to(wide) / scale
            optimizer.step()
            taken += 1
            with torch.no_grad():
                for master, p in zip(masters, net.parameters(), strict=True):
                    p.copy_(master)
    return {"losses": torch.stack(losses), "taken": torch.tensor(taken), "first_gradient": each}


def broken(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _train(dtype, divide=False)


def fixed(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _train(dtype, divide=True)


def reference() -> dict[str, Tensor]:
    return _train(torch.float64, divide=True)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    each = float(broken["first_gradient"])
    return {"taken": float(broken["taken"]), "steps": 4, "micro": 16, "each": each, "total": 16 * each}
