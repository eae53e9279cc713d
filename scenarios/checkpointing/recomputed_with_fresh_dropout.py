"""Recomputation with fresh random numbers.

Checkpointing recomputes a dropout with another mask: the gradients are {difference:.0%} away from those of the network that made
the loss.

What happens
    Activation checkpointing frees the activations of a block and runs the block again in the backward pass. With dropout the second
    run must drop the same units. If the generator is not set back, it draws a new mask; the loss belongs to one subnetwork, the
    gradient to another. For a mask with p = 0.5 half of the entries agree by chance.

How to recognise it
    Training with checkpointing is worse than without, though the losses of the first step are equal to the last bit. Set p = 0 and
    the difference is gone. Home-made checkpointing and kernels with their own generators are where it occurs.

The repair
    Save the generator's state before the block and restore it for the recomputation: `preserve_rng_state=True`, the default of
    `torch.utils.checkpoint`. The gradient then differs by {difference_fixed:.0%} from that without checkpointing. It is sometimes
    switched off for speed.

When it is no problem
    Blocks without random numbers: there the state need not be saved.

Sources
    Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost. PyTorch, torch.utils.checkpoint, on preserve_rng_state.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

DTYPE = "bf16"
LEVEL = "practitioner"
COVERS = ("fresh random numbers",)
EXPECT = (("PL508", "aten.bernoulli_"),)
CLAIMS = {"difference": (0.3, 2.0), "difference_fixed": (0, 0.02), "loss_gap": (0, 0.02)}
QUIZ = (
    (
        "Checkpointing without preserve_rng_state. Which is wrong in the first step?",
        {"the loss": "loss_gap > 0.1", "the gradient only": "loss_gap < 0.1 and difference > 0.1", "neither": "difference < 0.1"},
    ),
)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(32, 64), nn.Linear(64, 8)

    def hidden(self, x: Tensor) -> Tensor:
        return F.dropout(torch.tanh(self.first(x)), 0.5)

    def forward(self, x: Tensor, restore: bool) -> Tensor:
        return self.last(checkpoint(self.hidden, x, use_reentrant=False, preserve_rng_state=restore))


def _train(dtype: torch.dtype, restore: bool) -> dict[str, Tensor]:
    torch.manual_seed(0)
    net, x, y = Net().to(dtype), torch.randn(64, 32).to(dtype), torch.randn(64, 8).to(dtype)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    torch.manual_seed(1)
    loss = (net(x, restore) - y).square().mean()
    loss.backward()
    gradient = net.first.weight.grad.flatten().clone()
    optimizer.step()
    torch.manual_seed(0)
    fresh = Net().to(dtype)
    torch.manual_seed(1)
    (fresh.last(fresh.hidden(x)) - y).square().mean().backward()
    return {"loss": loss.detach(), "gradient": gradient, "without_checkpoint": fresh.first.weight.grad.flatten()}


def broken(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _train(dtype, restore=False)


def fixed(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _train(dtype, restore=True)


def reference() -> dict[str, Tensor]:
    return _train(torch.float64, restore=True)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    def difference(run: dict[str, Tensor]) -> float:
        return float((run["gradient"] - run["without_checkpoint"]).norm() / run["without_checkpoint"].norm())

    return {
        "difference": difference(broken),
        "difference_fixed": difference(fixed),
        "loss_gap": abs(float(broken["loss"] / fixed["loss"]) - 1),
    }
