"""A running mean of BatchNorm that does not arrive.

BatchNorm in bf16 with a small momentum: the data have mean {true:.1f}, the running mean stays at {end:.2f}.

What happens
    running = running + momentum * (batch - running). With momentum 0.001 and a distance of 0.5 the change is 5e-4, and near 3 the
    spacing of bf16 is 2^-6 = 0.016. Every update is lost. In training mode nothing depends on the running statistics, so the loss
    is right; in evaluation the layer normalises with the mean of the start.

How to recognise it
    Training loss fine, evaluation bad, and bad in fp32 too when the checkpoint was trained in bf16. Compare `running_mean` with the
    mean of a large batch.

The repair
    Keep the norm layers in fp32, as autocast does: statistics included. The running mean then gets to {end_fixed:.3f} in
    {steps:.0f} batches, what fp64 gives.

When it is no problem
    With the default momentum 0.1 the change is at least a tenth of the distance, and bf16 stops about 4 % of the mean short: often
    tolerable.

Sources
    Ioffe & Szegedy 2015, Batch Normalization, algorithm 2. PyTorch: BatchNorm running statistics have the dtype of the buffers.
"""

import torch
from torch import Tensor, nn

DTYPE = "bf16"
LEVEL = "practitioner"
COVERS = ("batchnorm statistics",)
EXPECT = (("PL302", "aten.native_batch_norm"),)
CLAIMS = {"true": (3.5, 3.5), "end": (3, 3), "end_fixed": (3.005, 3.02), "steps": (16, 16)}
QUIZ = (
    (
        "Momentum 0.001, running mean 3, batch mean 3.5, bf16. How much of an update arrives?",
        {"half of it": "3 < end < end_fixed", "nothing": "end == 3", "all of it": "end >= end_fixed"},
    ),
)
PICTURE = ("line", "path", "batch")


def _observe(dtype: torch.dtype, statistics: torch.dtype) -> dict[str, Tensor]:
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(16, momentum=0.001).to(statistics)
    norm.running_mean.fill_(3.0)
    path = []
    for _ in range(16):
        norm((torch.randn(32, 16) + 3.5).to(dtype).to(statistics))
        path.append(norm.running_mean.double().mean())
    return {"running_mean": norm.running_mean.clone(), "path": torch.stack(path)}


def broken(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _observe(dtype, dtype)


def fixed(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _observe(dtype, torch.float32)


def reference() -> dict[str, Tensor]:
    return _observe(torch.float64, torch.float64)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    return {
        "true": 3.5,
        "end": float(broken["path"][-1]),
        "end_fixed": float(fixed["path"][-1]),
        "steps": broken["path"].numel(),
    }
