"""A merged adapter that is mostly rounding noise.

Merged into bf16 weights the adapter's effect is {error:.0%} wrong, unmerged or merged in fp32 {error_fixed:.2%}.

What happens
    Merging adds a small matrix to a large one: W + B A. Entries of W are about 0.1, where bf16 steps by 2^-11 = 4.9e-4; entries of
    the update are about {update:.0e}, less than half of that. Each sum rounds back to W or jumps by a whole step. On average over
    many entries the jumps carry some of the update, but most of what is added is noise. W alone loses nothing by being bf16, it was
    trained so: it is the small difference that has no room.

How to recognise it
    The merged model is slightly worse than base plus adapter, differently for each adapter; the more adapters are merged one after
    another, the more. Compare (merged - base) with B A.

The repair
    Merge in fp32 and keep the result in fp32, or leave the adapter unmerged. Merging in fp32 and rounding once more to bf16 loses
    the same.

When it is no problem
    Strong adapters, whose update is many steps of W.

Sources
    Hu et al. 2021, LoRA; huggingface/peft issue 1388.
"""

import torch
from torch import Tensor, nn

DTYPE = "bf16"
LEVEL = "practitioner"
COVERS = ("lora merge", "swamped update")
EXPECT = (("PL503", "aten.add"),)
CLAIMS = {"error": (0.3, 3), "error_fixed": (0, 0.05), "update": (1e-5, 3e-4)}
QUIZ = (
    (
        "Weights of 0.1, an update of 1e-4, a bf16 step of 5e-4. How wrong is the effect of the merged update?",
        {"by 0.4 %, one rounding": "error < 0.01", "by 10 %": "0.01 <= error < 0.3", "by more than 30 %": "error >= 0.3"},
    ),
)


class Adapted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 64) / 8)
        self.a, self.b = nn.Parameter(torch.randn(4, 64) / 8), nn.Parameter(torch.randn(64, 4) * 4e-4)

    def merge(self, wide: bool) -> None:
        weight = self.weight.data.to(torch.promote_types(self.weight.dtype, torch.float32)) if wide else self.weight.data
        self.weight.data = weight + self.b.data.to(weight.dtype) @ self.a.data.to(weight.dtype)

    def forward(self, x: Tensor) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        return x.to(wide) @ self.weight.to(wide).t()


def _merge(dtype: torch.dtype, wide: bool) -> dict[str, Tensor]:
    torch.manual_seed(39)
    model, x = Adapted().bfloat16().to(dtype), torch.randn(32, 64).bfloat16().to(dtype)
    with torch.no_grad():
        base = model(x)
        update = (model.b.double() @ model.a.double()).square().mean().sqrt()
        model.merge(wide)
        return {"effect": model(x) - base, "update_size": update}


def broken(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _merge(dtype, wide=False)


def fixed(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _merge(dtype, wide=True)


def reference() -> dict[str, Tensor]:
    return _merge(torch.float64, wide=False)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    def error(run: dict[str, Tensor]) -> float:
        return float((run["effect"] - reference["effect"]).norm() / reference["effect"].norm())

    return {"error": error(broken), "error_fixed": error(fixed), "update": float(reference["update_size"])}
