"""Small programs that the tests of the session audit."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.modules import module as hooks
from torch.optim import optimizer as steps
from torch.optim.lr_scheduler import LRScheduler
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def train(model: nn.Module, steps: int, optimizer: torch.optim.Optimizer | None = None) -> list[float]:
    """Losses of ``steps`` AdamW steps under bf16 autocast."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), 1e-2)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(steps):
        x = torch.randn(8, 8, generator=generator)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def overflowing(value: float = 300.0) -> torch.Tensor:
    x = torch.full((4,), value, dtype=torch.float16)
    return x * x


def state() -> dict[str, Any]:
    """Everything global that an audit touches."""
    return {
        "modes": len(_get_current_dispatch_mode_stack()),
        "module hooks": (len(hooks._global_forward_pre_hooks), len(hooks._global_forward_hooks)),
        "step hooks": (len(steps._global_optimizer_pre_hooks), len(steps._global_optimizer_post_hooks)),
        "backward": torch.autograd.backward,
        "tensor": torch.tensor,
        "scaler": tuple(vars(GradScaler)[name] for name in ("scale", "unscale_", "step", "update")),
        "scheduler": LRScheduler.step,
        "grad": torch.is_grad_enabled(),
    }
