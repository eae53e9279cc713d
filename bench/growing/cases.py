"""Programs whose error, largest value or lost addend is forecast at four times the largest size fitted, or at the size where it fails."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

import precisionlab as pl
from bench.growing import deep, long
from precisionlab.growth.measurement import Quantity

BEYOND = 4
"""Forecasts are made for this many times the largest size fitted."""


@dataclass(frozen=True)
class Case:
    """One subject along one axis. ``seen`` are the sizes that the fit may see."""

    name: str
    subject: pl.Subject
    axis: str
    dtype: str
    seen: tuple[float, ...]
    quantity: Quantity


def queries_and_keys(scale: float) -> pl.Subject:
    """Attention scores without 1 / sqrt(width), 64 queries by 64 keys."""
    return long.of(long.scores, lambda width: scale * torch.randn(2, 64, width), "width")


def of_sizes(*sizes: float) -> tuple[float, ...]:
    """The sizes as a tuple."""
    return sizes


def doubled(first: float, last: float, by: float = 2.0) -> tuple[float, ...]:
    """``first`` to ``last``, each ``by`` times the one before, rounded."""
    count = round(math.log(last / first) / math.log(by))
    return tuple(dict.fromkeys(float(round(first * by**i)) for i in range(count + 1)))


ROOT = math.sqrt(2.0)

FORECASTS = (
    Case("attention scores without scaling", queries_and_keys(8.0), "width", "fp16", doubled(16, 256, ROOT), Quantity.PEAK),
    Case("running sum", long.of(long.running_sum, long.uniform), "length", "fp16", doubled(16, 512), Quantity.DRIFT),
    Case("running mean", long.of(long.running_mean, long.uniform), "length", "fp16", doubled(16, 256, ROOT), Quantity.DRIFT),
    Case("mean by a kernel", long.of(long.kernel_mean, long.uniform), "length", "fp16", doubled(64, 1024), Quantity.DRIFT),
    Case("rotary positions", long.of(long.rotary, lambda n: torch.randn(n, 64)), "length", "bf16", doubled(512, 4096, ROOT),
         Quantity.DRIFT),
    Case("recurrent state", long.of(long.linear_state, long.normal), "length", "bf16", doubled(16, 256, ROOT), Quantity.DRIFT),
    Case("residual stream", deep.deep(deep.residual, 0.66), "depth", "fp16", of_sizes(2, 4, 6, 8, 10, 12), Quantity.PEAK),
    Case("norm of growing parameter sets", long.of(long.norm_by_hand, lambda n: 3 * torch.randn(n, 64)), "length", "fp16",
         doubled(64, 1024), Quantity.PEAK),
    Case("softmax over growing rows", long.of(long.softmax_rows, lambda n: torch.randn(16, n)), "length", "fp16", doubled(64, 2048),
         Quantity.DRIFT),
    Case("micro-batches added in half", long.micro_batches(0.0), "micro_batches", "bf16", doubled(4, 64), Quantity.GRADIENT),
    Case("deep ReLU", deep.deep(deep.relu, ROOT), "depth", "fp16", of_sizes(2, 4, 8, 12, 16), Quantity.DRIFT),
    Case("post-norm", deep.deep(deep.post_norm, 1.5), "depth", "fp16", of_sizes(6, 8, 10, 12, 14, 16, 18, 20, 22, 24), Quantity.DRIFT),
    Case("pre-norm", deep.deep(deep.pre_norm, ROOT, ROOT), "depth", "bf16", of_sizes(2, 4, 8, 12, 16), Quantity.DRIFT),
    Case("GRU", long.gru(), "length", "bf16", doubled(8, 128), Quantity.DRIFT),
)  # fmt: skip
"""The measured value at four times the last size is to lie in the 95 % interval."""

ONSETS = (
    Case("attention scores without scaling", queries_and_keys(16.0), "width", "fp16", doubled(64, 1024, ROOT), Quantity.PEAK),
    Case("sum of squares for a norm", long.of(long.norm_by_hand, lambda n: 4 * torch.randn(n, 64)), "length", "fp16", doubled(64, 1024),
         Quantity.PEAK),
    Case("sum by a kernel", long.of(long.kernel_sum, lambda n: 16 * torch.rand(n, 64)), "length", "fp16", doubled(64, 1024), Quantity.PEAK),
    Case("residual stream", deep.deep(deep.residual, 0.66), "depth", "fp16", of_sizes(2, 4, 6, 8, 10, 12), Quantity.PEAK),
    Case("running sum", long.of(long.running_sum, long.uniform), "length", "fp16", doubled(16, 512), Quantity.LOST),
    Case("micro-batches with a mean of three deviations", long.micro_batches(3.0), "micro_batches", "bf16", doubled(4, 64), Quantity.LOST),
)  # fmt: skip
"""First overflow, and first addition that loses half of its addend: to be forecast within a factor of 1.5."""
