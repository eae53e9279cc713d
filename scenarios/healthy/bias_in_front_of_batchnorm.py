"""Healthy: a gradient that is nothing but noise.

The bias in front of a BatchNorm has a gradient of {found:.1e} in bf16 and of {exact:.1e} in fp64: off by a factor of {times:.0e},
and nothing is wrong.

What it looks like
    A relative error of {times:.0e}. Any tool that divides by the true gradient reports it as the worst tensor of the network.

Why it is fine
    BatchNorm subtracts the mean, so a bias in front of it has no effect and its true gradient is exactly zero. fp64 finds
    {exact:.1e}, its own rounding noise, bf16 finds rounding noise of its own size. Both are tiny beside the terms that were summed,
    and beside the gradients of the other parameters: {share:.1e} of the total norm. The key bias of attention, under softmax, is
    another such parameter. The audit measures a gradient against the rounding noise of its own sum, not against its own size.

When it would be a problem
    An adaptive optimizer divides by the size of this noise and moves the bias by the full learning rate in random directions. That
    has no effect here, but it does if the norm is folded or removed later.

Sources
    Ioffe & Szegedy 2015, section 3.2: "the bias can be ignored".
"""

import torch
from torch import Tensor, nn

DTYPE = "bf16"
LEVEL = "expert"
COVERS = ("false alarm",)
CLAIMS = {"found": (1e-8, 1e-2), "exact": (0, 1e-15), "times": (1e6, 1e16), "share": (0, 0.05)}
QUIZ = (
    (
        "What is the true gradient of a bias in front of a BatchNorm?",
        {"that of any other bias": "exact > 1e-6", "zero": "exact < 1e-12"},
    ),
)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.norm(self.first(x))))


def program(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    torch.manual_seed(0)
    net, x, y = Net().to(dtype), torch.randn(128, 16).to(dtype), torch.randn(128, 1).to(dtype)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    loss = (net(x) - y).square().mean()
    loss.backward()
    optimizer.step()
    total = torch.stack([p.grad.double().norm() for p in net.parameters()]).norm()
    return {"loss": loss.detach(), "bias_gradient": net.first.bias.grad.double().norm(), "total": total}


def reference() -> dict[str, Tensor]:
    return program(torch.float64)


def numbers(program: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    found, exact = float(program["bias_gradient"]), float(reference["bias_gradient"])
    return {"found": found, "exact": exact, "times": found / exact, "share": found / float(program["total"])}
