"""What goes wrong around the step is named, and the same programs done right are quiet."""

import pytest
import torch
from torch import nn

import precisionlab as pl
from precisionlab.records import Verdict

from .step_programs import PROGRAMS


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_goes_wrong_around_the_step_is_named(name: str) -> None:
    program, codes = PROGRAMS[name]
    with pl.audit() as audit:
        program(True)
    broken = {f.code for f in audit.report.findings if f.verdict is Verdict.BROKEN}
    assert broken & codes, [(f.code, f.op, f.message) for f in audit.report.findings]


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_program_done_right_is_not_broken(name: str) -> None:
    with pl.audit() as audit:
        PROGRAMS[name][0](False)
    assert [(f.code, f.message) for f in audit.report.findings if f.verdict is Verdict.BROKEN] == []


def test_an_fp32_norm_of_ten_million_equal_gradients_is_risky() -> None:
    weight = nn.Parameter(torch.zeros(10_000_000))
    weight.grad = torch.full_like(weight, 10.0)
    with pl.audit() as audit:
        torch.nn.utils.clip_grad_norm_([weight], 1.0)
    assert [(f.code, f.verdict, f.phase) for f in audit.report.findings] == [("PL502", Verdict.RISKY, "clip")]
    assert 2**-10 < audit.report.findings[0].evidence["norm_error"] < 2**-6


def test_weights_that_a_second_loss_passes_through_once_are_not_called_unzeroed() -> None:
    torch.manual_seed(0)
    generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)
    slow, fast = torch.optim.SGD(generator.parameters(), lr=1e-3), torch.optim.SGD(critic.parameters(), lr=1e-3)
    with pl.audit() as audit:
        for _ in range(4):
            fast.zero_grad()
            critic(generator(torch.randn(8, 4)).detach()).mean().backward()
            fast.step()
            slow.zero_grad()
            critic(generator(torch.randn(8, 4))).mean().backward()
            slow.step()
    assert audit.report.findings == []
