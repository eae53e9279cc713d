"""Finding the fewest changes, and verifying them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import precisionlab as pl
from precisionlab import Subject
from precisionlab.errors import PlanError
from precisionlab.planning.lower import lower_subject
from precisionlab.planning.render import to_dict, to_text
from precisionlab.plans.change import Where, loads
from precisionlab.records import Verdict


def test_an_overflowing_norm_is_repaired_by_one_change(overflowing: Subject) -> None:
    proposal = pl.plan_subject(overflowing, "fp16", "pure")
    assert proposal.before.verdict is Verdict.BROKEN and proposal.repaired
    assert [change.place for change in proposal.changes] == ["module norm"]
    assert proposal.audits == 2
    change = proposal.changes[0]
    assert change.predicted_error == 2.0**-11 and change.measured_error is not None and change.measured_error < 0.01
    assert proposal.cost["flops"] == 0.0 and 0.0 < proposal.cost["parameters"] < 0.1


def test_the_proposal_can_be_applied_from_its_own_json(overflowing: Subject, tmp_path: Path) -> None:
    proposal = pl.plan_subject(overflowing, "fp16", "pure")
    text = json.dumps(to_dict(proposal, "net", "fp16"))
    assert [change.place for change in loads(text)[0]] == ["module norm"]
    (tmp_path / "plan.json").write_text(text)
    model = overflowing.model().half()
    x, y = overflowing.batch(0)
    with pl.audit() as audit, pl.apply_plan(model, str(tmp_path / "plan.json")):
        F.mse_loss(model(x.half()).float(), y).backward()
    assert audit.report.verdict is not Verdict.BROKEN


def test_a_healthy_network_needs_no_change(healthy: Subject) -> None:
    for mode in ("amp", "pure", "master"):
        proposal = pl.plan_subject(healthy, "fp16", mode)
        assert (proposal.changes, proposal.audits, proposal.repaired) == ([], 1, True)
    assert "Nothing to change" in to_text(proposal)


def test_a_loop_that_stalls_in_half_is_repaired_by_one_line() -> None:
    def batch(step: int) -> Tensor:
        return torch.rand(1500, 4, generator=torch.Generator().manual_seed(step)) + 0.5

    class Summing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, rows: Tensor) -> Tensor:
            total = (rows[0] * self.weight).detach()
            for row in rows:
                total = total + row * self.weight.detach()
            return total * self.weight

    subject = Subject(model=Summing, batch=batch, loss=lambda model, given: model(given).float().mean(), name="summing")
    proposal = pl.plan_subject(subject, "bf16", "pure", steps=1)
    assert proposal.repaired
    assert [change.where for change in proposal.changes] == [Where.LINE]


def test_swamped_updates_are_repaired_by_master_weights() -> None:
    def batch(step: int) -> tuple[Tensor, Tensor]:
        made = torch.Generator().manual_seed(0)
        return torch.randn(32, 16, generator=made), torch.randn(32, 4, generator=made)

    subject = Subject(
        model=lambda: nn.Linear(16, 4),
        batch=batch,
        loss=lambda model, given: F.mse_loss(model(given[0]).float(), given[1].float()),
        optimizer=lambda params: torch.optim.SGD(params, lr=1e-5),
        name="slow",
    )
    proposal = pl.plan_subject(subject, "bf16", "pure", steps=4)
    assert proposal.repaired
    assert [change.where for change in proposal.changes] == [Where.MASTERS]


def test_a_budget_that_cannot_be_met_says_what_comes_nearest() -> None:
    def batch(step: int) -> Tensor:
        return torch.full((4, 64), 100.0)

    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.only = nn.Linear(64, 64, bias=False)
            nn.init.constant_(self.only.weight, 20.0)

        def forward(self, x: Tensor) -> Tensor:
            return self.only(x) / 1e5

    subject = Subject(model=Wide, batch=batch, loss=lambda model, given: model(given).float().square().mean(), name="wide")
    with pytest.raises(PlanError, match=r"no plan within --budget 0.1: the nearest moves 100\.0% of the forward FLOPs"):
        pl.plan_subject(subject, "fp16", "pure", steps=1, budget=0.1)


def test_from_fp32_says_how_much_may_run_in_each_format(healthy: Subject) -> None:
    rows = lower_subject(healthy, 2, 0)
    assert [row.format for row in rows] == ["tf32", "bf16", "fp16", "fp8 e4m3/e5m2"]
    assert all(row.repaired and row.share == 1.0 for row in rows)


def test_where_no_region_may_be_lifted_the_other_half_format_is_tried(overflowing: Subject) -> None:
    proposal = pl.plan_subject(overflowing, "fp16", "pure", allow=lambda change: not change.is_region)
    assert proposal.repaired
    assert [change.place for change in proposal.changes] == ["bf16 throughout"]
