"""Real data that needs no network: handwritten digits (scikit-learn) and text (the standard library's own source)."""

from __future__ import annotations

import argparse
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor


@lru_cache(maxsize=1)
def _digits() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    found = load_digits()
    return torch.tensor(found.data, dtype=torch.float32) / 16.0, torch.tensor(found.target)


def digits(step: int, batch: int = 64) -> tuple[Tensor, Tensor]:
    """Images ``[batch, 64]`` in 0..1 and labels; other rows each step."""
    images, labels = _digits()
    rows = (torch.arange(batch) + step * batch) % len(labels)
    return images[rows], labels[rows]


def digit_images(step: int, batch: int = 32) -> tuple[Tensor, Tensor]:
    """Images ``[batch, 1, 8, 8]`` and labels."""
    images, labels = digits(step, batch)
    return images.reshape(batch, 1, 8, 8), labels


@lru_cache(maxsize=1)
def _text() -> Tensor:
    return torch.frombuffer(bytearray(Path(argparse.__file__).read_bytes()), dtype=torch.uint8).long()


def text(step: int, batch: int = 4, length: int = 32) -> tuple[Tensor, Tensor]:
    """Bytes ``[batch, length]`` and the byte that follows each."""
    source = _text()
    starts = [(step * batch + i) * 997 % (len(source) - length - 1) for i in range(batch)]
    pieces = torch.stack([source[s : s + length + 1] for s in starts])
    return pieces[:, :-1].contiguous(), pieces[:, 1:].contiguous()
