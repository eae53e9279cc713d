"""The compiled running sum gives the bits of the one in numpy."""

from __future__ import annotations

import numpy as np
import pytest

from precisionlab import formats as f
from precisionlab.formats import SumRounding, accumulate_steps
from precisionlab.formats.accumulate_steps import Adder, Partials, running_sum

SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 65504.0, -65504.0, 65520.0, 3.4e38, -3.4e38, 2.0**-24, 2.0**-25, 2.0**-149, 1e300, 5e-324]


def terms_of(kind: str, rng: np.random.Generator) -> np.ndarray:
    """(n, rows) terms: wide ones need rounding, members are numbers of fp8, and special ones end sums in every way."""
    if kind == "wide":
        return np.ldexp(rng.normal(size=(300, 24)), rng.integers(-30, 30, (300, 24)))
    if kind == "members":
        return f.round_to(rng.normal(size=(300, 24)), f.FP8_E4M3FN)
    drawn = rng.normal(size=(300, 24)) * 1e4
    places = rng.random(drawn.shape) < 0.02
    drawn[places] = rng.choice(SPECIAL, int(places.sum()))
    return drawn


@pytest.mark.parametrize("fmt", f.FORMATS, ids=str)
@pytest.mark.parametrize("rounding", [SumRounding.NEAREST_EVEN, SumRounding.TOWARD_ZERO], ids=str)
@pytest.mark.parametrize("kind", ["wide", "members", "special"])
def test_compiled_sums_are_bit_identical_with_the_same_diagnostics(
    fmt: f.Format, rounding: SumRounding, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fmt == f.FP64 and rounding is SumRounding.TOWARD_ZERO:
        pytest.skip("no emulation of directed rounding in fp64")
    rng = np.random.default_rng(3)
    terms = Partials.of_terms(terms_of(kind, rng))
    adder = Adder(fmt, rounding, rng)
    assert accumulate_steps._kernels() is not None
    with np.errstate(all="ignore"):
        compiled = running_sum(terms, adder)
        monkeypatch.setattr(accumulate_steps, "_COMPILED_FROM", 10**9)
        plain = running_sum(terms, adder)
    assert np.array_equal(compiled.values.view(np.int64)[~np.isnan(plain.values)], plain.values.view(np.int64)[~np.isnan(plain.values)])
    assert np.array_equal(np.isnan(compiled.values), np.isnan(plain.values))
    assert np.array_equal(compiled.live, plain.live)
    assert np.array_equal(compiled.overflowed, plain.overflowed)
    assert np.array_equal(compiled.largest, plain.largest, equal_nan=True)
