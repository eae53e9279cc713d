"""Numbers that follow a known law, with log-normal noise: what fits must find again."""

from __future__ import annotations

import numpy as np

from precisionlab.growth.fits import Fit, Form, Law, Onset, Refusal, fit
from precisionlab.growth.forms import log_value


def noisy(form: Form, p: tuple[float, ...], sizes: list[float], noise: float, seeds: int, rng: np.random.Generator) -> list[list[float]]:
    """``seeds`` values a size, with a standard deviation of ``noise`` in ln y."""
    exact = log_value(form, p, np.array(sizes))
    return [[float(np.exp(y + noise * rng.normal())) for _ in range(seeds)] for y in exact]


def fitted(form: Form, p: tuple[float, ...], sizes: list[float], noise: float = 0.0, seeds: int = 1, seed: int = 0) -> Fit:
    """The fit, which must not be refused."""
    found = fit(sizes, noisy(form, p, sizes, noise, seeds, np.random.default_rng(seed)))
    assert isinstance(found, Fit), found
    return found


def law_of(found: Fit | Onset | Refusal) -> Law | None:
    """The law found; None where it was refused."""
    return None if isinstance(found, Refusal) else found.law
