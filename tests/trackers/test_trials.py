"""Trials inside audits: what other accumulations would have done to the sums of a program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import precisionlab as pl
from precisionlab import formats as f
from precisionlab.backends.profile import Entry, Order, Origin, Profile, Rounding, SizeClass
from precisionlab.plans import DtypePlan
from precisionlab.plans.classify import matrix
from precisionlab.records import OpRecord, TrialRecord, TrialRole, Verdict
from precisionlab.report.model import OpVerdict, Report
from precisionlab.report.table import render_table
from precisionlab.report.to_json import report_to_dict
from precisionlab.trackers import trials as tracker


def record_of(report: Report, op: str) -> OpRecord:
    return next(record for record in report.record.ops if record.site.op == op)


def row_of(report: Report, op: str) -> OpVerdict:
    return next(row for row in report.ops if row.op == op)


def trial_of(report: Report, op: str, plan: str) -> TrialRecord:
    return next(trial for trial in record_of(report, op).trials if trial.plan == plan)


def positive_product(dtype: torch.dtype = torch.float16) -> torch.Tensor:
    draw = torch.Generator().manual_seed(0)
    a, b = (torch.rand(*shape, generator=draw).to(dtype) for shape in ((48, 4096), (4096, 32)))
    return a @ b


def test_a_sum_of_ones_in_bf16_would_stall_at_256_in_its_own_format() -> None:
    with pl.audit() as audit:
        torch.ones(4096, dtype=torch.bfloat16).sum()
    trial = trial_of(audit.report, "aten.sum", "sequential bf16")
    assert trial.error_u == (4096 - 256) / 4096 / f.BF16.u
    assert trial.stagnated == 1 and trial.stagnated_terms == (4096 - 256) / 4096
    assert trial_of(audit.report, "aten.sum", "sequential fp32").error_u == 0.0
    assert audit.report.verdict is Verdict.SAFE  # this machine sums in fp32


def test_a_product_of_4096_positive_terms_is_broken_in_fp16_and_safe_in_fp32() -> None:
    with pl.audit() as audit:
        positive_product()
    row = row_of(audit.report, "aten.mm")
    verdicts = {trial["plan"]: trial["verdict"] for trial in row.trials}
    assert verdicts["sequential fp16"] == "broken" and verdicts["sequential fp32"] == "safe"
    assert row.verdict is Verdict.SAFE and row.accumulation.verdict is Verdict.SAFE
    judged = matrix(record_of(audit.report, "aten.mm"))
    assert judged[DtypePlan(f.FP16, f.FP32, f.FP16)] is Verdict.BROKEN
    assert judged[DtypePlan(f.FP16, f.FP32, f.FP32)] is judged[DtypePlan.uniform(f.FP32)] is Verdict.SAFE


def test_what_the_kernel_of_this_machine_does_is_among_the_trials() -> None:
    with pl.audit() as audit:
        table = torch.zeros(3, dtype=torch.float16)
        table.index_add_(0, torch.zeros(4096, dtype=torch.long), torch.ones(4096).half())
    assert table[0] == 2048
    executed = [trial for trial in record_of(audit.report, "aten.index_add_").trials if trial.role is TrialRole.EXECUTED]
    assert [trial.plan for trial in executed] == ["sequential fp16"]  # the known exception among the CPU's kernels
    assert executed[0].error_u == pytest.approx(0.5 / f.FP16.u)
    assert [finding.code for finding in audit.report.findings] == ["PL502"]
    assert "trials in sequential fp16 1024 u; sequential fp32 0 u" in " ".join(render_table(audit.report).split())


def test_a_sum_that_stalls_where_it_matters_to_nobody_is_risky() -> None:
    with pl.audit() as audit:
        torch.zeros(3, dtype=torch.float16).index_add_(0, torch.zeros(4096, dtype=torch.long), torch.ones(4096).half())
    row = row_of(audit.report, "aten.index_add_")
    assert audit.report.findings == [] and row.verdict is row.accumulation.verdict is Verdict.RISKY
    assert row.accumulation.evidence["trial_error_u"] == 1024.0


def test_trials_of_a_sum_that_does_not_fit_its_storage_blame_no_accumulation() -> None:
    with pl.audit() as audit:
        torch.full((4096,), 100.0, dtype=torch.float16).sum()
    record = record_of(audit.report, "aten.sum")
    assert record.trials == [] and record.trials_skipped == "no sampled output fits its storage format"


def test_fp32_results_and_quick_audits_have_no_trials() -> None:
    with pl.audit() as audit:
        torch.ones(64).sum()
    assert record_of(audit.report, "aten.sum").trials == []
    with pl.audit(preset="quick") as audit:
        torch.ones(64).half().sum()
    assert record_of(audit.report, "aten.sum").trials == []


def test_zero_outputs_mean_no_trials() -> None:
    with pl.audit(trial_outputs=0) as audit:
        positive_product()
    assert record_of(audit.report, "aten.mm").trials == []


def test_an_op_whose_terms_are_not_known_says_so() -> None:
    x = torch.rand(2, 3, 8, 8).half().requires_grad_()
    with pl.audit() as audit:
        torch.nn.functional.conv_transpose2d(x, torch.rand(3, 2, 3, 3).half()).sum().backward()
    assert "not sampled" in record_of(audit.report, "aten.convolution").trials_skipped
    backward = record_of(audit.report, "aten.convolution_backward")
    assert backward.trials_skipped == "the terms of aten.convolution_backward are not known"
    assert row_of(audit.report, "aten.convolution_backward").accumulation.evidence["trials"] == f"none: {backward.trials_skipped}"


def train(model: nn.Module, dtype: torch.dtype, steps: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    draw = torch.Generator().manual_seed(1)
    for _ in range(steps):
        x = torch.randn(4, 12, 32, generator=draw)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype):
            model(x).float().square().mean().backward()
        optimizer.step()


def transformer() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("preset", ["standard", "full"])
def test_every_column_of_a_healthy_transformer_is_safe_as_it_runs(dtype: torch.dtype, preset: str) -> None:
    model = transformer()
    with pl.audit(model, preset=preset) as audit:
        train(model, dtype, 3)
    assert sum(bool(row.trials) for row in audit.report.ops) > 10
    for row in audit.report.ops:
        assert [column.verdict for column in (row.storage, row.compute, row.accumulation)] == [Verdict.SAFE] * 3, row


def test_the_same_program_has_the_same_trials() -> None:
    reports = []
    for _ in range(2):
        model = transformer()
        with pl.audit(model) as audit:
            train(model, torch.bfloat16, 3)
        reports.append(json.dumps(report_to_dict(audit.report)["ops"]))
    assert reports[0] == reports[1]


def test_later_executions_add_to_the_sample() -> None:
    with pl.audit() as audit:
        for _ in range(4):
            positive_product()
    trial = trial_of(audit.report, "aten.mm", "sequential fp16")
    assert (trial.outputs, trial.largest) == (2 * 24, 2 * 8)  # of the first execution and the fourth
    assert trial.stagnated == 48 and 0.9 < trial.stagnated_low < trial.stagnated_high == 1.0


def test_the_number_of_outputs_is_a_setting() -> None:
    with pl.audit(trial_outputs=64) as audit:
        positive_product()
    trial = trial_of(audit.report, "aten.mm", "sequential fp16")
    assert (trial.outputs, trial.largest) == (48, 16)


def test_a_report_in_the_middle_has_the_trials_so_far() -> None:
    with pl.audit() as audit:
        positive_product()
        assert len(record_of(audit.report, "aten.mm").trials) == 5
        torch.ones(4096).half().sum()
    assert record_of(audit.report, "aten.sum").trials


def test_trials_stop_when_their_budget_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker, "AT_FIRST_NS", 0.0)
    with pl.audit() as audit:
        positive_product()
    assert record_of(audit.report, "aten.mm").trials_skipped == "the budget for trials was spent"
    evidence = row_of(audit.report, "aten.mm").accumulation.evidence
    assert evidence["trials"] == "none: the budget for trials was spent"


def test_operands_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker, "PENDING_BYTES", 1)
    with pl.audit() as audit:
        positive_product()
        assert audit._trials is not None and audit._trials._pending == []
        assert len(audit._log.ops) and record_of(audit.report, "aten.mm").trials


# Another machine.


def profile(op: str, accumulation: str, order: Order = Order.SEQUENTIAL, dtype: str = "fp16") -> Profile:
    entries = tuple(Entry(op, dtype, size, accumulation, order, rounding=Rounding.NEAREST_EVEN) for size in SizeClass)
    return Profile("narrow", "cuda", "a machine with narrow accumulators", "", Origin.DECLARED, entries)


def test_a_target_with_fp16_accumulators_breaks_what_is_safe_here() -> None:
    with pl.audit(target=profile("aten.mm", "fp16")) as audit:
        positive_product()
    (finding,) = audit.report.findings
    assert (finding.code, finding.verdict) == ("PL601", Verdict.BROKEN)
    assert finding.op == "aten.mm" and "on narrow" in finding.message and "32 of 32 outputs tried stall" in finding.message
    assert finding.evidence["trial_error_u"] > 100 and finding.evidence["executed_error_u"] < 1
    row = row_of(audit.report, "aten.mm")
    assert row.plan.accumulation == "fp16" and row.accumulation.verdict is row.verdict is Verdict.BROKEN
    assert audit.report.verdict is Verdict.BROKEN


@pytest.mark.parametrize("target", ["v100", "a100", "h100"])
def test_tensor_cores_with_fp32_accumulators_are_safe_where_fp16_ones_are_not(target: str) -> None:
    with pl.audit(target=target) as audit:
        positive_product()
    there = [trial for trial in record_of(audit.report, "aten.mm").trials if trial.role is TrialRole.TARGET]
    preset = {"v100": f.V100, "a100": f.A100, "h100": f.H100}[target]
    assert [trial.plan for trial in there] == [str(preset)]
    assert there[0].error_u < 1.0 and audit.report.findings == []


def long_product() -> torch.Tensor:
    """8192 terms whose eighths add up to 102400 and cancel."""
    a = torch.full((8, 8192), 100.0, dtype=torch.float16)
    a[:, 4096:] = -100.0
    return a @ torch.ones(8192, 8, dtype=torch.float16)


def test_split_k_with_partial_sums_in_fp16_overflows_where_the_product_is_zero() -> None:
    with pl.audit(target="h100") as audit:
        long_product()
    (finding,) = audit.report.findings
    assert (finding.code, finding.verdict) == ("PL601", Verdict.BROKEN)
    assert "overflow on the way" in finding.message and finding.evidence["overflowed_outputs"] == 32
    assert "allow_fp16_reduced_precision_reduction = False" in finding.advice


def test_layers_on_one_line_make_one_finding() -> None:
    layers = nn.Sequential(*(nn.Linear(4096, 4096, bias=False).half() for _ in range(2)))
    for layer in layers:
        nn.init.constant_(layer.weight, 2.0**-12)
    with pl.audit(layers, target=profile("aten.mm", "fp16")) as audit, torch.no_grad():
        layers(torch.ones(2, 4096, dtype=torch.float16))
    found = [finding for finding in audit.report.findings if finding.code == "PL601"]
    assert len(found) == 1
    broken = [row for row in audit.report.ops if row.op == "aten.mm" and row.accumulation.verdict is Verdict.BROKEN]
    assert len(broken) == found[0].evidence["sites"] == 2 and "1 more site" in found[0].message


def test_a_target_no_worse_than_this_machine_is_no_finding() -> None:
    index, ones = torch.zeros(4096, dtype=torch.long), torch.ones(4096).half()
    with pl.audit(target=profile("aten.index_add", "fp16")) as audit:
        table = torch.zeros(3, dtype=torch.float16)
        table.index_add_(0, index, ones)
    assert table[0] == 2048
    assert [finding.code for finding in audit.report.findings] == ["PL502"]


def test_a_target_that_errs_by_less_than_is_material_is_no_finding() -> None:
    with pl.audit(target=profile("aten.mm", "fp16", Order.PAIRWISE)) as audit:
        positive_product()
    there = next(trial for trial in record_of(audit.report, "aten.mm").trials if trial.role is TrialRole.TARGET)
    assert 0.0 < there.error_u < 8.0 and audit.report.findings == []


def test_trials_are_in_the_json_report_and_in_the_table_of_everything(tmp_path: Path) -> None:
    with pl.audit() as audit:
        positive_product()
    row = next(row for row in report_to_dict(audit.report)["ops"] if row["op"] == "aten.mm")
    trials: dict[str, dict[str, Any]] = {trial["plan"]: trial for trial in row["trials"]}
    assert trials["sequential fp16"]["verdict"] == "broken" and trials["sequential fp16"]["stagnated_outputs"] == 32
    assert trials["sequential fp16"]["stagnated_interval"][1] == 1.0
    assert "other accumulations" not in render_table(audit.report)
    table = render_table(audit.report, all_ops=True, width=120)
    assert "other accumulations" in table and "!!" in table.split("other accumulations")[1]


def test_a_plan_that_is_executed_and_a_target_counts_as_executed() -> None:
    with pl.audit(target=profile("aten.sum", "fp32")) as audit:
        torch.ones(64).half().sum()
    roles = {trial.role for trial in record_of(audit.report, "aten.sum").trials}
    assert TrialRole.EXECUTED in roles
