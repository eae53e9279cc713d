"""Range: gradients below the format, Adam's second moment, norms that overflow or drown."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from scipy.stats import norm

import precisionlab as pl
from bench.anchors.anchor import Check, anchor, between, exactly, near
from bench.anchors.audited import AUDIT, event, evidence, has_finding, op, parameter, stepped
from precisionlab import formats as f
from precisionlab.records import EventKind

FP16, BF16 = torch.float16, torch.bfloat16


def scaled_gradient(mu: float, sigma: float, scale: float, n: int = 200_000) -> pl.Report:
    """An audit of one backward pass whose gradient is S g with log2 |g| ~ N(mu, sigma), of an fp16 parameter."""
    g = 2.0 ** (mu + sigma * torch.randn(n, generator=torch.Generator().manual_seed(0)))
    w = torch.nn.Parameter(torch.zeros(n, dtype=FP16))
    with pl.audit() as audit:
        loss: Any = (w.float() * g).sum() * scale
        loss.backward()
    return audit.report


@anchor("A11", "how much of a gradient the loss scale leaves at zero")
def loss_scale_window() -> Iterator[Check]:
    """Phi((-25 - log2 S - mu) / sigma) of a log-normal gradient becomes zero in fp16, Phi((-14 - log2 S - mu) / sigma) is not normal.

    Source: Micikevicius et al. 2018, Mixed Precision Training, §3.2 (the mechanism and factors of 8 to 32768).
    """
    n = 200_000
    for mu, sigma, scale, expected in ((-20, 3, 1, 4.78), (-24, 4, 1, 40.13), (-24, 4, 256, 1.22)):
        found = parameter(scaled_gradient(mu, sigma, scale, n))
        theory = float(norm.cdf((-25 - math.log2(scale) - mu) / sigma))
        spread = 300 * math.sqrt(theory * (1 - theory) / n)
        label = f"log2|g| ~ N({mu},{sigma}), S={scale}"
        yield near(f"{label}: zero, %", 100 * (found.flushed_share or 0.0), expected, AUDIT, off=spread + 0.01)
        yield near(f"{label}: the formula, %", 100 * theory, expected, "formula", off=0.01)
    found = parameter(scaled_gradient(-20, 3, 256, n))
    below = 100 * ((found.subnormal_share or 0.0) + (found.flushed_share or 0.0))
    yield near("log2|g| ~ N(-20,3), S=256: below normal, %", below, 25.25, AUDIT, off=0.3)


def adam(params: list[torch.Tensor]) -> torch.optim.Optimizer:
    """Adam as torch sets it up: eps 1e-8, betas 0.9 and 0.999."""
    return torch.optim.Adam(params, lr=1e-3)


@anchor("A12", "Adam in half precision")
def adam_in_half() -> Iterator[Check]:
    """In fp16 eps = 1e-8 is 0, and so is v after one step where 0.001 g^2 <= 2^-25, |g| < 5.459e-3. A decay is frozen for every v iff
    1 - beta2 <= u/2.

    Sources: Kingma & Ba 2015, Adam, algorithm 1; the limits follow from round to nearest even, IEEE 754-2019 §4.3.1.
    """
    candidates = (2.0**-8 * (1 + torch.arange(1024) / 1024)).to(FP16)
    report, _ = stepped(torch.full((1024,), 0.5, dtype=FP16), candidates, adam)
    flushed = int(evidence(report, EventKind.FLUSH, "flushed", "aten.addcmul_"))
    yield near("largest fp16 gradient whose second moment is 0", float(candidates[max(flushed - 1, 0)]), 5.459e-3, AUDIT, rel=2.0**-11)
    report, w = stepped(torch.full((64,), 0.5, dtype=FP16), torch.zeros(64, dtype=FP16), adam)
    yield exactly("zero gradient: weights that become NaN", float(w.isnan().sum()), 64, "torch")
    yield exactly("zero gradient: found at the addition of eps", has_finding(report, "aten.add_"), 1, AUDIT)
    report, w = stepped(torch.full((64,), 0.5, dtype=FP16), torch.full((64,), 1e-4, dtype=FP16), adam)
    yield exactly("gradient 1e-4: weights that become -Inf", float((w == -math.inf).sum()), 64, "torch")
    yield exactly("gradient 1e-4: found at the second moment", has_finding(report, "aten.addcmul_"), 1, AUDIT)
    frozen = ((BF16, 0.999, 100.0), (BF16, 0.998, 95.3), (BF16, 0.995, 0.0), (FP16, 0.9999, 100.0), (FP16, 0.999, 0.0))
    for dtype, beta2, share in frozen:
        v = (1 + torch.arange(128 if dtype is BF16 else 1024) / (128 if dtype is BF16 else 1024)).to(dtype)
        still = f.round_to(v.double().numpy() * beta2, f.get_format(dtype)) == v.double().numpy()
        label = f"{f.get_format(dtype)}, beta2={beta2}: v of one binade that a decay leaves as it is, %"
        yield near(label, 100 * float(still.mean()), share, "emulation", off=0.05)
        if share:
            with pl.audit() as audit:
                v.mul_(beta2)
            swamped = evidence(audit.report, EventKind.LOST, "swamped", "aten.mul_")
            yield near(label, 100 * swamped / len(v), share, AUDIT, off=0.05)


@anchor("A13", "hand-written norms overflow where the norm itself fits")
def norms_overflow() -> Iterator[Check]:
    """A sum of squares leaves fp16 iff ||g|| >= sqrt(65520) = 255.97. Source: Micikevicius et al. 2018 (range of fp16)."""
    g = torch.full((1024,), 300.0, dtype=FP16)
    with pl.audit() as audit:
        naive = g.pow(2).sum().sqrt()
        kernel = torch.linalg.vector_norm(g)
        true = audit.shadow(naive)
    yield exactly("1024 x 300 in fp16: g.pow(2).sum().sqrt()", float(naive), math.inf, "torch")
    yield exactly("its fp64 twin", float(true), 9600.0, AUDIT)
    yield exactly("vector_norm", float(kernel), 9600.0, "torch")
    yield exactly("found at the square", has_finding(audit.report, "aten.pow"), 1, AUDIT)
    yield exactly("vector_norm is not found", has_finding(audit.report, "aten.linalg_vector_norm"), 0, AUDIT)
    yield near("smallest norm whose sum of squares overflows", smallest_overflowing_norm(), math.sqrt(65520), AUDIT, off=1 / 128)


def smallest_overflowing_norm() -> float:
    """Among norms 250, 250 1/128, ...: sixteen equal squares each, added in fp32 and stored in fp16; overflows counted by an audit."""
    norms = torch.arange(250, 260, 1 / 128)
    squares = (norms.square() / 16).unsqueeze(1).expand(-1, 16)
    with pl.audit() as audit:
        squares.sum(1).to(FP16)
    return float(norms[len(norms) - int(evidence(audit.report, EventKind.OVERFLOW, "nonfinite"))])


@anchor("norms", "the accumulator of fp32 norms drowns")
def long_norms() -> Iterator[Check]:
    """The norm of 10^7 tens is 31622.8; torch's CPU kernel for fp32 gives 0.93 % less in one thread.

    Sources: pytorch #15602, #68326, #151761, #169237.
    """
    tens = torch.full((10_000_000,), 10.0)
    with pl.audit() as audit:
        value = torch.linalg.vector_norm(tens).item()
    record = op(audit.report, "aten.linalg_vector_norm")
    yield near("vector_norm of 1e7 tens", value, 31328.5, "torch", off=0.5)
    yield near("error, %", 100 * record.drift_u_max * 2.0**-24, 0.93, AUDIT, off=0.005)
    yield between("local error over the bound of a blocked sum", record.rho_max, 8, math.inf, AUDIT)
    yield exactly("raised as an accumulator too narrow", event(audit.report, EventKind.RHO) is not None, True, AUDIT)
    for name, clip in (("clip_grad_norm_", with_clip_grad_norm), ("clipping by hand", by_hand)):
        w = torch.nn.Parameter(torch.zeros_like(tens))
        optimizer = torch.optim.SGD([w], lr=1e-3)
        with pl.audit(optimizer=optimizer) as audit:
            for _ in range(2):
                loss: Any = (w * tens).sum()  # torch leaves backward untyped
                loss.backward()
                clip(w)
                optimizer.step()
                optimizer.zero_grad()
        # the norm enters the coefficient inverted: clipped gradients are too large
        found = [finding for finding in audit.report.findings if "norm_error" in finding.evidence]
        yield near(f"{name}: gradient over its twin", parameter(audit.report).gradient_efficiency or 0.0, 1.0094, AUDIT, off=1e-3)
        yield exactly(f"{name}: findings that name the norm", len(found), 1, AUDIT)
        error = float(found[0].evidence["norm_error"]) if found else math.nan
        yield between(f"{name}: its error, beyond 2^-10", error, 2.0**-10, 2.0**-6, AUDIT)


def with_clip_grad_norm(w: torch.nn.Parameter) -> None:
    """Clips as torch does."""
    torch.nn.utils.clip_grad_norm_([w], 1.0)


def by_hand(w: torch.nn.Parameter) -> None:
    """Clips as scripts do."""
    assert w.grad is not None
    w.grad.mul_(1.0 / torch.linalg.vector_norm(w.grad))
