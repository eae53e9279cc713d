"""Kahan's compensation: keeping what rounding loses.

bf16 weights under SGD stop {gap:.2g} short of the target; with the lost part kept in a second bf16 number they arrive, within
{gap_fixed:.2g}.

What happens
    A step dw on a weight w gives the rounded sum w' = fl(w + dw). What was lost, dw - (w' - w), can be computed exactly in the same
    format as long as dw is the smaller of the two, because w' - w is exact. Plain SGD throws it away, and where dw is below half
    the spacing of w that is everything. Here the weights should go from 1 to {target:.1f} in steps of 1e-3, an eighth of the
    spacing: they end at {end:.4f}.

How to recognise it
    As with every swamped update: weights equal before and after the step. It appears late in training, when steps are small.

The repair
    Keep the lost part in a buffer and add it to the next step, as Kahan does for sums. Weight and buffer together carry about 16
    bits. It costs one more bf16 number for each weight; a master copy costs two. The end is then {end_fixed:.4f}.

    Only the order of the operations makes it work: (w' - w) must be rounded before it is subtracted. A compiler that may simplify
    algebra removes it.

When it is no problem
    When the optimizer holds fp32 weights anyway.

Sources
    Kahan 1965, Further remarks on reducing truncation errors; Higham 2002, section 4.3. Zamirai et al. 2020, arXiv:2010.06192.
"""

import torch
from torch import Tensor, nn

DTYPE = "bf16"
LEVEL = "practitioner"
COVERS = ("kahan", "bf16 weights")
EXPECT = (("PL301", "aten.sub_"),)
CLAIMS = {"gap": (0.09, 0.11), "gap_fixed": (0, 0.008), "target": (1.1, 1.1), "end": (1, 1), "end_fixed": (1.09, 1.11)}
QUIZ = (
    (
        "The compensated weight and its buffer are both bf16. How close to the target can the weight itself get?",
        {
            "exactly there": "gap_fixed == 0",
            "to the next bf16 number, within 0.004": "0 < gap_fixed <= 0.0040",
            "not closer than without": "gap_fixed >= gap",
        },
    ),
)
PICTURE = ("line", "path", "step")


class Kahan(torch.optim.Optimizer):
    """SGD that keeps what each addition lost and adds it to the next step."""

    def __init__(self, params: list[nn.Parameter], lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                lost = state.get("lost", torch.zeros_like(p))
                change = lost - group["lr"] * p.grad
                moved = p + change
                state["lost"] = change - (moved - p)
                p.copy_(moved)


class PlainSGD(torch.optim.Optimizer):
    def __init__(self, params: list[nn.Parameter], lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] * p.grad)


def _train(dtype: torch.dtype, make: type[torch.optim.Optimizer]) -> dict[str, Tensor]:
    weight = nn.Parameter(torch.ones(16, dtype=dtype))
    optimizer = make([weight], 1e-3)
    path = []
    for _ in range(100):
        optimizer.zero_grad()
        (-weight.sum()).backward()
        optimizer.step()
        path.append(weight.detach()[0].to(torch.float64, copy=True))
    return {"weight": weight.detach()[0].clone(), "path": torch.stack(path)}


def broken(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _train(dtype, PlainSGD)


def fixed(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _train(dtype, Kahan)


def reference() -> dict[str, Tensor]:
    return _train(torch.float64, PlainSGD)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    target = float(reference["weight"])
    return {
        "gap": target - float(broken["weight"]),
        "gap_fixed": abs(target - float(fixed["weight"])),
        "target": round(target, 9),
        "end": float(broken["weight"]),
        "end_fixed": float(fixed["weight"]),
    }
