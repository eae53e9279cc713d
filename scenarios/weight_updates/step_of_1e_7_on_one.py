"""A step of 1e-7 on a weight of 1.0.

{steps:.0f} updates of 1e-7, and the fp16 weight is still exactly {end:.1f}: every update was rounded away.

What happens
    The neighbours of 1.0 in fp16 are 1 + 2^-10 above and 1 - 2^-11 below. An update must be larger than half that spacing, 2.4e-4
    downwards, or the sum rounds back to where it was. 1e-7 is {times:.0f} times too small. It makes no difference that 1e-7 itself
    is a number fp16 can hold: what counts is the ratio of weight and update. From a ratio of 2^11 = 2048 on (2^8 = 256 in bf16,
    2^24 in fp32) the update is lost whole, and {steps:.0f} lost updates sum to nothing.

How to recognise it
    Gradients are fine, the learning rate is fine, weights do not change: `torch.equal(before, after)`. Large weights (norm gains
    near 1, biases) freeze first; the loss improves for a while through the small ones and then stalls. Lowering the learning rate
    makes it worse.

The repair
    Keep a master copy of the weights in fp32, apply the update there, and round it to fp16 for the forward pass. Its spacing at 1.0
    is 1.2e-7, so steps add up: after {steps:.0f} steps the master is {end_fixed:.6f}. Under autocast the parameters themselves are
    the fp32 masters.

When it is no problem
    When the fp16 copy stands still for many steps while the fp32 master moves. That is what masters are for, and it is not
    reported.

Sources
    Micikevicius et al. 2018, Mixed Precision Training, section 3.1: "at least 2048 times larger".
"""

import torch
from torch import Tensor, nn

DTYPE = "fp16"
LEVEL = "first steps"
COVERS = ("swamped update", "spacing")
EXPECT = (("PL301", "aten.add_"),)
CLAIMS = {"steps": (50, 50), "end": (1, 1), "times": (2400, 2500), "end_fixed": (0.99998, 0.999996)}
QUIZ = (
    (
        "An fp16 weight of 1.0 gets fifty SGD updates of 1e-7 each. What is it then?",
        {"0.999995": "end < 1", "exactly 1.0": "end == 1", "rounded down to 0.9995": "end < 0.9999"},
    ),
)
PICTURE = ("line", "path", "step")


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * x


def _train(dtype: torch.dtype, masters: bool) -> dict[str, Tensor]:
    model, x = Scale().to(dtype), torch.ones(4, 8, dtype=dtype)
    wide = torch.promote_types(dtype, torch.float32)
    held = [p.detach().to(wide) for p in model.parameters()] if masters else list(model.parameters())
    optimizer = torch.optim.SGD(held, lr=1e-7)
    path = []
    for _ in range(50):
        model.zero_grad()
        model(x).sum(1).mean().backward()
        if masters:
            for master, p in zip(held, model.parameters(), strict=True):
                master.grad = p.grad.to(wide)
        optimizer.step()
        if masters:
            with torch.no_grad():
                for master, p in zip(held, model.parameters(), strict=True):
                    p.copy_(master)
        path.append(held[0].detach()[0].to(torch.float64, copy=True))
    return {"weight": held[0].detach()[0], "path": torch.stack(path)}


def broken(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _train(dtype, masters=False)


def fixed(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _train(dtype, masters=True)


def reference() -> dict[str, Tensor]:
    return _train(torch.float64, masters=False)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    return {
        "steps": broken["path"].numel(),
        "end": float(broken["weight"]),
        "times": 2.0**-12 / 1e-7,
        "end_fixed": float(fixed["weight"]),
    }
