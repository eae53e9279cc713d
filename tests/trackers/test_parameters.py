"""Gradients and updates of parameters, judged over the audit."""

import torch
from torch import nn

import precisionlab as pl
from precisionlab.records import Verdict


def _clipped_with_an_overflowing_norm(model: nn.Linear, steps: int = 3) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for _ in range(steps):
        optimizer.zero_grad()
        (model(torch.ones(8, 512, dtype=model.weight.dtype)).float().sum() * 40).backward()
        norm = torch.sqrt(sum(p.grad.pow(2).sum() for p in model.parameters()))
        for p in model.parameters():
            p.grad.mul_(torch.clamp(1.0 / (norm + 1e-6), max=1.0))
        optimizer.step()


def test_gradients_lost_by_a_model_that_is_gone_at_the_end_are_reported() -> None:
    def program() -> None:
        _clipped_with_an_overflowing_norm(nn.Linear(512, 64).half())

    with pl.audit() as audit:
        program()
    broken = [f for f in audit.report.findings if f.verdict is Verdict.BROKEN]
    assert [(f.code, f.op) for f in broken] == [("PL101", "aten.pow")]
    assert "weight" in broken[0].message


def test_the_same_clipping_in_fp32_is_quiet() -> None:
    with pl.audit() as audit:
        _clipped_with_an_overflowing_norm(nn.Linear(512, 64))
    assert audit.report.findings == []
