"""A beta2 that rounds to one.

0.999 as a bf16 tensor is {beta:.0f}, so 1 - beta2 is 0, the bias correction 0 / 0, and {nan_share:.0%} of the weights are NaN after
the first step.

What happens
    The bf16 neighbours of 1 are 1 - 2^-8 = 0.996 and 1 + 2^-7. 0.999 lies closer to 1. An optimizer that turns its constants into
    tensors of the weights' dtype has beta2 = 1: v never forgets and never learns, and the bias correction v / (1 - beta2^t) divides
    zero by zero. fp16 holds 0.999 (as 0.99902) but not 0.9999.

How to recognise it
    NaN after the first step, with beta2 = 0.999 and not with 0.95. In frameworks that cast hyper-parameters, in hand-written
    optimizers, in compiled graphs with scalars as tensors.

The repair
    Python floats for constants; they reach the kernel in fp32 or fp64, and {nan_fixed:.0%} of the weights are NaN. Compute 1 -
    beta2 in Python too.

When it is no problem
    torch.optim keeps its constants as Python floats. What remains in bf16 is that v * 0.999 rounds to v, so the second moment
    cannot decay.

Sources
    keras-team/keras issue 21238.
"""

import torch
from torch import Tensor, nn

DTYPE = "bf16"
LEVEL = "practitioner"
COVERS = ("beta2", "spacing")
EXPECT = (("PL303", "weight"),)
CLAIMS = {"beta": (1, 1), "nan_share": (1, 1), "nan_fixed": (0, 0)}
QUIZ = (
    (
        "What is torch.tensor(0.999, dtype=torch.bfloat16)?",
        {"0.99902": "beta == 0.9990234375", "0.996": "beta < 0.997", "1": "beta == 1"},
    ),
)


class CastingAdam(torch.optim.Optimizer):
    """Adam of a framework that converts every constant to the dtype of the variable."""

    def __init__(self, params: list[nn.Parameter], constants: torch.dtype) -> None:
        super().__init__(params, {"lr": 1e-2})
        self.constants, self.t = constants, 0

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        self.t += 1
        beta1, beta2 = torch.tensor(0.9, dtype=self.constants), torch.tensor(0.999, dtype=self.constants)
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                m, v = state.get("m", torch.zeros_like(p)), state.get("v", torch.zeros_like(p))
                state["m"] = m = beta1 * m + (1 - beta1) * p.grad
                state["v"] = v = beta2 * v + (1 - beta2) * p.grad.square()
                p.sub_(group["lr"] * (m / (1 - beta1**self.t)) / ((v / (1 - beta2**self.t)).sqrt() + 1e-7))


def _train(dtype: torch.dtype, constants: torch.dtype) -> dict[str, Tensor]:
    torch.manual_seed(39)
    net, x = nn.Linear(12, 1).to(dtype), torch.randn(64, 12).to(dtype)
    optimizer = CastingAdam(list(net.parameters()), constants)
    for _ in range(4):
        optimizer.zero_grad()
        loss = (net(x) - x[:, :1].abs()).square().mean()
        loss.backward()
        optimizer.step()
    return {"loss": loss.detach(), "weight": net.weight.detach().clone(), "beta2": torch.tensor(0.999, dtype=constants)}


def broken(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _train(dtype, dtype)


def fixed(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _train(dtype, torch.float32)


def reference() -> dict[str, Tensor]:
    return _train(torch.float64, torch.float64)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    return {
        "beta": float(broken["beta2"]),
        "nan_share": float(broken["weight"].isnan().double().mean()),
        "nan_fixed": float(fixed["weight"].isnan().double().mean()),
    }
