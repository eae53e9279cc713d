"""Long-lived values: what is stuck is named after three training steps, what only lags is left alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import precisionlab as pl
from precisionlab.records import Verdict


def average_of_weights(
    update: Callable[[torch.Tensor, torch.Tensor], object], dtype: torch.dtype, steps: int, lr: float = 1e-2
) -> list[str]:
    """Codes of the broken findings of a small fp32 training that keeps an average of its weights in ``dtype``."""
    torch.manual_seed(0)
    net = nn.Linear(16, 16)
    optimizer = torch.optim.Adam(net.parameters(), lr=lr)
    average = [p.detach().to(dtype) for p in net.parameters()]
    x = torch.randn(32, 16)
    with pl.audit() as audit:
        for _ in range(steps):
            optimizer.zero_grad()
            (net(x) - x.flip(-1)).square().mean().backward()
            optimizer.step()
            with torch.no_grad():
                for kept, p in zip(average, net.parameters(), strict=True):
                    update(kept, p.detach().to(dtype))
    return [f.code for f in audit.report.findings if f.verdict is Verdict.BROKEN]


FORMS: dict[str, Callable[[float], Callable[[torch.Tensor, torch.Tensor], object]]] = {
    "mul and add": lambda decay: lambda kept, p: kept.mul_(decay).add_(p, alpha=1 - decay),
    "lerp": lambda decay: lambda kept, p: kept.lerp_(p, 1 - decay),
    "foreach lerp": lambda decay: lambda kept, p: torch._foreach_lerp_([kept], [p], 1 - decay),
    "difference": lambda decay: lambda kept, p: kept.sub_((kept - p) * (1 - decay)),
}


@pytest.mark.parametrize("form", FORMS)
def test_bf16_average_with_decay_0_9999_is_named_after_three_steps(form):
    assert average_of_weights(FORMS[form](0.9999), torch.bfloat16, 3) == ["PL302"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("decay", "dtype"), [(0.9, torch.bfloat16), (0.99, torch.float16), (0.9999, torch.float32)], ids=str)
def test_average_that_follows_its_source_is_quiet(form, decay, dtype):
    assert average_of_weights(FORMS[form](decay), dtype, 10) == []


@pytest.mark.parametrize("form", ["lerp", "foreach lerp"])
def test_bf16_average_with_decay_0_9_may_stand_still_until_its_source_has_moved(form):
    # lr 2e-4 moves weights of 0.2 by 0.1 % a step; lerp with 0.1 follows once they are 4 % away
    assert average_of_weights(FORMS[form](0.9), torch.bfloat16, 6, lr=2e-4) == []


def test_running_total_that_still_grows_is_quiet():
    total = torch.zeros((), dtype=torch.bfloat16)
    weight = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with pl.audit() as audit:
        for _ in range(10):
            optimizer.zero_grad()
            weight.square().sum().backward()
            optimizer.step()
            total.add_(weight.detach().mean().bfloat16())
    assert not [f for f in audit.report.findings if f.verdict is Verdict.BROKEN]
