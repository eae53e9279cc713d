"""Start, stop, decorate, nest, raise, fork, thread: whatever happens, the program goes on and everything is put back."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
import torch
from session_programs import net, overflowing, state, train
from torch.utils._python_dispatch import TorchDispatchMode

import precisionlab as pl
from precisionlab.errors import AuditStateError, SettingsError
from precisionlab.records import Verdict
from precisionlab.session import running


def test_everything_is_restored_after_an_exception(everything_is_restored: dict[str, Any]) -> None:
    audit = pl.audit()
    with pytest.raises(ZeroDivisionError), audit:
        train(net(), 1)
        raise ZeroDivisionError("bad batch")
    assert state() == everything_is_restored
    assert audit.report.record.error == "ZeroDivisionError: bad batch"
    assert audit.report.record.optimizer_steps == 1


def test_everything_is_restored_when_starting_fails(everything_is_restored: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    audit = pl.audit()
    monkeypatch.setattr(audit._protocol, "install", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        audit.start()
    assert state() == everything_is_restored and running() is None


def test_start_and_stop_as_in_a_repl() -> None:
    audit = pl.audit().start()
    overflowing()
    assert audit.active and running() is audit
    assert audit.stop().record.coverage.ops > 0
    with pytest.raises(AuditStateError, match="not running"):
        audit.stop()
    with pytest.raises(AuditStateError, match="has ended"):
        audit.start()


def test_report_can_be_read_inside_the_block_and_goes_on() -> None:
    with pl.audit() as audit:
        train(net(), 1)
        assert audit.report.record.optimizer_steps == 1
        train(net(), 1)
    assert audit.report.record.optimizer_steps == 2


def test_each_call_of_a_decorated_function_is_a_new_audit() -> None:
    @pl.audit(preset="quick")
    def work(value: float) -> torch.Tensor:
        return overflowing(value)

    assert work.report is None and work.__name__ == "work"  # type: ignore[attr-defined]
    assert work(300.0).isinf().all()
    first = work.report  # type: ignore[attr-defined]
    assert first.verdict is Verdict.BROKEN, "what the function returns is judged"
    work(2.0)
    assert work.report.verdict is Verdict.SAFE  # type: ignore[attr-defined]
    assert work.report is not first and work.report.record.settings["preset"] == "quick"  # type: ignore[attr-defined]


def test_report_of_a_decorated_function_that_raises_is_kept() -> None:
    @pl.audit()
    def work() -> None:
        overflowing()
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        work()
    assert work.report.record.error == "ValueError: no"  # type: ignore[attr-defined]


def test_generators_and_coroutines_are_refused() -> None:
    with pytest.raises(SettingsError, match="after its call has returned"):

        @pl.audit()
        def work() -> Any:
            yield 1


def test_forgotten_brackets_are_named() -> None:
    with pytest.raises(SettingsError, match=r"@pl.audit\(\) with brackets"):
        pl.audit(lambda x: x)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"optimizer": 3}, {"scaler": "x"}, {"steps": 0}, {"steps": "2"}, {"steps": range(5, 5)}])
def test_wrong_objects_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        pl.audit(**wrong)


def test_nested_use_names_the_place_of_the_first_and_the_way_out() -> None:
    with pl.audit() as outer:
        with pytest.raises(AuditStateError, match=r"started at test_lifecycle.py:\d+: with pl.audit\(\) as outer.*running\(\).stop\(\)"):
            pl.audit().start()
        with pytest.raises(AuditStateError, match="this audit is already running"):
            outer.start()
        assert running() is outer


def test_audit_of_another_thread_is_named() -> None:
    said: list[str] = []

    def second() -> None:
        try:
            pl.audit().start()
        except AuditStateError as error:
            said.append(str(error))

    def stop(audit: pl.audit) -> None:
        try:
            audit.stop()
        except AuditStateError as error:
            said.append(str(error))

    with pl.audit() as audit:
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
        stopper = threading.Thread(target=stop, args=(audit,))
        stopper.start()
        stopper.join()
    assert "another thread" in said[0] and "another thread" in said[1]


def test_training_in_another_thread_is_left_alone_and_said() -> None:
    with pl.audit() as audit:
        thread = threading.Thread(target=train, args=(net(), 2))
        thread.start()
        thread.join()
        overflowing()
    assert audit.report.record.optimizer_steps == 0
    assert any("1 other threads" in note for note in audit.report.record.notes)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_child_is_not_audited(everything_is_restored: dict[str, Any]) -> None:
    with pl.audit() as audit:
        child = os.fork()
        if child == 0:
            ok = state() == everything_is_restored and running() is None and not audit.active
            os._exit(0 if ok else 1)
        assert os.waitpid(child, 0)[1] == 0
        overflowing()
    assert audit.report.record.coverage.ops > 0


def test_mode_of_the_user_above_ours_survives_the_end() -> None:
    class Counting(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            type(self).seen += 1
            return func(*args, **(kwargs or {}))

    audit = pl.audit().start()
    with Counting():
        overflowing()
        audit.stop()
        before = Counting.seen
        overflowing()
        assert Counting.seen > before


# -- faults of our own --------------------------------------------------------------------------------------------------------------


def test_fault_in_an_observer_does_not_reach_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = train(net(), 2)
    audit = pl.audit(strict=False)
    monkeypatch.setattr(audit._rules, "op", lambda call: {}["gone"])
    monkeypatch.setattr(audit._parameters, "before_step", lambda params: 1 / 0)
    monkeypatch.setattr(audit._protocol.gradients, "note", lambda: [][3])
    with audit:
        assert train(net(), 2) == plain
    notes = "\n".join(audit.report.record.notes)
    assert "internal error in optimizer steps (2 times, first ZeroDivisionError" in notes
    assert "internal error in backward (2 times" in notes and "internal error in the measurement of aten.mm" in notes
    assert audit.report.verdict is Verdict.UNKNOWN, "an audit that failed calls nothing safe"


def test_fault_in_the_making_of_twins_is_an_unshadowed_op(monkeypatch: pytest.MonkeyPatch) -> None:
    with pl.audit(strict=False) as audit:
        x = torch.ones(3)
        monkeypatch.setattr(audit.memory, "state", lambda t: {}["gone"])
        assert (x * 2).sum().item() == 6.0
    assert audit.report.record.coverage.unshadowed["aten.mul"] == 1


def test_strict_raises_faults_of_the_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    audit = pl.audit(strict=True)
    monkeypatch.setattr(audit._rules, "op", lambda call: {}["gone"])
    with pytest.raises(KeyError), audit:
        overflowing()


def test_exception_of_a_wrapped_call_is_the_programs_own() -> None:
    with pl.audit() as audit, pytest.raises(RuntimeError, match="does not require grad"):
        torch.ones(1).backward()
    assert not any("internal" in note for note in audit.report.record.notes)


def test_model_names_parameters_that_no_module_call_showed() -> None:
    model = net()
    with pl.audit(model=model, optimizer=torch.optim.SGD(model.parameters(), 0.1)) as audit:
        torch.nn.functional.linear(torch.ones(2, 8), model[0].weight).sum().backward()
    assert [p.name for p in audit.report.record.parameters] == ["0.weight"]


def test_optimizer_names_parameters_that_no_module_has() -> None:
    weight = torch.ones(3, requires_grad=True)
    with pl.audit(optimizer=torch.optim.SGD([weight], 0.1)) as audit:
        weight.sum().backward()
    assert [p.name for p in audit.report.record.parameters] == ["param_groups[0][0]"]


def test_scaler_tells_the_scale_in_force() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    with pl.audit(scaler=scaler) as audit:
        assert audit._protocol.court.scale == 256.0


def test_preset_quick_still_names_weights_that_a_large_fp32_step_makes_nan() -> None:
    weight = torch.nn.Parameter(torch.ones(100, 100))
    optimizer = torch.optim.Adam([weight], lr=1e-3, eps=0.0)
    weight.grad = torch.full_like(weight, 1e-30)  # its square is 0 in fp32, and 1e-60 in fp64
    with pl.audit(preset="quick") as audit:
        optimizer.step()
    assert not torch.isfinite(weight).all()
    assert audit.report.verdict == "broken"
