"""How errors depend on width, sequence length and the number of micro-batches: drifts of an audit, in u of bf16."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional as F

import precisionlab as pl
from bench.anchors.anchor import Check, anchor, near
from bench.anchors.audited import AUDIT, op, parameter

BF16 = torch.bfloat16


def accumulated_gradient(micro_batches: int, mean: float, n: int = 4096) -> float:
    """Drift of a bf16 gradient that adds up micro-batches of N(mean, 1) gradients in ``.grad``."""
    generator = torch.Generator().manual_seed(0)
    w = torch.nn.Parameter(torch.zeros(n, dtype=BF16))
    with pl.audit() as audit:
        for _ in range(micro_batches):
            g = (torch.randn(n, generator=generator) + mean).to(BF16)
            loss: Any = (w * g).sum()  # torch leaves backward untyped
            loss.backward()
    return parameter(audit.report).gradient_drift_u or 0.0


@anchor("A20", "width, sequence length, micro-batches")
def sizes() -> Iterator[Check]:
    """Native kernels do not get worse with size; a gradient accumulated in half does, like 0.3 sqrt(K), and stalls where its mean is large.

    Source: Higham & Mary 2019 (square-root growth), Higham 2002 §4.2 (stagnation).
    """
    generator = torch.Generator().manual_seed(0)
    for width in (64, 512, 4096):
        x = torch.randn(256, width, generator=generator).to(BF16)
        with pl.audit() as audit:
            F.layer_norm(x, (width,))
        yield near(f"layer_norm, width {width}: drift, u", op(audit.report, "aten.native_layer_norm").drift_u_max, 0.43, AUDIT, rel=0.1)
    for n in (64, 512, 2048):
        q, k, v = (torch.randn(1, 2, n, 64, generator=generator).to(BF16) for _ in range(3))
        with pl.audit() as audit:
            F.scaled_dot_product_attention(q, k, v)
            scores = q @ k.transpose(-1, -2)
            probabilities = torch.softmax(scores / 8, -1)
            probabilities @ v
        native = op(audit.report, "aten._scaled_dot_product_flash_attention_for_cpu").drift_u_max
        yield near(f"attention kernel, n={n}: drift, u", native, 0.56, AUDIT, rel=0.1)
        yield near(f"composed attention, n={n}: drift, u", op(audit.report, "aten.bmm").drift_u_max, 1.16, AUDIT, rel=0.15)
    for micro_batches, expected in ((4, 0.68), (16, 1.3), (64, 2.5), (256, 4.8), (1024, 9.7)):
        found = accumulated_gradient(micro_batches, 0.0)
        yield near(f"{micro_batches} micro-batches: gradient drift, u", found, expected, AUDIT, rel=0.2)
        if micro_batches >= 16:
            yield near(
                f"{micro_batches} micro-batches: gradient drift / (sqrt(K) u)", found / math.sqrt(micro_batches), 0.3, AUDIT, rel=0.2
            )
    for micro_batches, expected in ((256, 11.0), (1024, 97.0)):
        yield near(
            f"{micro_batches} micro-batches, mean 3 sd: gradient drift, u",
            accumulated_gradient(micro_batches, 3.0),
            expected,
            AUDIT,
            rel=0.1,
        )
