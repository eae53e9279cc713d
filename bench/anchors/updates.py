"""Weight updates in half precision: which are lost, and what brings them back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

import precisionlab as pl
from bench.anchors.anchor import Check, anchor, between, exactly, near
from bench.anchors.audited import AUDIT, parameter, stepped
from precisionlab import formats as f

Array = NDArray[np.float64]

FP16, BF16 = torch.float16, torch.bfloat16
NAMES = {FP16: "fp16", BF16: "bf16"}
RATIOS = 8192
EMULATION = "emulation"


def largest_moving_ratio(dtype: torch.dtype, weight: float, sign: float) -> float:
    """Largest integer r with w + sign w/r != w, dw rounded to the dtype too: from the share of elements that an audit calls swamped."""
    w = torch.full((RATIOS,), weight).to(dtype)
    step = (w.double() / torch.arange(1, RATIOS + 1)).to(dtype)
    report, _ = stepped(w, -sign * step, partial(torch.optim.SGD, lr=1.0))
    return round(RATIOS * (1.0 - (parameter(report).swamped_share or 0.0)))


@anchor("A9", "updates swamped by their weights")
def swamping() -> Iterator[Check]:
    """w + dw = w from |w/dw| = 2^11 (fp16) or 2^8 (bf16) at a power of two up to twice that inside a binade; below a power of two the
    spacing halves. Adam moves weights by about lr whatever the gradient: shares of N(0, 0.02) weights that do not move.

    Sources: Micikevicius et al. 2018, Mixed Precision Training, §3.1; ties to even: IEEE 754-2019 §4.3.1.
    """
    for dtype, ratios in ((FP16, (2047, 3070, 4074)), (BF16, (255, 382, 510))):
        for weight, expected in zip((1.0, 1.5, 1.99), ratios, strict=True):
            found = largest_moving_ratio(dtype, weight, 1.0)
            yield exactly(f"{NAMES[dtype]}, w={weight}: largest w/dw that adds", found, expected, AUDIT)
    for dtype, expected in ((FP16, 4094), (BF16, 510)):
        yield exactly(f"{NAMES[dtype]}, w=1: largest w/dw that subtracts", largest_moving_ratio(dtype, 1.0, -1.0), expected, AUDIT)
    generator = torch.Generator().manual_seed(0)
    weights = 0.02 * torch.randn(200_000, generator=generator)
    signs = torch.randint(0, 2, weights.shape, generator=generator) * 2.0 - 1.0
    for dtype, lr, share in ((BF16, 1e-4, 11.8), (BF16, 3e-5, 69.6), (BF16, 1e-5, 84.4), (FP16, 1e-5, 11.8), (FP16, 1e-6, 84.4)):
        report, _ = stepped(weights.to(dtype), signs.to(dtype), partial(torch.optim.SGD, lr=lr), steps=3)
        found = 100.0 * (parameter(report).swamped_share or 0.0)
        # three standard errors of a share of 200 000, and 0.1 for the published digit
        spread = 300.0 * math.sqrt(share / 100 * (1 - share / 100) / len(weights)) + 0.1
        yield near(f"{NAMES[dtype]}, lr={lr:g}: swamped share, %", found, share, AUDIT, off=spread)


class Regression:
    """``problems`` least-squares problems in 10 dimensions, w* uniform on [0, 100], one exact sample a step."""

    DIMENSIONS, STEPS, PROBLEMS = 10, 20_000, 24

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.target = self.rng.uniform(0, 100, (self.PROBLEMS, self.DIMENSIONS))

    def train(self, lr: float, update: Callable[[Array, Array], Array]) -> Array:
        """Weights (problems, dimensions) after all steps of ``w = update(w, -lr g)``."""
        w = np.zeros_like(self.target)
        for _ in range(self.STEPS):
            x = self.rng.normal(size=w.shape)
            residual = ((w - self.target) * x).sum(-1, keepdims=True)
            w = update(w, -lr * residual * x)
        return w

    def error(self, w: Array) -> float:
        """Squared distance per weight to w*, averaged over the problems."""
        return float(((w - self.target) ** 2).mean())


def nearest_update(w: Array, dw: Array) -> Array:
    """w + dw rounded to bf16."""
    return f.round_to(w + dw, f.BF16)


def stochastic_updater(seed: int = 1) -> Callable[[Array, Array], Array]:
    """w + dw rounded to bf16 stochastically."""
    rng = np.random.default_rng(seed)
    plan = f.AccumulationPlan(f.AccumulationOrder.SEQUENTIAL, f.BF16, rounding=f.SumRounding.STOCHASTIC)

    def update(w: Array, dw: Array) -> Array:
        return f.accumulate(np.stack([w.ravel(), dw.ravel()], 1), plan, rng).reshape(w.shape)

    return update


def kahan_updater() -> Callable[[Array, Array], Array]:
    """w + dw in bf16 with what rounding lost kept in bf16 beside it."""
    lost: Array | float = 0.0

    def update(w: Array, dw: Array) -> Array:
        nonlocal lost
        step = f.round_to(dw + lost, f.BF16)
        moved = f.round_to(w + step, f.BF16)
        lost = f.round_to(step - f.round_to(moved - w, f.BF16), f.BF16)
        return moved

    return update


@anchor("A10", "bf16 weights: nearest rounding stops, stochastic rounding and Kahan go on")
def bf16_weights() -> Iterator[Check]:
    """Ten-dimensional least squares, 20 000 SGD steps; a smaller learning rate makes nearest rounding worse. The values expected are those
    of one problem, of which ten weights end a random fraction of a spacing away: factors of three are noise, the order is not.

    Source: Zamirai et al. 2020, Revisiting BFloat16 Training, arXiv:2010.06192.
    """
    found: dict[tuple[str, float], float] = {}
    stalled = np.zeros(0)
    expected = {1e-2: (0.29, 0.23, 0.031), 1e-3: (61.4, 0.14, 0.032)}
    problem = Regression()
    for lr, values in expected.items():
        updates = {"nearest": nearest_update, "stochastic": stochastic_updater(), "Kahan": kahan_updater()}
        for (name, update), value in zip(updates.items(), values, strict=True):
            weights = problem.train(lr, update)
            stalled = weights if name == "nearest" else stalled
            found[name, lr] = problem.error(weights)
            yield Check(f"{name}, lr={lr:g}: squared error per weight", found[name, lr], f"{value:g}", value / 3, value * 3, EMULATION)
    yield Check("lr=1e-3: nearest / stochastic", found["nearest", 1e-3] / found["stochastic", 1e-3], "> 100", 100, math.inf, EMULATION)
    yield Check("lr=1e-3: stochastic / Kahan", found["stochastic", 1e-3] / found["Kahan", 1e-3], "> 1", 1, math.inf, EMULATION)
    yield Check("nearest: lr=1e-3 / lr=1e-2", found["nearest", 1e-3] / found["nearest", 1e-2], "> 1", 1, math.inf, EMULATION)
    report = stalled_training(problem, stalled)
    yield between("where nearest stalls: swamped share of a step", parameter(report).swamped_share or 0.0, 0.5, 1.0, AUDIT)
    yield between("where nearest stalls: update efficiency", parameter(report).update_efficiency or 0.0, -0.1, 0.5, AUDIT)
    yield exactly("where nearest stalls: updates are a finding", any(found.code == "PL301" for found in report.findings), True, AUDIT)


def stalled_training(problem: Regression, start: Array) -> pl.Report:
    """An audit of twenty more steps of torch's SGD in bf16 from where nearest rounding got to."""
    target = torch.from_numpy(problem.target)
    w = torch.nn.Parameter(torch.from_numpy(start).bfloat16())
    optimizer = torch.optim.SGD([w], lr=1e-3)
    generator = torch.Generator().manual_seed(2)
    with pl.audit() as audit:
        for _ in range(20):
            x = torch.randn(target.shape, generator=generator, dtype=torch.float64)
            residual = ((w.detach().double() - target) * x).sum(-1, keepdim=True)
            w.grad = (residual * x).bfloat16()
            optimizer.step()
    return audit.report
