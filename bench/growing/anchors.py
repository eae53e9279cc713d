"""Growth laws that theory or publications give, measured by sweeps or by the emulators of ``precisionlab.formats``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch.nn import functional as F

from bench.anchors.anchor import ANCHORS, Check, between, exactly, near
from bench.anchors.sums import relative_errors, sequential, uniform
from bench.growing import deep, long
from bench.growing.transformer import transformer
from precisionlab import formats as f
from precisionlab.growth.axes import Axis
from precisionlab.growth.fits import Fit, Form, Law, Onset, Refusal, fit, fit_form
from precisionlab.growth.measurement import Quantity
from precisionlab.growth.sweep import Sweeper

SWEEP, EMULATION = "sweep", "emulation"
SHALLOW = (4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0)
CALLED = ("A2", "A3", "A4", "A5", "A20")
"""Anchors of ``./dev bench science`` that are about growth: run as they are."""


def shared() -> Iterator[Check]:
    """The single numbers behind the laws."""
    for name in CALLED:
        for check in ANCHORS[name].run():
            yield Check(f"{name}  {check.claim}", check.measured, check.expected, check.low, check.high, check.by)


def sums() -> Iterator[Check]:
    """Exponents of running sums, rms over 200 rows: 1/2 for data with a mean, 0 without, and a plateau behind the stagnation.

    Sources: Higham & Mary 2019, 2020; Higham 2002, section 4.2.
    """
    sizes = [16, 32, 64, 128, 256, 512]
    errors = [[_rms(relative_errors(uniform(f.FP16, 200, n, seed=s), sequential(f.FP16)))] for s in (0,) for n in sizes]
    yield near("A2  fp16 sums of U[0,1]: exponent", _exponent(fit(sizes, errors)), 0.5, EMULATION, off=0.06)
    centred = []
    for n in [64, 256, 1024, 4096, 16384]:
        terms = uniform(f.BF16, 200, n, low=-1.0)
        centred.append([_rms((f.accumulate(terms, sequential(f.BF16)) - terms.sum(-1)) / np.abs(terms).sum(-1)) / f.BF16.u])
    yield _law("A3  bf16 sums of U[-1,1], error / sum |x|: law", fit([64, 256, 1024, 4096, 16384], centred), Law.FLAT)
    lengths = [512, 724, 1024, 1448, 2048, 2896, 4096, 8192, 16384]
    plateau = [[float(relative_errors(uniform(f.BF16, 50, n), sequential(f.BF16)).mean())] for n in lengths]
    yield _law("A4  bf16 sums of U[0,1] behind their stagnation at 512: law", fit(lengths, plateau), Law.SATURATING)


def depth(dtypes: tuple[str, ...], seeds: int) -> Iterator[Check]:
    """Width 256. The rates are those of mean-field theory (half the logarithm of the gain of a perturbation over that of the signal).

    Sources: Poole et al. 2016, arXiv:1606.05340; Schoenholz et al. 2017, arXiv:1611.01232; slopes measured before
    0.54 +- 0.06 (ReLU), 0.53 +- 0.02 (tanh), 0.325 +- 0.016 (pre-norm), rates 0.060 (chaotic tanh) and 0.054 (post-norm). A pre-norm slope
    lies between 0 and 1/2, the lower the more of the roundings are made in the branches, whose share of the stream shrinks; 0.035 is the
    interval of that slope together with ours.
    """
    root = math.sqrt(2.0)
    for dtype in dtypes:
        relu, tanh = (_drift(deep.deep(layer, gain), dtype, SHALLOW, seeds) for layer, gain in ((deep.relu, root), (deep.tanh, 1.0)))
        yield near(f"A18 {dtype} ReLU: exponent", _power(*relu), 0.5, SWEEP, off=0.10)
        yield near(f"A18 {dtype} tanh, gain 1: exponent", _power(*tanh), 0.5, SWEEP, off=0.08)
        blocks = _drift(transformer(), dtype, (2.0, *SHALLOW), seeds)
        yield near(f"A18 {dtype} pre-norm transformer: exponent", _power(*blocks), 0.325, SWEEP, off=0.035)
        pre = _drift(deep.deep(deep.pre_norm, root, root), dtype, SHALLOW, seeds)
        yield between(f"A18 {dtype} a pre-norm branch of two layers grows slower than ReLU", _power(*relu) - _power(*pre), 0.05, 0.4, SWEEP)
        deeper = (*SHALLOW, 40.0, 48.0)
        for name, layer, rate in (
            ("tanh, gain 1.5", deep.tanh, chaotic_rate(1.5, residual=False)),
            ("post-norm, tanh gain 1.5", deep.post_norm, chaotic_rate(1.5, residual=True)),
        ):
            found = fit(*_drift(deep.deep(layer, 1.5), dtype, deeper, seeds))
            yield _law(f"A18 {dtype} {name}: law", found, Law.EXPONENTIAL)
            yield near(f"A18 {dtype} {name}: rate", _exponent(found), rate, SWEEP, rel=0.25)


def sizes(seeds: int) -> Iterator[Check]:
    """Laws along width, sequence and micro-batches. Sources: as of A2; Higham 2002, section 4.2."""

    def layer_norm(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (x.shape[-1],))

    def attention(x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x[0], x[1], x[2])

    widths = long.of(layer_norm, lambda n: torch.randn(64, n), "width")
    yield _law("A20 bf16 layer_norm along width: law", _fitted(widths, "width", "bf16", (64, 256, 1024, 4096), seeds), Law.FLAT)
    lengths = long.of(attention, lambda n: torch.randn(3, 1, n, 32))
    yield _law("A20 bf16 attention along length: law", _fitted(lengths, "length", "bf16", (64, 128, 256, 512), seeds), Law.FLAT)
    found = _fitted(long.micro_batches(0.0), "micro_batches", "bf16", (16, 32, 64, 128), seeds, Quantity.GRADIENT)
    yield near("A20 bf16 gradients of mean 0 added in half: exponent", _exponent(found), 0.45, SWEEP, off=0.1)


def chaotic_rate(gain: float, *, residual: bool) -> float:
    """Rate of exponential growth per layer of x = tanh(W x), or of x = norm(x + tanh(W x)): 1/2 ln(chi / 1) at the fixed point of the
    signal, or 1/2 ln((1 + chi) / (1 + q)), with q = E tanh(g z)^2 and chi = g^2 E (tanh'(g z))^2."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    weights = weights / weights.sum()

    def mean(function: Callable[[np.ndarray], np.ndarray], variance: float) -> float:
        return float(weights @ function(nodes * math.sqrt(variance)))

    variance = gain**2
    for _ in range(0 if residual else 500):
        variance = gain**2 * mean(lambda z: np.tanh(z) ** 2, variance)
    chi = gain**2 * mean(lambda z: np.cosh(z) ** -4, variance)
    return 0.5 * math.log((1 + chi) / (1 + mean(lambda z: np.tanh(z) ** 2, variance)) if residual else chi)


def _drift(subject: object, dtype: str, depths: tuple[float, ...], seeds: int) -> tuple[list[float], list[list[float]]]:
    sweeper = Sweeper(subject, dtype, "pure", kernels="fast", seeds=seeds)  # type: ignore[arg-type]
    return sweeper.along(Axis("depth", depths)).series(Quantity.DRIFT)


def _fitted(
    subject: object, axis: str, dtype: str, sizes: tuple[float, ...], seeds: int, quantity: Quantity = Quantity.DRIFT
) -> Fit | Onset | Refusal:
    sweeper = Sweeper(subject, dtype, "pure", kernels="fast", seeds=seeds)  # type: ignore[arg-type]
    return fit(*sweeper.along(Axis(axis, tuple(float(n) for n in sizes))).series(quantity))


def _power(sizes: list[float], rows: list[list[float]]) -> float:
    found = fit_form(Form.POWER, sizes, rows)
    return found.exponent if found is not None else math.nan


def _exponent(found: Fit | Onset | Refusal) -> float:
    return found.exponent if isinstance(found, Fit) else math.nan


def _law(claim: str, found: Fit | Onset | Refusal, expected: Law) -> Check:
    law = found.law if isinstance(found, (Fit, Onset)) else found.reason
    return exactly(f"{claim} is {expected} ({law})", float(law is expected), 1.0, SWEEP)


def _rms(errors: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.asarray(errors) ** 2)))
