"""bf16 weights at a small learning rate.

AdamW with lr 3e-4 on bf16 parameters: after {steps:.0f} steps the gain of the norm has moved by exactly {moved:.0f}, in fp64 by
{moved_exact:.3f}.

What happens
    An Adam step is about as long as the learning rate, whatever the gradient. bf16 has 8 significant bits: next to 1.0 its numbers
    are 2^-8 = 0.0039 apart below and 2^-7 above, and a step of 3e-4 is less than half of that. Each is lost, in the same way in
    every step. The matrices have weights of about 0.1, where the spacing is 2^-11 or so, and train: the model learns, with some of
    its parameters frozen. Of weights drawn from N(0, 0.02) {lost_4:.0%} do not move by a step of 1e-4 in bf16, and {lost_5:.0%} by
    one of 1e-5.

How to recognise it
    Norm gains that are exactly 1.0 in the final checkpoint; `(p == p_before).float().mean()` by parameter. A smaller learning rate
    trains fewer parameters, so the end of a decay does nothing.

The repair
    Parameters in fp32, forward and backward under bf16 autocast: the gain then moves by {moved_fixed:.3f}. Or keep bf16 parameters
    and an fp32 master copy in the optimizer, Kahan's compensation, or stochastic rounding.

When it is no problem
    At learning rates above half the spacing, about 4e-3 times the weight. Early in a pre-training with a large rate bf16 weights
    move.

Sources
    Zamirai et al. 2020, Revisiting BFloat16 Training, arXiv:2010.06192. A frozen norm in practice: vllm-project/speculators issue
    668.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DTYPE = "bf16"
LEVEL = "first steps"
COVERS = ("bf16 weights", "swamped update")
EXPECT = (("PL301", "norm.weight"),)
CLAIMS = {
    "steps": (30, 30),
    "moved": (0, 0),
    "moved_exact": (5e-3, 2e-2),
    "moved_fixed": (5e-3, 2e-2),
    "lost_4": (0.11, 0.13),
    "lost_5": (0.83, 0.86),
}
QUIZ = (
    (
        "An RMSNorm gain of 1.0 in bf16, AdamW with lr 3e-4, 30 steps. How far does the gain move?",
        {"about 30 times 3e-4": "moved > 1e-3", "not at all": "moved == 0"},
    ),
)
PICTURE = ("bars", "norm_moved", "how far the gain of the norm moved")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(32, 32), nn.RMSNorm(32), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(torch.relu(self.first(x))))


def _train(dtype: torch.dtype, weights: torch.dtype) -> dict[str, Tensor]:
    torch.manual_seed(13)
    net = Net().to(weights)
    x, y = torch.randn(64, 32).to(weights), torch.randint(0, 4, (64,))
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4, weight_decay=0.0)
    for _ in range(30):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype, enabled=weights is torch.float32):
            loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
    return {"loss": loss.detach(), "norm_moved": (net.norm.weight.detach() - 1.0).abs().max()}


def broken(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _train(dtype, dtype)


def fixed(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _train(dtype, torch.float32)


def reference() -> dict[str, Tensor]:
    return _train(torch.float64, torch.float64)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    weights = (0.02 * torch.randn(100_000, generator=torch.Generator().manual_seed(0))).bfloat16()

    def lost(step: float) -> float:
        return float((weights + torch.full_like(weights, step) == weights).double().mean())

    return {
        "steps": 30,
        "moved": float(broken["norm_moved"]),
        "moved_exact": float(reference["norm_moved"]),
        "moved_fixed": float(fixed["norm_moved"]),
        "lost_4": lost(1e-4),
        "lost_5": lost(1e-5),
    }
