"""Recomputation outside of autocast.

A hand-written checkpoint runs the block in bf16 and recomputes it in fp32: the gradients belong to activations that never existed.

What happens
    The forward pass ran under `torch.autocast`, the loss was computed from its bf16 activations. The backward pass runs outside of
    the `with` block, as it should, and a recomputation in it that does not enter autocast again computes in fp32. The recomputed
    activations differ by {activations:.1%} from those that made the loss, ReLU masks flip here and there, and the gradient is one
    of a slightly different network. The memory that bf16 was to save is spent as well.

How to recognise it
    Slower and larger backward passes than expected, gradients that differ between checkpointed and plain runs by far more than
    their noise. In a custom `autograd.Function` look for the missing `torch.autocast` in `backward`.

The repair
    Remember the autocast state in forward and enter it in backward; `torch.utils.checkpoint` does. The activations of both passes
    then differ by {same:.0%}. `torch.amp.custom_fwd` and `custom_bwd` do it for custom functions.

When it is no problem
    The recomputed numbers are more precise than the first ones, and often training does not notice. It is a fault where masks,
    norms or losses depend on the exact values.

Sources
    PyTorch, torch.utils.checkpoint (restores the autocast state); Automatic Mixed Precision examples, "Functions with custom
    autograd".
"""

from typing import Any

import torch
from torch import Tensor, nn

DTYPE = "bf16"
LEVEL = "expert"
COVERS = ("other autocast",)
EXPECT = (("PL508", "aten.addmm"),)
CLAIMS = {"activations": (5e-4, 2e-2), "same": (0, 0)}
QUIZ = (
    (
        "The recomputation runs in fp32 instead of bf16. How much do the activations differ from those of the forward pass?",
        {"not at all": "activations == 0", "by about one rounding of bf16": "0 < activations < 0.02", "completely": "activations > 0.1"},
    ),
)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(32, 64), nn.Linear(64, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(x)))


class Recomputed(torch.autograd.Function):
    """Checkpointing by hand."""

    @staticmethod
    def forward(ctx: Any, run: Any, again: Any, x: Tensor, *weights: Tensor) -> Tensor:
        ctx.again, ctx.weights = again, weights
        ctx.save_for_backward(x)
        with torch.no_grad():
            return run(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            out = ctx.again(x)
        return (None, None, *torch.autograd.grad(out, (x, *ctx.weights), grad.to(out.dtype)))


def _train(dtype: torch.dtype, enter_again: bool) -> dict[str, Tensor]:
    torch.manual_seed(0)
    low = dtype is not torch.float64
    net, x, y = Net(), torch.randn(64, 32), torch.randn(64, 8)
    if not low:
        net, x, y = net.double(), x.double(), y.double()
    optimizer, seen = torch.optim.SGD(net.parameters(), lr=1e-2), []

    def again(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype, enabled=low and enter_again):
            out = net(x)
        seen.append(out.detach())
        return out

    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype, enabled=low):
            out = Recomputed.apply(net, again, x, *net.parameters())
        loss = (out.to(y.dtype) - y).square().mean()
        loss.backward()
        optimizer.step()
    return {"loss": loss.detach(), "forward": out.detach(), "recomputed": seen[-1]}


def broken(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _train(dtype, enter_again=False)


def fixed(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _train(dtype, enter_again=True)


def reference() -> dict[str, Tensor]:
    return _train(torch.float64, enter_again=True)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    def gap(run: dict[str, Tensor]) -> float:
        return float((run["forward"] - run["recomputed"]).norm() / run["forward"].norm())

    return {"activations": gap(broken), "same": gap(fixed)}
