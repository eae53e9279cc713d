"""Gradients averaged in bf16 over many ranks.

The same reduction is off by {error_few:.1%} on {few:.0f} ranks and by {error:.0%} on {many:.0f}.

What happens
    A ring all-reduce in bf16 adds one rank after another to a partial sum that travels in bf16. A gradient that is about the same
    on every rank (a bias, a norm gain) makes it grow like the number of ranks: at 256 times the term the spacing is twice the term,
    and the remaining ranks are not heard. Gradients of random sign suffer less: their sums grow like the square root.

How to recognise it
    A configuration that trains on 96 devices and not on 384, with the same global batch. Compare the reduced gradient of a bias
    with the mean of those of the ranks.

The repair
    Reduce in fp32 (`reduce_dtype=torch.float32`, `accumulate_allreduce_grads_in_fp32`), or in a tree, where a sum of n ranks has
    log2(n) additions.

When it is no problem
    A few dozen ranks. Or a hierarchy: 8 ranks in a node, then 48 nodes.

Sources
    pytorch/pytorch issue 106395 (stable on 12 x 8 devices, unstable on 48 x 8); NVIDIA/Megatron-LM issues 372 and 502.
"""

import torch
from torch import Tensor, nn

DTYPE = "bf16"
LEVEL = "practitioner"
COVERS = ("half averaging",)
EXPECT = (("PL302", "aten.add"),)
CLAIMS = {"error_few": (0, 0.05), "few": (96, 96), "error": (0.2, 0.5), "many": (384, 384)}
QUIZ = (
    (
        "384 ranks with a gradient of 1 each, added one by one in bf16, divided by 384. What is the mean?",
        {"1": "error < 0.02", "2/3, since the sum stops at 256": "0.2 < error < 0.5", "0": "error > 0.9"},
    ),
)
PICTURE = ("line", "path", "rank (partial sum of the bias gradient)")


def _rank(rank: int, dtype: torch.dtype) -> Tensor:
    """The gradient that one rank sends: weights, then bias."""
    torch.manual_seed(0)
    net = nn.Linear(24, 1).to(dtype)
    x = torch.rand(32, 24, generator=torch.Generator().manual_seed(rank)).to(dtype)
    (1.0 - net(x)).mean().backward()
    return torch.cat([net.weight.grad.flatten(), net.bias.grad])


def _reduce(dtype: torch.dtype, wire: torch.dtype) -> dict[str, Tensor]:
    with torch.enable_grad():
        gradients = [_rank(rank, dtype) for rank in range(384)]
    total, path, few = torch.zeros(25, dtype=wire), [], None
    for count, gradient in enumerate(gradients, 1):
        total = total + gradient.to(wire)
        path.append(total[-1].double())
        few = total / count if count == 96 else few
    return {"mean": total / 384, "mean_of_96": few, "path": torch.stack(path)}


def broken(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _reduce(dtype, dtype)


def fixed(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _reduce(dtype, torch.float32)


def reference() -> dict[str, Tensor]:
    return _reduce(torch.float64, torch.float64)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    def error(key: str) -> float:
        return abs(float(broken[key][-1] / reference[key][-1]) - 1)

    return {"error_few": error("mean_of_96"), "few": 96, "error": error("mean"), "many": 384}
