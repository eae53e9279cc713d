"""Stochastic rounding: losing nothing on average.

Updates of a tenth of a spacing, rounded to nearest: {moved:.0%} of the way. Rounded up or down by chance: {moved_fixed:.0%}.

What happens
    Rounding to nearest sends w + dw back to w whenever dw is less than half a spacing, every time. Its error is small in each step
    and the same in each step, so errors add up to the whole distance: the weights stay at {end:.3f}, where fp64 reaches
    {target:.3f}.

How to recognise it
    Swamped updates (see the other scenarios of this topic), in a setting without room for fp32 masters: very large embeddings,
    optimizers on small devices.

The repair
    Round up with a probability equal to the fraction of the spacing that is to be covered: dw = 0.1 spacing moves w by a whole
    spacing in one step of ten. The expectation of every step is right, and errors of n steps grow like the square root of n, not
    like n. In bf16: add 16 random bits to the lower half of the fp32 number and cut it off. The mean weight arrives at
    {end_fixed:.3f}, single weights scatter by {scatter:.3f} around it.

When it is no problem
    It is a repair for weights. For activations the noise costs more than the bias it removes.

Sources
    Gupta et al. 2015, Deep Learning with Limited Numerical Precision; Connolly, Higham & Mary 2021, Stochastic Rounding and Its
    Probabilistic Backward Error Analysis; Zamirai et al. 2020, arXiv:2010.06192.
"""

import torch
from torch import Tensor, nn

DTYPE = "bf16"
LEVEL = "expert"
COVERS = ("stochastic rounding", "bf16 weights")
EXPECT = (("PL301", "aten.copy_"),)
CLAIMS = {
    "moved": (0, 0),
    "moved_fixed": (0.9, 1.1),
    "end": (1, 1),
    "target": (1.07, 1.09),
    "end_fixed": (1.06, 1.1),
    "scatter": (0.005, 0.04),
}
QUIZ = (
    (
        "Each update is a tenth of a spacing. How far do 100 of them carry 512 weights on average if every one is rounded stochastically?",
        {
            "nowhere": "moved_fixed < 0.1",
            "about half of the way": "0.1 <= moved_fixed < 0.9",
            "all the way, within a tenth": "moved_fixed >= 0.9",
        },
    ),
)
PICTURE = ("line", "path", "step (mean of the weights)")


def to_bf16_by_chance(x: Tensor, generator: torch.Generator) -> Tensor:
    """fp32 to bf16, up or down with probabilities that make the expectation exact."""
    noise = torch.randint(0, 1 << 16, x.shape, generator=generator, dtype=torch.int32)
    return ((x.view(torch.int32) + noise) & -65536).view(torch.float32).to(torch.bfloat16)


class SGD(torch.optim.Optimizer):
    """The step in fp32, rounded to the weights' format to nearest or by chance."""

    def __init__(self, params: list[nn.Parameter], lr: float, generator: torch.Generator | None) -> None:
        super().__init__(params, {"lr": lr})
        self.generator = generator

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                wide = torch.promote_types(p.dtype, torch.float32)
                moved = p.to(wide) - group["lr"] * p.grad.to(wide)
                p.copy_(moved if self.generator is None else to_bf16_by_chance(moved, self.generator))


def _train(dtype: torch.dtype, by_chance: bool) -> dict[str, Tensor]:
    weight = nn.Parameter(torch.ones(512, dtype=dtype))
    optimizer = SGD([weight], 0.1 * 2.0**-7, torch.Generator().manual_seed(0) if by_chance else None)
    path = []
    for _ in range(100):
        optimizer.zero_grad()
        (-weight.sum()).backward()
        optimizer.step()
        path.append(weight.detach().double().mean())
    return {"weight": weight.detach().clone(), "path": torch.stack(path)}


def broken(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _train(dtype, by_chance=False)


def fixed() -> dict[str, Tensor]:
    return _train(torch.bfloat16, by_chance=True)


def reference() -> dict[str, Tensor]:
    return _train(torch.float64, by_chance=False)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    target = float(reference["path"][-1])
    return {
        "moved": (float(broken["path"][-1]) - 1) / (target - 1),
        "moved_fixed": (float(fixed["path"][-1]) - 1) / (target - 1),
        "end": float(broken["path"][-1]),
        "target": target,
        "end_fixed": float(fixed["path"][-1]),
        "scatter": float(fixed["weight"].std()),
    }
