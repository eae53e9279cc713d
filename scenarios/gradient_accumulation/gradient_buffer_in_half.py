"""A gradient buffer in half precision.

{micro:.0f} micro-batches accumulate in a bf16 `.grad`: the sum stops at {kept:.0%} of the true gradient.

What happens
    `.grad` has the dtype of the parameter, so bf16 parameters accumulate in bf16. A sum of k similar gradients g has the spacing of
    k g; from k = 256 on that is more than 2 g, and every further micro-batch rounds away. Up to there each addition costs a
    rounding, about 0.3 sqrt(k) units of 2^-8 for gradients of random sign: under a percent for 16, tens of percent only when they
    have a common direction.

How to recognise it
    The gradient norm stops growing with the number of micro-batches (before division), or a run gets worse with more accumulation.
    Parameters whose gradient has one sign in all batches fail first: biases, norm gains, output scales.

The repair
    An fp32 buffer: add `p.grad.float()` after each micro-batch and clear `.grad`. Frameworks call it `main_grad` or
    `accumulate_allreduce_grads_in_fp32`. The whole gradient arrives then ({kept_fixed:.1%}).

When it is no problem
    A handful of micro-batches. And fp32 parameters under autocast, whose `.grad` is fp32.

Sources
    deepspeedai/DeepSpeed issues 1800 and 2768; linkedin/Liger-Kernel issue 830.
"""

import torch
from torch import Tensor, nn

DTYPE = "bf16"
LEVEL = "first steps"
COVERS = ("half buffers", "running sum")
EXPECT = (("PL203", "aten.add_"),)
CLAIMS = {"micro": (600, 600), "kept": (0.3, 0.6), "kept_fixed": (0.99, 1.01)}
QUIZ = (
    (
        "600 micro-batches with nearly the same gradient are accumulated in bf16. How much of the sum is in .grad?",
        {"all of it, with some noise": "kept > 0.9", "about half": "0.3 < kept < 0.6", "none": "kept < 0.1"},
    ),
)
PICTURE = ("line", "path", "micro-batch")


def _train(dtype: torch.dtype, wide_buffer: bool) -> dict[str, Tensor]:
    torch.manual_seed(7)
    net = nn.Linear(16, 1).to(dtype)
    features = (1.0 + 0.05 * torch.rand(600, 4, 16)).to(dtype)
    wide = torch.promote_types(dtype, torch.float32)
    buffers = [torch.zeros_like(p, dtype=wide) for p in net.parameters()]
    path = []
    for part in features:
        (-net(part).mean() / 600).backward()
        if wide_buffer:
            for buffer, p in zip(buffers, net.parameters(), strict=True):
                buffer += p.grad.to(wide)
                p.grad = None
        path.append((buffers[1] if wide_buffer else net.bias.grad).to(torch.float64, copy=True).squeeze())
    gradients = buffers if wide_buffer else [p.grad.to(wide) for p in net.parameters()]
    masters = [p.detach().to(wide).requires_grad_() for p in net.parameters()]
    for master, gradient in zip(masters, gradients, strict=True):
        master.grad = gradient
    torch.optim.SGD(masters, lr=0.1).step()
    return {"gradient": gradients[0].flatten(), "path": torch.stack(path)}


def broken(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _train(dtype, wide_buffer=False)


def fixed(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _train(dtype, wide_buffer=True)


def reference() -> dict[str, Tensor]:
    return _train(torch.float64, wide_buffer=False)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    exact = reference["gradient"]
    return {
        "micro": broken["path"].numel(),
        "kept": float(broken["gradient"] @ exact / (exact @ exact)),
        "kept_fixed": float(fixed["gradient"] @ exact / (exact @ exact)),
    }
