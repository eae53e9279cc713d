"""Weight updates that rounding loses: over the audit, over the last steps, and in one small weight alone."""

from __future__ import annotations

import torch
from torch import nn

import precisionlab as pl
from precisionlab.records import Verdict


def broken(rates: list[float], weight: nn.Parameter, pause: nn.Parameter | None = None) -> list[tuple[str, str | None, int]]:
    """Code, parameter and first step of the broken findings of SGD on gradients of 1; ``pause`` gets gradients of 1e-6 from step 3 on."""
    params = [weight] if pause is None else [weight, pause]
    optimizer = torch.optim.SGD(params, lr=1.0)
    with pl.audit() as audit:
        for i, rate in enumerate(rates):
            optimizer.param_groups[0]["lr"] = rate
            optimizer.zero_grad()
            loss = weight.float().sum()
            if pause is not None:
                loss = loss + pause.float().sum() * (1.0 if i < 3 else 1e-6)
            loss.backward()
            optimizer.step()
    return [(f.code, f.parameter, f.first_step) for f in audit.report.findings if f.verdict is Verdict.BROKEN]


def ones(n: int) -> nn.Parameter:
    return nn.Parameter(torch.ones(n, dtype=torch.bfloat16))


def test_updates_lost_only_after_the_learning_rate_fell_are_found_three_steps_later():
    # bf16 steps of 2^-8 below 1: 2^-4 is exact, 2^-11 is lost
    assert broken([2.0**-4] * 6 + [2.0**-11] * 2, ones(32)) == []
    found = broken([2.0**-4] * 6 + [2.0**-11] * 3, ones(32))
    assert [(code, step) for code, _, step in found] == [("PL301", 6)]


def test_one_small_weight_that_pauses_while_the_others_move_is_quiet():
    assert broken([2.0**-6] * 10, ones(64), ones(1)) == []
