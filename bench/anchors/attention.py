"""Attention: rotary positions, the accumulators of blockwise attention, and a rounding that is biased."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch

import precisionlab as pl
from bench.anchors.anchor import Check, anchor, between, exactly, near
from bench.anchors.audited import AUDIT, evidence
from precisionlab import formats as f
from precisionlab.records import EventKind

Tensor = torch.Tensor
BF16, FP32 = torch.bfloat16, torch.float32
HEAD = 128


def rotate(x: Tensor, position: int, position_dtype: torch.dtype) -> Tensor:
    """Rotary embedding of ``x`` (pairs, 128) at one position, cos and sin stored in bf16, as in many language models."""
    frequencies = 10000.0 ** (-torch.arange(0, HEAD, 2, dtype=FP32) / HEAD)
    angles = torch.tensor(position).to(position_dtype).to(FP32) * frequencies
    cos, sin = angles.cos().to(BF16), angles.sin().to(BF16)
    first, second = x[:, : HEAD // 2], x[:, HEAD // 2 :]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], 1)


def logit_error(offset: int, position_dtype: torch.dtype) -> float:
    """Largest deviation, from the fp64 twin, of 200 logits of fp32 queries and keys that stand 7 positions apart."""
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(200, HEAD, generator=generator) for _ in range(2))
    with pl.audit() as audit:
        logits = (rotate(q, offset + 7, position_dtype) * rotate(k, offset, position_dtype)).sum(1) / math.sqrt(HEAD)
        true = audit.shadow(logits)
    return float((logits.double() - true).abs().max())


@anchor("A14", "rotary positions in bf16")
def rotary_positions() -> Iterator[Check]:
    """bf16 holds 256 + 128 log2(N/256) + 1 of the positions 0..N-1. Maxima over
    pairs depend on the draw: within a factor of 2.5.

    Source: Wang et al. 2024, When Precision Meets Position: BFloat16 Breaks Down RoPE in Long-Context Training, arXiv:2411.13476.
    """
    for fmt, n, expected in ((f.BF16, 512, 385), (f.BF16, 4096, 769), (f.BF16, 32768, 1153), (f.BF16, 131072, 1409), (f.FP16, 4096, 3073)):
        distinct = len(np.unique(f.round_to(np.arange(n), fmt)))
        yield exactly(f"{fmt}: distinct positions among 0..{n - 1}", distinct, expected, "emulation")
    with pl.audit() as audit:
        torch.arange(4096).to(BF16)
    kept = 4096 - evidence(audit.report, EventKind.CAST, "inexact")
    yield exactly("bf16: positions among 0..4095 that the cast keeps", kept, 768, AUDIT)
    for offset, wide, narrow in ((256, 0.011, 0.52), (1024, 0.009, 0.99), (4096, 0.009, 2.2)):
        found = logit_error(offset, FP32), logit_error(offset, BF16)
        yield between(f"offset {offset}, cos and sin in bf16: largest logit error", found[0], wide / 2.5, wide * 2.5, AUDIT)
        yield between(f"offset {offset}, positions in bf16: largest logit error", found[1], narrow / 2.5, narrow * 2.5, AUDIT)
        yield between(f"offset {offset}: the one over the other", found[1] / found[0], narrow / wide / 4, narrow / wide * 4, AUDIT)


def blockwise(q: Tensor, k: Tensor, v: Tensor, block: int, accumulator: torch.dtype) -> Tensor:
    """Attention one block of keys at a time; output and normaliser are kept in ``accumulator`` between blocks.

    Source: Dao et al. 2022, FlashAttention, algorithm 1.
    """
    out = torch.zeros(q.shape[0], v.shape[1], dtype=accumulator)
    total = torch.zeros(q.shape[0], 1, dtype=accumulator)
    highest = torch.full((q.shape[0], 1), -math.inf)
    for j in range(0, k.shape[0], block):
        scores = q.float() @ k[j : j + block].float().T / math.sqrt(q.shape[1])
        new = torch.maximum(highest, scores.amax(1, keepdim=True))
        weights, rescale = torch.exp(scores - new), torch.exp(highest - new)
        total = (total.float() * rescale + weights.sum(1, keepdim=True)).to(accumulator)
        out = (out.float() * rescale + weights.to(BF16).float() @ v[j : j + block].float()).to(accumulator)
        highest = new
    return (out.float() / total.float()).to(BF16)


def deviation_ratio(n: int, block: int, accumulator: torch.dtype) -> float:
    """Largest deviation of blockwise attention from its fp64 twin, over that of attention composed of bf16 ops."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(rows, 64, generator=generator).to(BF16) for rows in (64, n, n))
    with pl.audit() as audit:
        composed = torch.softmax(q @ k.T / 8, -1) @ v
        tiled = blockwise(q, k, v, block, accumulator)
        deviations = [float((out.double() - audit.shadow(out)).abs().max()) for out in (composed, tiled)]
    return deviations[1] / deviations[0]


@anchor("A15", "blockwise attention with bf16 accumulators gets worse with every block")
def blockwise_accumulators() -> Iterator[Check]:
    """8192 keys. With fp32 accumulators blocks do better than composed bf16 attention. Ratios of maxima: within 40 %.

    Source: Golden et al. 2024, Is Flash Attention Stable?, arXiv:2405.02803 (about 10 times the baseline in bf16).
    """
    yield near("fp32 accumulators, blocks of 128", deviation_ratio(8192, 128, FP32), 0.4, AUDIT, rel=0.4)
    ratios = {block: deviation_ratio(8192, block, BF16) for block in (8192, 128, 32)}
    for block, expected in ((8192, 1.0), (128, 4.5), (32, 18.8)):
        yield near(f"bf16 accumulators, {8192 // block} blocks", ratios[block], expected, AUDIT, rel=0.4)
    yield between("ratio of 256 blocks to 64", ratios[32] / ratios[128], 2.5, 6.0, AUDIT)


def sum_of_weighted_values(ones: int, low: float, high: float, rows: int = 100_000, keys: int = 16) -> tuple[float, float]:
    """Mean signed error in bf16 ulps, with its standard error, of sums of p v: ``ones`` weights are 1, the others e^low..e^high, and v is
    uniform on [-4,-2]."""
    rng = np.random.default_rng(5)
    p = np.exp(rng.uniform(low, high, (rows, keys)))
    p[:, :ones] = 1.0
    p = f.round_to(p, f.BF16)
    v = f.round_to(rng.uniform(-4, -2, (rows, keys)), f.BF16)
    found = f.dot(p, v, f.AccumulationPlan(f.AccumulationOrder.SEQUENTIAL, f.FP32)).sums
    exact = (p * v).sum(1)
    error = (f.round_to(found, f.BF16) - exact) / f.BF16.ulp(exact)
    return float(error.mean()), float(error.std() / math.sqrt(rows))


@anchor("A16", "weights of exactly 1 and values of one sign bias the rounding")
def biased_rounding() -> Iterator[Check]:
    """Half of the sums of two bf16 values of one binade are ties, and the small rest, of one sign, breaks them all the same way: a bias
    of half of half an ulp.

    Source: Qiu & Yao 2025, Why Low-Precision Transformer Training Fails: An Analysis on Flash Attention, arXiv:2510.04212.
    """
    cases = ((2, -16.0, -12.0, -0.25), (3, -16.0, -12.0, -0.145), (1, -16.0, -12.0, 0.0), (2, -4.0, -4.0, 0.0))
    for ones, low, high, expected in cases:
        bias, error = sum_of_weighted_values(ones, low, high)
        others = f"others e^{low:g}..e^{high:g}"
        yield near(f"{ones} weights of 1, {others}: mean error, ulp", bias, expected, "emulation", off=4 * error + 0.01)
