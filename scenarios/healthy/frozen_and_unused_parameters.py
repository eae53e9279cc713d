"""Healthy: parameters that never move.

{still:.0%} of the parameters are bit for bit the same after {steps:.0f} steps, and they should be.

What it looks like
    No gradient, or a gradient of zero, and weights that stand still. A check of "which parameters moved" lists most of the model.

Why it is fine
    A frozen backbone has `requires_grad` off, the auxiliary head is not called, and one branch is detached. fp64 leaves them where
    they are as well, while the head, which is trained, moves by {head_moved:.2f}. The audit asks whether fp64 would have moved a
    weight that did not move.

When it would be a problem
    If the optimizer held them with weight decay (decay moves parameters without gradient in some optimizers), or if they were
    frozen by accident. Neither is a matter of precision.

Sources
    PyTorch, Autograd mechanics, "Setting requires_grad".
"""

import torch
from torch import Tensor, nn

DTYPE = "bf16"
LEVEL = "first steps"
COVERS = ("false alarm",)
CLAIMS = {"still": (0.5, 0.95), "steps": (5, 5), "head_moved": (0.001, 10)}
QUIZ = (
    (
        "A fine-tuning run updates the head only. Which share of the parameters stands still?",
        {"none": "still == 0", "more than half, as meant": "still > 0.5"},
    ),
)


class FineTuned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16)).requires_grad_(False)
        self.teacher, self.auxiliary, self.head = nn.Linear(16, 16), nn.Linear(16, 7), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        h = self.backbone(x)
        return self.head(h + self.teacher(h).detach())


def program(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    torch.manual_seed(109)
    model, x, y = FineTuned().to(dtype), torch.randn(32, 16).to(dtype), torch.randn(32, 16).to(dtype)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
    for _ in range(5):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
    same = torch.cat([(p.detach() == before[name]).flatten() for name, p in model.named_parameters() if not name.startswith("head")])
    head = (model.head.weight.detach() - before["head.weight"]).double().norm()
    total = sum(p.numel() for p in model.parameters())
    return {"loss": loss.detach(), "head_moved": head, "still": same.double().sum() / total}


def reference() -> dict[str, Tensor]:
    return program(torch.float64)


def numbers(program: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    return {"still": float(program["still"]), "steps": 5, "head_moved": float(program["head_moved"])}
