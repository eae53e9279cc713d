"""Published unstable formulas are broken where they fail; their stable rewrites are quiet on the same input."""

import pytest
import torch

import precisionlab as pl
from precisionlab.records import Verdict

from .formulas import FORMULAS, Formula

_IDS = [f"{f.name}, {str(f.dtype).removeprefix('torch.')}" for f in FORMULAS]


@pytest.mark.parametrize("formula", FORMULAS, ids=_IDS)
def test_unstable_formula_is_broken(formula: Formula) -> None:
    x = formula.make().to(formula.dtype)
    with pl.audit() as audit:
        out = formula.unstable(x)
    exact = formula.stable(x.double())
    error = float((out.double() - exact).norm() / exact.norm().clamp_min(1e-300))
    assert not error < 0.05, "the input no longer breaks the formula"
    assert audit.report.verdict is Verdict.BROKEN


@pytest.mark.parametrize("formula", FORMULAS, ids=_IDS)
def test_stable_rewrite_is_quiet(formula: Formula) -> None:
    x = formula.make().to(formula.dtype)
    with pl.audit() as audit:
        formula.stable(x)
    assert not [(f.code, f.message) for f in audit.report.findings if f.verdict is Verdict.BROKEN]


def test_functions_with_a_backward_pass_are_judged_by_their_gradients() -> None:
    x = torch.linspace(-4, 15, 64, dtype=torch.float16).requires_grad_()
    with pl.audit() as audit:
        (x * torch.tanh(torch.log(1 + torch.exp(x)))).sum().backward()
    assert audit.report.verdict is Verdict.BROKEN
    assert any(f.op == "aten.exp" for f in audit.report.findings)
