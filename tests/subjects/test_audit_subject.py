"""The loop around the audit. ``fake_audit`` stands for the engine; the tests at the end use the real one."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import nn

import precisionlab as pl
from precisionlab.errors import SettingsError, SubjectError, UntrustworthyError
from precisionlab.records import Coverage, Verdict
from precisionlab.subjects.run import resolve_kernels, run_subject
from precisionlab.subjects.words import Kernels, LowDtype


def mean_output(model: nn.Module, batch: Any) -> torch.Tensor:
    return model(batch).float().mean()


def linear(**changes: Any) -> pl.Subject:
    values: dict[str, Any] = dict(model=lambda: nn.Linear(4, 3), batch=lambda step: torch.randn(2, 4), loss=mean_output)
    return pl.Subject(**{**values, **changes})


def sgd(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1)


class Spy(nn.Module):
    """Records the dtypes that arrive, and whether autocast is on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.seen: list[Any] = []

    def forward(self, batch: Any) -> torch.Tensor:
        self.seen.append((batch["x"].dtype, batch["ids"].dtype, torch.is_autocast_enabled("cpu"), self.layer.weight.dtype))
        return self.layer(batch["x"])


def spied(mode: str, dtype: str, fake: Any) -> tuple[Any, Any]:
    subject = pl.Subject(Spy, {"x": torch.randn(2, 4), "ids": torch.arange(3)}, mean_output, sgd)
    pl.audit_subject(subject, dtype, mode, steps=1)
    return fake.last, fake.last.model.seen[0]


def test_amp_keeps_fp32_weights_under_autocast_with_a_scaler_for_fp16(fake_audit: Any) -> None:
    audit, seen = spied("amp", "fp16", fake_audit)
    assert seen == (torch.float32, torch.int64, True, torch.float32)
    assert audit.scaler is not None


def test_amp_in_bf16_needs_no_scaler(fake_audit: Any) -> None:
    assert spied("amp", "bf16", fake_audit)[0].scaler is None


def test_fp32_is_a_plain_run(fake_audit: Any) -> None:
    audit, seen = spied("amp", "fp32", fake_audit)
    assert seen == (torch.float32, torch.int64, False, torch.float32)
    assert audit.scaler is None


def test_pure_lowers_weights_and_floating_inputs_but_no_integers(fake_audit: Any) -> None:
    audit, seen = spied("pure", "bf16", fake_audit)
    assert seen == (torch.bfloat16, torch.int64, False, torch.bfloat16)
    assert audit.optimizer.param_groups[0]["params"][0].dtype is torch.bfloat16


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_master_optimizer_owns_fp32_copies_that_are_copied_back(dtype: str, fake_audit: Any) -> None:
    audit, seen = spied("master", dtype, fake_audit)
    master, weight = audit.optimizer.param_groups[0]["params"][0], audit.model.layer.weight
    assert (master.dtype, weight.dtype) == (torch.float32, seen[3])
    assert seen[3] is not torch.float32
    assert torch.equal(weight, master.to(weight.dtype))
    assert master.grad is not None and torch.equal(master.grad, master.grad.to(weight.dtype).float())


def test_the_model_is_trained_and_the_callers_is_left_alone(fake_audit: Any) -> None:
    mine = nn.Linear(4, 3)
    before = mine.weight.detach().clone()
    pl.audit_subject(linear(model=mine, optimizer=sgd), "fp16", "pure", steps=2)
    assert mine.weight.dtype is torch.float32 and torch.equal(mine.weight, before) and mine.weight.grad is None
    assert not torch.equal(fake_audit.last.model.weight, before.half())


@pytest.mark.parametrize("mode", ["amp", "pure", "master"])
def test_same_seed_gives_the_same_weights(mode: str, fake_audit: Any) -> None:
    weights = []
    for seed in (3, 3, 4):
        pl.audit_subject(linear(optimizer=sgd), "fp16", mode, seed=seed)
        weights.append(fake_audit.last.model.weight.detach().clone())
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


def test_random_state_of_the_caller_is_restored(fake_audit: Any) -> None:
    torch.manual_seed(11)
    random.seed(11)
    expected = torch.random.get_rng_state(), random.getstate()
    pl.audit_subject(linear(), steps=1)
    assert torch.equal(torch.random.get_rng_state(), expected[0]) and random.getstate() == expected[1]


def test_assumed_optimizer_is_said(fake_audit: Any) -> None:
    report = pl.audit_subject(linear(), "bf16", "amp", steps=1)
    assert "optimizer: none given, AdamW(lr=0.0001) was used" in report.record.notes[0]
    assert report.record.settings["optimizer"] == "AdamW(lr=0.0001)"


def test_pure_assumes_no_optimizer_and_says_so(fake_audit: Any) -> None:
    report = pl.audit_subject(linear(), "bf16", "pure", steps=1)
    assert fake_audit.last.optimizer is None
    assert "weight updates were not judged" in report.record.notes[0]


def test_settings_reach_the_audit_and_the_record(fake_audit: Any) -> None:
    report = pl.audit_subject(linear(), torch.bfloat16, "amp", 1, 5, "fast", preset="full", rho=16.0)
    assert fake_audit.last.settings == {"kernels": "fast", "preset": "full", "rho": 16.0}
    assert {name: report.record.settings[name] for name in ("dtype", "mode", "steps", "seed", "kernels", "device")} == {
        "dtype": "bf16", "mode": "amp", "steps": 1, "seed": 5, "kernels": "fast", "device": "cpu",
    }  # fmt: skip


def test_progress_is_called_before_each_step(fake_audit: Any) -> None:
    calls: list[tuple[int, int]] = []
    pl.audit_subject(linear(), steps=3, progress=lambda step, steps: calls.append((step, steps)))
    assert calls == [(1, 3), (2, 3), (3, 3)]


def test_subject_that_raises_in_step_2_keeps_the_report_of_step_1(fake_audit: Any) -> None:
    def batch(step: int) -> torch.Tensor:
        if step == 1:
            raise ValueError("bad shard")
        return torch.randn(2, 4)

    report = pl.audit_subject(linear(batch=batch), steps=3)
    assert report.record.error is not None and report.record.error.startswith("step 2 of 3: ValueError: bad shard (test_audit_subject.py:")
    assert report.verdict is Verdict.UNKNOWN
    assert "the report covers step 1 and what ran of step 2" in report.record.notes[-1]
    assert not any(note.startswith("the program raised") for note in report.record.notes)


def test_ctrl_c_keeps_the_report_for_the_command_line_and_passes_through_the_api(fake_audit: Any) -> None:
    def interrupted(model: nn.Module, batch: Any) -> torch.Tensor:
        raise KeyboardInterrupt

    assert isinstance(run_subject(linear(loss=interrupted)).error, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        pl.audit_subject(linear(loss=interrupted))


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes")])
def test_out_of_memory_says_what_to_try(error: Exception, fake_audit: Any) -> None:
    def starved(model: nn.Module, batch: Any) -> torch.Tensor:
        raise error

    assert "out of memory: try a smaller batch" in pl.audit_subject(linear(loss=starved)).record.notes[-1]


def test_nan_in_batch_and_weights_is_said_and_not_blamed(fake_audit: Any) -> None:
    def poisoned() -> nn.Module:
        model = nn.Linear(4, 3)
        with torch.no_grad():
            model.weight[0, 0] = torch.nan
        return model

    batch = {"x": torch.tensor([[1.0, torch.nan, 0.0, 0.0]])}
    subject = linear(model=poisoned, batch=batch, loss=lambda model, b: mean_output(model, b["x"]))
    notes = pl.audit_subject(subject, steps=1).record.notes
    assert any("batch['x'] of step 1 already holds 1 NaN" in note for note in notes)
    assert any("weight weight already holds 1 NaN" in note for note in notes)


def test_weights_beyond_the_format_are_said_and_the_run_is_not_called_safe(fake_audit: Any) -> None:
    def huge() -> nn.Module:
        model = nn.Linear(4, 3)
        with torch.no_grad():
            model.weight[0, :2] = 1e5
        return model

    report = pl.audit_subject(linear(model=huge), "fp16", "pure", steps=1)
    assert any("2 of 12 values of weight weight are too large for torch.float16" in note for note in report.record.notes)
    assert report.verdict is Verdict.UNKNOWN
    assert pl.audit_subject(linear(model=huge), "bf16", "pure", steps=1).verdict is Verdict.SAFE


def test_empty_batch_cannot_be_judged(fake_audit: Any) -> None:
    with pytest.raises(UntrustworthyError, match=r"batch of step 1 is empty \(batch \(0, 4\)\)"):
        pl.audit_subject(linear(batch=torch.empty(0, 4)))


def test_integer_loss_cannot_be_judged(fake_audit: Any) -> None:
    with pytest.raises(UntrustworthyError, match=r"torch.int64.*no rounding to judge"):
        pl.audit_subject(linear(batch=torch.arange(3), loss=lambda model, batch: batch.sum()))


def test_nothing_shadowed_is_unknown(fake_audit: Any) -> None:
    fake_audit.coverage = Coverage()
    report = pl.audit_subject(linear())
    assert report.verdict is Verdict.UNKNOWN and "no floating-point op" in report.record.notes[-1]


def test_loss_without_gradient_is_judged_forward_only_and_said(fake_audit: Any) -> None:
    report = pl.audit_subject(linear(loss=lambda model, batch: mean_output(model, batch).detach()))
    assert sum("only the forward pass was judged" in note for note in report.record.notes) == 1


@pytest.mark.parametrize(
    ("returned", "said"),
    [(1.5, r"returned float.*without .item\(\)"), (torch.ones(3), r"shape \(3,\).*loss.mean\(\)"), (None, "returned NoneType")],
)
def test_loss_that_breaks_its_contract_is_refused(returned: Any, said: str, fake_audit: Any) -> None:
    with pytest.raises(SubjectError, match=said):
        pl.audit_subject(linear(loss=lambda model, batch: returned))


def test_model_that_cannot_be_built_is_said(fake_audit: Any) -> None:
    def fails() -> nn.Module:
        raise FileNotFoundError("no weights")

    with pytest.raises(SubjectError, match="could not be built.*no weights"):
        pl.audit_subject(linear(model=fails))


def test_model_on_the_meta_device_is_refused(fake_audit: Any) -> None:
    with pytest.raises(SubjectError, match="meta device"):
        pl.audit_subject(linear(model=lambda: nn.Linear(4, 3, device="meta")))


def test_sizes_reach_a_batch_function_that_names_them(fake_audit: Any) -> None:
    seen: list[Any] = []

    def batch(step: int, batch_size: int = 1) -> torch.Tensor:
        seen.append((step, batch_size))
        return torch.randn(batch_size, 4)

    pl.audit_subject(linear(batch=batch, sizes={"batch_size": 3, "depth": 2}))
    assert seen == [(0, 3), (1, 3)]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dtype": "fp17"}, "no dtype 'fp17'"),
        ({"mode": "purr"}, "no mode 'purr'"),
        ({"kernels": "x"}, "no kernels"),
        ({"steps": 0}, "positive"),
    ],
)
def test_wrong_words_are_refused(changes: dict[str, Any], said: str, fake_audit: Any) -> None:
    with pytest.raises(SettingsError, match=said):
        pl.audit_subject(linear(), **changes)


def test_subject_refuses_what_is_no_function() -> None:
    with pytest.raises(SubjectError, match="loss must be a function"):
        linear(loss=torch.ones(1))
    with pytest.raises(SubjectError, match=r"optimizer must be a function optimizer\(params\), got SGD"):
        linear(optimizer=sgd(nn.Linear(1, 1).parameters()))
    with pytest.raises(SubjectError, match=r"sizes\['n'\] must be a positive integer"):
        linear(sizes={"n": 0})


def test_native_kernels_are_kept_off_the_cpu_and_for_fp32() -> None:
    assert resolve_kernels(Kernels.AUTO, LowDtype.FP16, torch.device("cuda")) is Kernels.NATIVE
    assert resolve_kernels(Kernels.AUTO, LowDtype.FP32, torch.device("cpu")) is Kernels.NATIVE
    assert resolve_kernels(Kernels.FAST, LowDtype.FP32, torch.device("cpu")) is Kernels.FAST


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("mode", ["amp", "pure", "master"])
def test_healthy_linear_model_is_safe_in_every_mode(mode: str, dtype: str) -> None:
    report = pl.audit_subject(linear(optimizer=sgd), dtype, mode, kernels="native")
    assert report.record.error is None
    assert report.verdict is Verdict.SAFE
    assert report.record.coverage.shadowed > 0


def test_real_audit_gives_the_same_bytes_twice() -> None:
    from precisionlab.report.to_json import report_to_json

    first, again = (report_to_json(pl.audit_subject(linear(optimizer=sgd), "fp16", kernels="native")) for _ in range(2))
    assert first == again
