"""Optimizer state that is cast on load.

fp32 moments are saved exactly and loaded beside fp16 weights: `load_state_dict` casts them, {zeroed:.0%} of the second moment is
zero, and the first steps are {ratio:.0f} times too long.

What happens
    `Optimizer.load_state_dict` converts floating state to the dtype of its parameter, since for torch's own optimizers state and
    parameter agree. A memory-efficient optimizer keeps fp32 moments beside fp16 weights: after the load they are fp16, and second
    moments below 3e-8 are 0. The steps after the resume divide by eps.

How to recognise it
    A loss spike after every resume, none when training goes through. `optimizer.state[p]["exp_avg_sq"].dtype` before and after.

The repair
    After `load_state_dict` put the saved tensors back (the steps are then {ratio_fixed:.2f} times as long as in fp64), or override
    the cast (`_process_value_according_to_param_policy`), or keep fp32 masters as the optimizer's parameters, so that nothing needs
    a cast.

When it is no problem
    fp32 parameters, and bf16 ones where 8 bits of the moments suffice.

Sources
    pytorch/pytorch issue 43706; facebookresearch/fairscale issue 50.
"""

import copy

import torch
from torch import Tensor, nn

DTYPE = "fp16"
LEVEL = "practitioner"
COVERS = ("state cast", "second moment")
EXPECT = (("PL303", "aten._to_copy"),)
CLAIMS = {"zeroed": (0.5, 1.0), "ratio": (3, 1000), "ratio_fixed": (0.5, 2)}
QUIZ = (
    (
        "The checkpoint holds fp32 moments of 1e-9, the weights are fp16. What is in the optimizer after load_state_dict?",
        {"the fp32 moments": "zeroed == 0", "fp16 moments, mostly zero": "zeroed >= 0.5"},
    ),
)


class HalfAdam(torch.optim.Optimizer):
    """fp16 weights, fp32 moments, the step in fp32."""

    def __init__(self, params: list[nn.Parameter]) -> None:
        super().__init__(params, {"lr": 2e-4})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                state, wide = self.state[p], torch.promote_types(p.dtype, torch.float32)
                if not state:
                    state.update(step=0, m=torch.zeros_like(p, dtype=wide), v=torch.zeros_like(p, dtype=wide))
                state["step"] += 1
                g = p.grad.to(wide)
                state["m"] = m = state["m"].to(wide).lerp(g, 0.1)
                state["v"] = v = state["v"].to(wide).mul(0.999).addcmul(g, g, value=0.001)
                corrected = (v / (1 - 0.999 ** state["step"])).sqrt() + 1e-8
                p.copy_(p.to(wide) - group["lr"] * m / (1 - 0.9 ** state["step"]) / corrected)


def _resume(dtype: torch.dtype, restore: bool) -> dict[str, Tensor]:
    torch.manual_seed(17)
    net = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)).to(dtype)
    x, y = torch.randn(32, 16).to(dtype), torch.randn(32, 4).to(dtype)

    def train(optimizer: HalfAdam, steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            ((net(x) - y).square().mean() * 1e-2).backward()
            optimizer.step()

    first = HalfAdam(list(net.parameters()))
    train(first, 60)
    saved = copy.deepcopy(first.state_dict())
    second = HalfAdam(list(net.parameters()))
    second.load_state_dict(copy.deepcopy(saved))
    if restore:
        for i, p in enumerate(net.parameters()):
            second.state[p].update(saved["state"][i])
    zeros = (second.state[net[0].weight]["v"] == 0).double().mean()
    before = net[0].weight.detach().double().clone()
    train(second, 4)
    return {"moved": (net[0].weight.detach().double() - before).abs().mean(), "zeros": zeros}


def broken(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _resume(dtype, restore=False)


def fixed(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _resume(dtype, restore=True)


def reference() -> dict[str, Tensor]:
    return _resume(torch.float64, restore=True)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    return {
        "zeroed": float(broken["zeros"]),
        "ratio": float(broken["moved"] / reference["moved"]),
        "ratio_fixed": float(fixed["moved"] / reference["moved"]),
    }
