"""The dtypes of at most 16 bits as PyTorch and ml_dtypes have them, and comparisons that tell -0 from 0."""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
import torch

from precisionlab import formats as f

NARROW = {
    f.FP16: (torch.float16, np.float16),
    f.BF16: (torch.bfloat16, ml_dtypes.bfloat16),
    f.FP8_E5M2: (torch.float8_e5m2, ml_dtypes.float8_e5m2),
    f.FP8_E4M3FN: (torch.float8_e4m3fn, ml_dtypes.float8_e4m3fn),
    f.FP8_E5M2FNUZ: (torch.float8_e5m2fnuz, ml_dtypes.float8_e5m2fnuz),
    f.FP8_E4M3FNUZ: (torch.float8_e4m3fnuz, ml_dtypes.float8_e4m3fnuz),
}


class Narrow(NamedTuple):
    """One format of at most 16 bits with its two oracles."""

    fmt: f.Format
    torch_dtype: torch.dtype
    ml_dtype: Any

    @property
    def word(self) -> type[np.unsignedinteger[Any]]:
        return np.uint8 if self.fmt.bits == 8 else np.uint16

    def patterns(self) -> np.ndarray:
        """Every bit pattern."""
        return np.arange(2**self.fmt.bits).astype(self.word)

    def ml_values(self) -> np.ndarray:
        """Every pattern as ml_dtypes reads it."""
        with np.errstate(invalid="ignore"):  # signalling NaN
            return self.patterns().view(self.ml_dtype).astype(np.float64)

    def magnitudes(self) -> np.ndarray:
        """Every finite number without a sign, ascending from 0, read by ml_dtypes rather than by the code under test."""
        values = self.ml_values()
        return np.unique(values[np.isfinite(values) & ~np.signbit(values)])

    def torch_cast(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """``x`` (float32 or float64) cast by torch: the values in float64, and the bit patterns."""
        cast = torch.from_numpy(x).to(self.torch_dtype)
        return cast.double().numpy(), cast.view(torch.uint8 if self.fmt.bits == 8 else torch.uint16).numpy()


@pytest.fixture(params=NARROW, ids=str)
def narrow(request: pytest.FixtureRequest) -> Narrow:
    return Narrow(request.param, *NARROW[request.param])


def _assert_identical(actual: np.ndarray, expected: np.ndarray, inputs: np.ndarray | None = None) -> None:
    """Equal values, signs of zero included; NaN equals NaN whatever its payload. Prints the first differing inputs."""
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    assert actual.shape == expected.shape
    both_nan = np.isnan(actual) & np.isnan(expected)
    wrong = np.flatnonzero(~both_nan & (actual.view(np.uint64) != expected.view(np.uint64)))
    if wrong.size:
        first = wrong[:5]
        where = first if inputs is None else np.asarray(inputs).ravel()[first]
        pytest.fail(f"{wrong.size} differ; at {where!r}: {actual.ravel()[first]} instead of {expected.ravel()[first]}")


@pytest.fixture
def assert_identical() -> Any:
    return _assert_identical
