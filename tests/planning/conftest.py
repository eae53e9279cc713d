"""Programs that break in one place."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from precisionlab import Subject


class Norm(nn.Module):
    """Squares in the format of its input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        mean_square = x.square().mean(-1, keepdim=True)
        return x * torch.rsqrt(mean_square + 1e-6) * self.gain


class Net(nn.Module):
    def __init__(self, size: float) -> None:
        super().__init__()
        self.size = size
        self.first, self.norm, self.last = nn.Linear(16, 32), Norm(32), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.first(x) * self.size))


def subject(size: float) -> Subject:
    def batch(step: int) -> tuple[Tensor, Tensor]:
        made = torch.Generator().manual_seed(step)
        return torch.randn(8, 16, generator=made), torch.randn(8, 4, generator=made)

    def loss(model: nn.Module, given: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.mse_loss(model(given[0]).float(), given[1].float())

    return Subject(model=lambda: Net(size), batch=batch, loss=loss, name="net")


@pytest.fixture
def overflowing() -> Subject:
    """Its norm squares numbers around 1000: fp16 ends at 65504."""
    return subject(1000.0)


@pytest.fixture
def healthy() -> Subject:
    return subject(1.0)
