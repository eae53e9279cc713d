"""A gradient below the floor of fp16.

The loss is finite and nothing warns, yet {lost:.0%} of the gradient of the first layer is exactly zero.

What happens
    fp16 has full precision down to 2^-14 = 6.1e-5. Below that it counts in steps of 2^-24 = 6.0e-8, losing one bit per octave, and
    what lies below half a step, 2^-25 = 3.0e-8, is stored as zero. Under autocast the gradient of an activation is stored in fp16.
    Here a mean over many outputs makes these gradients about {size:.1e}. The backward pass multiplies what is left by the weights,
    so zero reaches every layer below: the first layer keeps {kept:.0%} of its gradient.

How to recognise it
    The loss falls slowly or not at all in fp16 and well in fp32 or bf16; no inf, no NaN. Count zeros: `(p.grad ==
    0).float().mean()`, and compare early layers with late ones. Deep layers of large models, losses that are means over many
    tokens, and fine-tuning near convergence have the smallest gradients.

The repair
    Multiply the loss by a scale S before `backward`: the chain rule multiplies every gradient by S, so that they fit, and the fp32
    gradient of the fp32 parameter is divided by S before the step. `torch.amp.GradScaler` does both. With S = 65536 the first layer
    keeps {kept_fixed:.1%}. A power of two costs no rounding.

When it is no problem
    When the zeros carry no energy: gradients of dead ReLUs and of solved samples are far below the rest and their sum is too. The
    audit weighs what was flushed by its share of the sum of squares, not by its count.

Sources
    Micikevicius et al. 2018, Mixed Precision Training, section 3.2 and figure 3. IEEE 754-2019, section 3.3 (subnormal numbers).
"""

import torch
from torch import Tensor, nn

DTYPE = "fp16"
LEVEL = "first steps"
COVERS = ("fp16 floors", "scale and unscale")
EXPECT = (("PL201", "first.weight"),)
CLAIMS = {"lost": (0.5, 1.0), "size": (1e-9, 5e-8), "kept": (0.0, 0.5), "kept_fixed": (0.99, 1.01)}
QUIZ = (
    (
        "Activations' gradients are about 1e-8 and are stored in fp16, whose smallest number is 6e-8. What does the optimizer see?",
        {
            "gradients with a large relative error": "0 < lost < 0.5",
            "mostly zeros": "lost >= 0.5",
            "the right gradients: the parameters are fp32": "lost == 0",
        },
    ),
)
PICTURE = ("histogram", "gradient", "size")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 32), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x)))


def _train(dtype: torch.dtype, scaled: bool) -> dict[str, Tensor]:
    torch.manual_seed(0)
    low = dtype is not torch.float64
    net, x, y = Net(), torch.randn(256, 16), torch.randn(256, 8)
    if not low:
        net, x, y = net.double(), x.double(), y.double()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0, enabled=scaled and low)
    with torch.autocast("cpu", dtype, enabled=low):
        out = net(x)
    loss = 1e-5 * (out.to(y.dtype) - y).square().mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    gradient = net.first.weight.grad.clone()
    scaler.step(optimizer)
    scaler.update()
    return {"loss": loss, "gradient": gradient}


def broken(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _train(dtype, scaled=False)


def fixed(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _train(dtype, scaled=True)


def reference() -> dict[str, Tensor]:
    return _train(torch.float64, scaled=False)


def _kept(gradient: Tensor, exact: Tensor) -> float:
    return float((gradient * exact).sum() / exact.square().sum())


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    return {
        "lost": float((broken["gradient"] == 0).double().mean()),
        "size": float(1e-5 * 2 / (256 * 8)),
        "kept": _kept(broken["gradient"], reference["gradient"]),
        "kept_fixed": _kept(fixed["gradient"], reference["gradient"]),
    }
