"""A global norm whose squares pass 65504.

Every gradient is finite and at most {largest:.0f}; their norm is {norm:.0f}, but clipping sees infinity and sets all gradients to
zero.

What happens
    The norm is the root of a sum of squares. It fits in fp16 up to 65504, the sum does so only while the norm is below sqrt(65520)
    = 255.97. Here {count:.0f} gradients of up to {largest:.0f} give a norm of {norm:.0f}, whose square {square:.2g} does not exist
    in fp16. The clip coefficient is max_norm / inf = 0, so clipping sets all gradients to exactly zero, and the step does nothing.
    Gradients, weights and loss stay finite; only the norm, which nobody looks at, is not.

How to recognise it
    Training stands still just when gradients are large; the logged norm is inf. It depends on the number of parameters, so a larger
    model fails where a smaller one trained.

The repair
    Square and sum in fp32: `g.float().square().sum()`, or `torch.linalg.vector_norm(g, dtype=torch.float32)`. The norm comes out as
    {norm_fixed:.0f} and the weights move. torch's own `clip_grad_norm_` sums in fp32 but returns the norm in the dtype of the
    gradients, so it overflows from 65504 on.

When it is no problem
    With fp32 gradients, which is what autocast gives to fp32 parameters. In bf16 the range is no trouble.

Sources
    facebookresearch/fairscale issue 263; apache/mxnet issue 15738. Higham 2002, section 27.8 (the 2-norm without overflow).
"""

import torch
from torch import Tensor, nn

DTYPE = "fp16"
LEVEL = "practitioner"
COVERS = ("global norm", "fp16 ceiling")
EXPECT = (("PL102", "aten.sum"),)
CLAIMS = {
    "largest": (20, 200),
    "count": (4096, 4096),
    "norm": (256, 5000),
    "square": (65520, 1e7),
    "norm_fixed": (256, 5000),
    "moved": (0, 0),
}
QUIZ = (
    (
        "All gradients are finite, the norm is above 256, clipping is written by hand in fp16. How far do the weights move?",
        {"a step of length lr": "moved > 0", "not at all": "moved == 0"},
    ),
)
PICTURE = ("bars", "moved", "how far the weights moved in 3 steps")


def clip(params: list[nn.Parameter], max_norm: float, wide: bool) -> Tensor:
    total = torch.zeros(())
    for p in params:
        g = p.grad.float() if wide and p.grad.dtype is torch.float16 else p.grad
        total = total.to(g.dtype) + (g * g).sum()
    norm = total.sqrt()
    for p in params:
        p.grad.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0).to(p.grad.dtype))
    return norm


def _train(dtype: torch.dtype, wide: bool) -> dict[str, Tensor]:
    torch.manual_seed(8)
    net, x = nn.Linear(64, 64, bias=False).to(dtype), torch.randn(64, 64).to(dtype)
    y = 100.0 * x
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    start, first = net.weight.detach().clone(), None
    for _ in range(3):
        optimizer.zero_grad()
        loss = 10.0 * (net(x) - y).to(torch.promote_types(dtype, torch.float32)).square().mean()
        loss.backward()
        first = net.weight.grad.abs().max() if first is None else first
        norm = clip(list(net.parameters()), 1.0, wide)
        optimizer.step()
    return {"loss": loss.detach(), "largest": first, "norm": norm, "moved": (net.weight.detach() - start).float().norm()}


def broken(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _train(dtype, wide=False)


def fixed(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _train(dtype, wide=True)


def reference() -> dict[str, Tensor]:
    return _train(torch.float64, wide=False)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    return {
        "largest": float(broken["largest"]),
        "count": 64 * 64,
        "norm": float(reference["norm"]),
        "square": float(reference["norm"]) ** 2,
        "norm_fixed": float(fixed["norm"]),
        "moved": float(broken["moved"]),
    }
