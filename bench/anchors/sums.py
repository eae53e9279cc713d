"""Sums and dot products, by the emulators of ``precisionlab.formats``. u is the unit roundoff of the format of the result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from bench.anchors.anchor import Check, anchor, between, exactly, near
from precisionlab import formats as f
from precisionlab.formats import AccumulationOrder as Order
from precisionlab.formats import AccumulationPlan, Format, SumRounding

Array = NDArray[np.float64]
EMULATION = "emulation"


def sequential(fmt: Format) -> AccumulationPlan:
    """One running sum in ``fmt``."""
    return AccumulationPlan(Order.SEQUENTIAL, fmt)


def uniform(fmt: Format, m: int, n: int, low: float = 0.0, seed: int = 0) -> Array:
    """(m, n) numbers of ``fmt``, uniform on [low, 1)."""
    return f.round_to(np.random.default_rng(seed).uniform(low, 1.0, (m, n)), fmt)


def relative_errors(terms: Array, plan: AccumulationPlan, store: Format | None = None) -> Array:
    """|sum - exact| / |exact| per row; ``store`` rounds the sums once more."""
    sums = f.accumulate(terms, plan)
    exact = terms.sum(-1)
    return np.asarray(np.abs((sums if store is None else f.round_to(sums, store)) - exact) / np.abs(exact))


@anchor("A1", "the deterministic bound is void from nu >= 1, where ones stop adding up")
def ones_stall() -> Iterator[Check]:
    """Sources: Higham 2002, Accuracy and Stability of Numerical Algorithms, §3.1 and §4.2."""
    for fmt, stall in ((f.FP16, 2048), (f.BF16, 256)):
        found = f.emulate(np.ones((1, 5000)), sequential(fmt))
        yield exactly(f"{fmt} running sum of 5000 ones", float(found.sums[0]), stall, EMULATION)
        yield exactly(f"{fmt} ones that left it unchanged", float(found.stagnated[0]), 5000 - stall, EMULATION)
        yield exactly(f"{fmt} first void n", next(float(n) for n in range(5000) if f.gamma(n, fmt.u) == np.inf), stall, EMULATION)


@anchor("A2", "errors of running sums grow like sqrt(n) u")
def grows_like_root_n() -> Iterator[Check]:
    """Largest of 200 fp16 sums of U[0,1]: 0.49 to 0.77 sqrt(n) u; a maximum of 200 draws varies by a fifth.

    Sources: Higham & Mary 2019, A new approach to probabilistic rounding error analysis; Ipsen & Zhou 2020.
    """
    for n in (64, 256, 1024, 4096):
        worst = relative_errors(uniform(f.FP16, 200, n), sequential(f.FP16)).max() / f.FP16.u
        yield between(f"fp16, n={n}: largest error / (sqrt(n) u)", float(worst / np.sqrt(n)), 0.49 * 0.8, 0.77 * 1.2, EMULATION)


@anchor("A3", "errors of sums with mean zero do not grow with n")
def zero_mean_does_not_grow() -> Iterator[Check]:
    """|error| / sum |x| of 200 sums of U[-1,1]; the largest was 1.9 u at the worst n, a maximum that varies by half.

    Source: Higham & Mary 2020, Sharper probabilistic backward error analysis for numerical linear algebra with random data.
    """
    for fmt in (f.FP16, f.BF16):
        largest = {}
        for n in (64, 1024, 16384):
            terms = uniform(fmt, 200, n, low=-1.0)
            errors = np.abs(f.accumulate(terms, sequential(fmt)) - terms.sum(-1)) / np.abs(terms).sum(-1) / fmt.u
            largest[n] = float(errors.max())
            yield between(f"{fmt}, n={n}: median error, u", float(np.median(errors)), 0.12, 0.22, EMULATION)
            yield Check(f"{fmt}, n={n}: largest error, u", largest[n], "<= 1.9", 0.0, 1.9 * 1.5, EMULATION)
        yield Check(f"{fmt}: largest error at n=16384 over n=64", largest[16384] / largest[64], "<= 1", 0.0, 1.5, EMULATION)


@anchor("A4", "where the spacing outgrows the terms a sum stops, at 1 - s/sum")
def plateaus() -> Iterator[Check]:
    """U[0,1] stops at 2048 in fp16 and 256 in bf16: relative error 1 - 2 s / n. Source: Higham 2002, §4.2 (the mechanism)."""
    for fmt, n, plateau in ((f.FP16, 16384, 0.75), (f.BF16, 1024, 0.50), (f.BF16, 4096, 0.875)):
        errors = relative_errors(uniform(fmt, 50, n), sequential(fmt))
        yield near(f"{fmt}, n={n}: mean relative error", float(errors.mean()), plateau, EMULATION, off=0.005)


@anchor("A5", "blocks and trees, n = 16384 in bf16")
def blocks_and_trees() -> Iterator[Check]:
    """U[0,1], errors of the sum stored in bf16.

    Source: Blanchard, Higham & Mary 2020, A class of fast and accurate summation algorithms.
    """
    terms = uniform(f.BF16, 200, 16384)
    blocks = AccumulationPlan(Order.BLOCKED, f.BF16, block=64)
    plans = {
        "sequential bf16": (sequential(f.BF16), 248.0, 0.01, None),
        "pairwise bf16": (AccumulationPlan(Order.PAIRWISE, f.BF16), 0.45, 0.2, None),
        "blocks of 64": (blocks, 0.76, 0.2, None),
        "blocks of 64, outer fp32": (replace(blocks, outer=f.FP32), 0.32, 0.2, 1.07),
        "sequential fp32": (sequential(f.FP32), 0.32, 0.2, 0.98),
    }
    median: dict[str, float] = {}
    for name, (plan, expected, spread, largest) in plans.items():
        errors = relative_errors(terms, plan, f.BF16) / f.BF16.u
        median[name] = float(np.median(errors))
        yield near(f"{name}: median error, u", median[name], expected, EMULATION, rel=spread)
        if largest is not None:
            yield near(f"{name}: largest error, u", float(errors.max()), largest, EMULATION, rel=0.15)
    yield Check("pairwise / blocks of 64", median["pairwise bf16"] / median["blocks of 64"], "< 1", 0.0, 1.0, EMULATION)


def products(n: int, m: int = 200, seed: int = 1) -> Array:
    """(m, n) exact products of two fp16 numbers, each uniform on [0, 1)."""
    return uniform(f.FP16, m, n, seed=seed) * uniform(f.FP16, m, n, seed=seed + 1)


def block_fma(fmt: Format, rounding: SumRounding, bits: int) -> AccumulationPlan:
    """Blocks of four products."""
    return AccumulationPlan(Order.BLOCK_FMA, fmt, block=4, bits=bits, rounding=rounding)


@anchor("A6", "block FMA with nearest rounding: fp16 against fp32 accumulators")
def block_fma_accumulators() -> Iterator[Check]:
    """n = 4096, blocks of 4 exact products.

    Source: Blanchard, Higham, Lopez, Mary & Pranesh 2020, Mixed precision block fused multiply-add.
    """
    terms = products(4096)
    half = relative_errors(terms, block_fma(f.FP16, SumRounding.NEAREST_EVEN, 44)).max()
    single = relative_errors(terms, block_fma(f.FP32, SumRounding.NEAREST_EVEN, 44)).max()
    yield near("fp16 accumulator: largest relative error", float(half), 1.06e-2, EMULATION, rel=0.3)
    each = relative_errors(terms, sequential(f.FP32)).max()
    yield near("fp32, rounded after each product: largest relative error", float(each), 3.0e-6, EMULATION, rel=0.4)
    yield Check("fp32, rounded once a block / after each product", float(single / each), "< 1", 0.0, 1.0, EMULATION)
    yield Check("fp32 accumulator / (sqrt(n) u32)", float(single / (64 * f.FP32.u)), "< 1", 0.0, 1.0, EMULATION)


@anchor("A7", "truncation in tensor cores is a bias, linear in n")
def truncation_bias() -> Iterator[Check]:
    """Mean relative error of the V100 model over U[0,1] products; nearest rounding has none.

    Source: Fasi, Higham, Mikaitis & Pranesh 2021, Numerical behavior of NVIDIA tensor cores.
    """
    bias = {n: _mean_error(products(n), f.V100) for n in (256, 1024, 4096)}
    for n, expected in ((256, -4.6e-6), (1024, -2.0e-5), (4096, -8.1e-5)):
        yield near(f"toward zero, n={n}: mean relative error", bias[n], expected, EMULATION, rel=0.15)
    for a, b in pairwise(bias):
        yield near(f"ratio of the biases at n={b} and {a}", bias[b] / bias[a], 4.0, EMULATION, rel=0.15)
    nearest = _mean_error(products(4096), block_fma(f.FP32, SumRounding.NEAREST_EVEN, 44))
    yield between("to nearest, n=4096: mean relative error", nearest, -2e-7, 2e-7, EMULATION)
    rng = np.random.default_rng(3)
    signed = f.round_to(rng.normal(size=(200, 4096)), f.FP16) * f.round_to(rng.normal(size=(200, 4096)), f.FP16)
    drift = (f.accumulate(signed, f.V100) - signed.sum(-1)) / np.abs(signed).sum(-1)
    yield between("N(0,1) data: mean error / sum |products|", float(drift.mean()), -1e-7, 1e-7, EMULATION)


def _mean_error(terms: Array, plan: AccumulationPlan) -> float:
    exact = terms.sum(-1)
    return float(((f.accumulate(terms, plan) - exact) / exact).mean())


@anchor("A8", "fp8 products in a 14-bit accumulator, and promotion every 128")
def limited_accumulator() -> Iterator[Check]:
    """K = 4096 in E4M3. DeepSeek-V3 reports "nearly 2 %", for data and a measure it does not define: between normal and uniform data.

    Source: DeepSeek-AI 2024, DeepSeek-V3 Technical Report, §3.3.2, arXiv:2412.19437.
    """
    rng = np.random.default_rng(4)
    worst = 0.0
    for name, draw in (("U[0,1]", rng.uniform(0, 1, (2, 200, 4096))), ("N(0,1)", rng.normal(size=(2, 200, 4096)))):
        a, b = f.round_to(draw, f.FP8_E4M3FN)
        exact = (a * b).sum(-1)
        plain, promoted = (f.dot(a, b, plan).sums - exact for plan in (f.H100_FP8, f.H100_FP8_PROMOTED))
        if name == "U[0,1]":
            worst = float(np.abs(plain / exact).max())
            yield near(f"{name}: largest relative error, %", 100 * worst, 7.1, EMULATION, rel=0.2)
            yield between(f"{name}: promotion divides it by", worst / float(np.abs(promoted / exact).max()), 30, 200, EMULATION)
        else:
            normwise = float(np.linalg.norm(plain) / np.linalg.norm(exact))
            yield near(f"{name}: normwise error, %", 100 * normwise, 0.13, EMULATION, rel=0.2)
            yield Check("published: nearly 2 %", 2.0, "between the two", 100 * normwise, 100 * worst, EMULATION)
