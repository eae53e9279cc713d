"""Ranks with their own loss scales.

Two ranks scale their losses by 2^10 and 2^14, the first divides the sum by its own: the update is {ratio:.1f} times as long as it
should be.

What happens
    A gradient carries the loss scale as a factor. Summed over ranks, all must carry the same. If every rank runs a dynamic scaler
    of its own and looks at its own gradients only, the rank that overflowed halves its scale and the others do not. From then on
    their gradients are added in different units. Here the second rank counts 16 times as much as the first.

How to recognise it
    Scales in the logs of the ranks differ. One rank's data dominate: the loss on its shard falls faster.

The repair
    Unscale before the reduction, each rank by its own scale, or, better, decide together: reduce `found_inf` over the ranks, so
    that all skip and all halve. torch's scaler looks at gradients after the reduction, which every rank has in common; sharded
    set-ups need `ShardedGradScaler`.

When it is no problem
    A static scale, or bf16 without any.

Sources
    PyTorch, torch.distributed.fsdp.sharded_grad_scaler; Rajbhandari et al. 2020, ZeRO.
"""

import torch
from torch import Tensor, nn

DTYPE = "fp16"
LEVEL = "expert"
COVERS = ("ranks with scales",)
UNNAMED = (
    "The audit follows the loss scale as one unit and sees that every gradient carries it and that it is divided out once. It does "
    "not tell the scales of two scalers apart, so it calls this safe. Compare the scales that the ranks log."
)
CLAIMS = {"ratio": (5, 12)}
QUIZ = (
    (
        "Scales of 2^10 and 2^14, equal gradients, the mean divided by 2^10. How long is the update?",
        {"right": "0.9 < ratio < 1.1", "16 times": "15 < ratio < 17", "about 8.5 times": "7 < ratio < 10"},
    ),
)


def _train(dtype: torch.dtype, scales: tuple[float, float]) -> dict[str, Tensor]:
    torch.manual_seed(0)
    low = dtype is not torch.float64
    net, x, y = nn.Linear(16, 4), torch.randn(2, 32, 16), torch.randn(2, 32, 4)
    if not low:
        net, x, y = net.double(), x.double(), y.double()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    scalers = [torch.amp.GradScaler("cpu", init_scale=scale, enabled=low) for scale in scales]
    start = net.weight.detach().clone()
    for _ in range(3):
        reduced = [torch.zeros_like(p) for p in net.parameters()]
        for rank in (0, 1):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype, enabled=low):
                out = net(x[rank])
            loss = (out.to(y.dtype) - y[rank]).square().mean()
            scalers[rank].scale(loss).backward()
            for total, p in zip(reduced, net.parameters(), strict=True):
                total += p.grad / 2
        for total, p in zip(reduced, net.parameters(), strict=True):
            p.grad = total
        scalers[0].step(optimizer)
        scalers[0].update()
    return {"loss": loss.detach(), "moved": (net.weight.detach() - start).norm()}


def broken(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _train(dtype, (2.0**10, 2.0**14))


def fixed(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return _train(dtype, (2.0**10, 2.0**10))


def reference() -> dict[str, Tensor]:
    return _train(torch.float64, (1.0, 1.0))


def numbers(broken: dict[str, Tensor], fixed: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    return {"ratio": float(broken["moved"] / reference["moved"])}
