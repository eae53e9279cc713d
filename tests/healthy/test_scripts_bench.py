"""What ``./dev bench scripts`` compares: it must notice one flipped bit, and mask nothing but timings."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
import torch

from bench.scripts import SCRIPTS, differences, png, without_timings


def test_one_flipped_bit_in_a_saved_tensor_is_a_difference():
    weights = {"model": {"w": torch.tensor([1.0, float("nan")]), "n": torch.tensor(3)}, "lr": 0.1, "log": [1, (2.0, float("nan"))]}
    other = {"model": {"w": torch.tensor([1.0, float("nan")]), "n": torch.tensor(3)}, "lr": 0.1, "log": [1, (2.0, float("nan"))]}
    assert differences(weights, other) == []
    other["model"]["w"].view(torch.int32)[0] ^= 1  # type: ignore[index]
    assert differences(weights, other) == [".model.w"]
    assert differences({"w": torch.zeros(2)}, {"w": torch.zeros(2).bfloat16()}) == [".w"]
    assert differences({"w": 1}, {"v": 1}) == [""]


@pytest.mark.parametrize(
    ("name", "line", "masked"),
    [
        ("nanoGPT", "iter 3: loss 5.3823, time 12.50ms, mfu -100.00%", "iter 3: loss 5.3823, <time>"),
        ("word_language_model", "| ms/batch  9.12 | loss  5.76 |", "| <time> | loss  5.76 |"),
        ("timm", "Loss: 2.31 (2.33)  Time: 0.1s, 9/s  LR: 5.0e-04  Data: 0.001 (0.002)", "Loss: 2.31 (2.33)  <time> 5.0e-04  <time>"),
    ],
)
def test_only_timings_are_masked(name, line, masked):
    assert without_timings(next(s for s in SCRIPTS if s.name == name), line) == masked


def test_png_holds_the_pixels_row_by_row_behind_a_filter_byte():
    pixels = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    data = png(pixels)
    assert struct.unpack(">II", data[16:24]) == (3, 2)
    start = data.index(b"IDAT")
    rows = zlib.decompress(data[start + 4 : start + 4 + struct.unpack(">I", data[start - 4 : start])[0]])
    assert rows == b"\0" + pixels[0].tobytes() + b"\0" + pixels[1].tobytes()
