"""Computations over a given length: sums, means, norms, positions, states, micro-batches."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

import precisionlab as pl


class Of(nn.Module):
    """A function as a module, without weights."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def first(model: nn.Module, batch: Tensor) -> Tensor:
    """A loss in fp32, which no measurement here looks at."""
    return model(batch).float().mean()


def of(function: Callable[[Tensor], Tensor], make: Callable[[int], Tensor], axis: str = "length") -> pl.Subject:
    """``function`` of the batch that ``make`` builds for a size of ``axis``."""

    def batch(step: int, **sizes: int) -> Tensor:
        return make(sizes[axis])

    return pl.Subject(lambda: Of(function), batch, first, sizes={axis: 64}, name=function.__name__)


def running_sum(x: Tensor) -> Tensor:
    """(n, rows): one addition a row of x, in the format."""
    total = torch.zeros_like(x[0])
    for term in x:
        total = total + term
    return total


def running_mean(x: Tensor) -> Tensor:
    """The mean kept while the terms come in, m + (x - m) / k: Welford 1962."""
    mean = torch.zeros_like(x[0])
    for k, term in enumerate(x, 1):
        mean = mean + (term - mean) / k
    return mean


def kernel_sum(x: Tensor) -> Tensor:
    """By torch's kernel, which accumulates in fp32; the result is stored in the format."""
    return x.sum(0)


def kernel_mean(x: Tensor) -> Tensor:
    return x.mean(0)


def norm_by_hand(x: Tensor) -> Tensor:
    """The norm of all parameters, as scripts write it."""
    return x.pow(2).sum(0).sqrt()


def softmax_rows(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def linear_state(x: Tensor) -> Tensor:
    """h = 0.99 h + 0.01 x over the first dimension: a state with a memory of a hundred steps."""
    state = torch.zeros_like(x[0])
    for term in x:
        state = 0.99 * state + 0.01 * term
    return state


def uniform(n: int, rows: int = 512) -> Tensor:
    """(n, rows), uniform on [0, 1)."""
    return torch.rand(n, rows)


def normal(n: int, rows: int = 512) -> Tensor:
    """(n, rows), N(0, 1)."""
    return torch.randn(n, rows)


def rotary(x: Tensor) -> Tensor:
    """Queries and keys (n, 64) turned by their position, which is kept in the format of x; scores of neighbours 7 apart."""
    n, width = x.shape
    frequencies = 10000.0 ** (-torch.arange(0, width, 2) / width)
    angles = torch.arange(n).to(x.dtype).float()[:, None] * frequencies
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x[:, : width // 2], x[:, width // 2 :]
    turned = torch.cat([a * cos - b * sin, a * sin + b * cos], -1)
    return turned


def scores(x: Tensor) -> Tensor:
    """q k^T without the 1 / sqrt(d): x is (2, positions, d)."""
    return x[0] @ x[1].T


class Recurrent(nn.Module):
    """``nn.GRU`` over ``length`` steps; the last state is the output."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(32, 64)

    def forward(self, x: Tensor) -> Tensor:
        last: Tensor = self.gru(x)[0][-1]
        return last


def gru() -> pl.Subject:
    def batch(step: int, length: int) -> Tensor:
        return torch.randn(length, 16, 32)

    return pl.Subject(Recurrent, batch, first, sizes={"length": 16}, name="gru")


class Weights(nn.Module):
    """A linear function of the batch; its gradient is the mean of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2048))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w


def micro_batches(mean: float) -> pl.Subject:
    """Gradients of N(mean, 1) added up in the format, over a number of micro-batches: one backward pass through each."""

    def batch(step: int, micro_batches: int) -> Tensor:
        return mean + torch.randn(micro_batches, 2048)

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        parts = [model(part[None]).sum() for part in batch]
        for part in parts[:-1]:
            part.backward()
        last: Tensor = parts[-1]
        return last

    return pl.Subject(Weights, batch, loss, sizes={"micro_batches": 4}, name="micro_batches")
