"""BatchNorm per replica.

{replicas:.0f} replicas with {size:.0f} samples each normalise by their own statistics; replicas that see other data disagree by
{spread:.0%} about the same sample.

What happens
    Data parallel training averages gradients; nothing averages the statistics of BatchNorm. If the data are sorted (by class, by
    patient, by length), each replica has its own mean and variance. A sample is normalised differently on every replica, and the
    running statistics that get saved are those of replica 0. In fp64 it is the same: no rounding is involved.

How to recognise it
    Good training loss, bad evaluation, and a result that depends on the number of devices. `running_mean` differs between ranks.

The repair
    `nn.SyncBatchNorm.convert_sync_batchnorm`, which reduces sum and sum of squares over the ranks, or a norm without batch
    statistics. Synchronised, they disagree by {spread_fixed:.0%}.

When it is no problem
    Shuffled data and a few dozen samples on each device.

Sources
    Peng et al. 2018, MegDet (cross-device batch normalization). PyTorch, SyncBatchNorm.
"""

import torch
from torch import Tensor

DTYPE = "bf16"
LEVEL = "practitioner"
COVERS = ("per-replica batchnorm",)
UNNAMED = (
    "Each replica and its fp64 twin use the same statistics and agree: nothing is wrong with the arithmetic, so the audit says safe. Only "
    "a comparison between ranks shows it, and the audit of one process sees one rank."
)
CLAIMS = {"replicas": (4, 4), "size": (16, 16), "spread": (0.3, 5.0), "spread_fixed": (0, 0.02)}
QUIZ = (
    (
        "Four replicas with differently sorted data. Do they agree, in fp64, on the normalised value of one and the same input?",
        {"to 1e-16": "spread < 1e-6", "not to a tenth": "spread > 0.1"},
    ),
)
PICTURE = ("line", "normalised", "replica (one input after the norm)")


def _normalise(dtype: torch.dtype, synchronised: bool) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shards = [(torch.randn(16, 8, generator=generator) + shift).to(dtype) for shift in (-1.0, 0.0, 1.0, 2.0)]
    probe = torch.ones(8, dtype=dtype)
    wide = torch.promote_types(dtype, torch.float32)
    means, squares = [s.to(wide).mean(0) for s in shards], [s.to(wide).square().mean(0) for s in shards]
    if synchronised:  # what an all-reduce of both gives to every rank
        means, squares = [torch.stack(means).mean(0)] * 4, [torch.stack(squares).mean(0)] * 4
    out = [((probe - m) * torch.rsqrt(q - m * m + 1e-5)).to(dtype) for m, q in zip(means, squares, strict=True)]
    return {"normalised": torch.stack(out)[:, 0]}


def broken(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _normalise(dtype, synchronised=False)


def fixed(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return _normalise(dtype, synchronised=True)


def reference() -> dict[str, Tensor]:
    return _normalise(torch.float64, synchronised=False)


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    def spread(run: dict[str, Tensor]) -> float:
        values = run["normalised"]
        return float((values.max() - values.min()) / values.abs().mean())

    return {"replicas": 4, "size": 16, "spread": spread(reference), "spread_fixed": spread(fixed)}
