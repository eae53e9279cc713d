"""``break_on``, ``last``, ``compare``: stops at the op, in the user's frame, with the audit asleep."""

from __future__ import annotations

import builtins
import sys
from types import FrameType
from typing import Any

import pytest
import torch
from session_programs import net, overflowing, state, train
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import precisionlab as pl
from precisionlab.debugging import candidate_codes, compare
from precisionlab.errors import SettingsError
from precisionlab.records import EventKind, EventRecord, Phase, Site


class Stops(list[FrameType]):
    """A breakpoint hook that notes where it stopped."""

    def __call__(self, frame: FrameType) -> None:
        assert _get_current_dispatch_mode_stack() == [], "what the user types is not audited"
        self.append((frame.f_code.co_name, frame.f_lineno, dict(frame.f_locals)))  # type: ignore[arg-type]


class Square(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * x


def test_stops_in_the_users_frame_at_the_op(capsys: pytest.CaptureFixture[str]) -> None:
    stops = Stops()
    with pl.audit().break_on("PL101", hook=stops) as audit:
        overflowing(3.0)
        assert not stops
        overflowing()
        overflowing()
    assert len(stops) == 1, "it stops once"
    name, line, names = stops[0]  # type: ignore[misc]
    assert name == "overflowing" and "x" in names
    said = capsys.readouterr().err
    assert f"session_programs.py:{line}: return x * x" in said and "PL101: aten.mul" in said and "90000" in said
    assert audit.last is not None and audit.last.op == "aten.mul" and audit.last.local_error is not None
    assert audit.last.operands[0].lo.tolist() == [300.0] * 4 and audit.last.results[0].hi.tolist() == [90000.0] * 4
    assert "aten.mul (forward)" in str(audit.last) and "local error" in str(audit.last)
    assert audit.compare(audit.last.results[0]).histogram == {"non-finite": 4}


def test_audit_goes_on_after_a_stop_and_what_was_typed_is_not_in_it() -> None:
    def typed(frame: FrameType) -> None:
        t = torch.ones(3).half() * 7
        net()(torch.ones(2, 8))
        assert builtins.audit.where(t)["op"] == ""  # type: ignore[attr-defined]
        assert builtins.audit.report.record.coverage.ops > 0  # type: ignore[attr-defined]

    def ops(**settings: Any) -> int:
        audit = pl.audit()
        if settings:
            audit.break_on("overflow", **settings)
        with audit:
            overflowing()
            train(net(), 1)
        assert audit.report.record.module_outputs == 1
        return audit.report.record.coverage.ops

    assert ops(hook=typed) == ops()
    assert not hasattr(builtins, "audit")


def test_exception_of_the_hook_ends_the_program_and_everything_is_restored(everything_is_restored: dict[str, Any]) -> None:
    def leave(frame: FrameType) -> None:
        raise SystemExit(4)

    def fail(frame: FrameType) -> None:
        raise ValueError("enough")

    for hook, kind in ((leave, SystemExit), (fail, ValueError)):
        with pytest.raises(kind), pl.audit().break_on("PL101", hook=hook):
            overflowing()
        assert state() == everything_is_restored


@pytest.mark.parametrize("what", ["PL1", "pl101", "overflow", pl.Verdict.BROKEN, "broken", lambda event: event.kind is EventKind.OVERFLOW])
def test_code_prefix_kind_verdict_and_predicate(what: Any) -> None:
    stops = Stops()
    with pl.audit().break_on(what, hook=stops) as audit:
        Square()(torch.full((2, 8), 300.0, dtype=torch.float16))
    assert len(stops) == 1
    assert audit.last is not None and audit.last.phase is Phase.FORWARD


def test_stops_in_backward_at_the_users_line() -> None:
    stops = Stops()
    x = torch.full((3,), 200.0, dtype=torch.float16, requires_grad=True)
    with pl.audit().break_on("PL202", hook=stops) as audit:
        (x * 300.0).sum().backward(torch.tensor(400.0, dtype=torch.float16))
    assert stops and stops[0][0] == "test_stops_in_backward_at_the_users_line"  # type: ignore[index]
    assert audit.last is not None and audit.last.phase is Phase.BACKWARD


def test_protocol_faults_stop_at_the_call() -> None:
    stops = Stops()
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
    with pl.audit().break_on("PL403", hook=stops):
        scaler.scale(model(torch.ones(2, 8)).sum()).backward()
        optimizer.step()
    assert len(stops) == 1 and stops[0][0] == "test_protocol_faults_stop_at_the_call"  # type: ignore[index]


def test_predicate_that_raises_is_off_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pl.audit().break_on(lambda event: 1 / 0, hook=Stops()):
        assert overflowing().isinf().all()
    assert "raised ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.parametrize(("wrong", "near"), [("PL999", "PL903"), ("overflaw", "overflow"), ("safe", "did you mean"), ("", "a code")])
def test_words_that_mean_nothing_are_refused(wrong: str, near: str) -> None:
    with pytest.raises(SettingsError, match=near):
        pl.audit().break_on(wrong)


def test_default_debugger_is_pdb_in_the_users_frame(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import io

    monkeypatch.setattr(sys, "stdin", io.StringIO("p 'x is', float(x[0])\np audit.last.op\np (x + 1).sum().item()\nc\n"))
    monkeypatch.setattr(sys, "breakpointhook", sys.__breakpointhook__)
    monkeypatch.delenv("PYTHONBREAKPOINT", raising=False)
    with pl.audit().break_on("PL101") as audit:
        overflowing()
        overflowing()
    said = capsys.readouterr().out
    assert "('x is', 300.0)" in said and "'aten.mul'" in said and "1204.0" in said
    assert sys.gettrace() is None and audit.report.record.coverage.ops > 2


def test_quitting_pdb_ends_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    import bdb
    import io

    monkeypatch.setattr(sys, "stdin", io.StringIO("q\n"))
    monkeypatch.setattr(sys, "breakpointhook", sys.__breakpointhook__)
    monkeypatch.delenv("PYTHONBREAKPOINT", raising=False)
    with pytest.raises(bdb.BdbQuit), pl.audit().break_on("PL101"):
        overflowing()


def test_stepping_from_the_stop_reaches_the_users_next_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import io

    def work() -> torch.Tensor:
        x = torch.full((2,), 300.0, dtype=torch.float16)
        y = x * x
        z = y + 1
        return z

    monkeypatch.setattr(sys, "stdin", io.StringIO("n\np 'y is', y.tolist()\nc\n"))
    monkeypatch.setattr(sys, "breakpointhook", sys.__breakpointhook__)
    monkeypatch.delenv("PYTHONBREAKPOINT", raising=False)
    with pl.audit().break_on("PL101"):
        work()
    said = capsys.readouterr().out
    assert "z = y + 1" in said and "('y is', [inf, inf])" in said


def test_custom_breakpointhook_sees_the_users_line_and_names(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int, bool]] = []

    def hook(*args: Any, **kwargs: Any) -> None:
        frame = sys._getframe(1)
        seen.append((frame.f_code.co_filename.rpartition("/")[2], frame.f_lineno, "x" in frame.f_locals))

    monkeypatch.setattr(sys, "breakpointhook", hook)
    with pl.audit().break_on("PL101"):
        overflowing()
    assert seen == [("session_programs.py", overflowing.__code__.co_firstlineno + 2, True)]


def test_candidate_codes_know_the_sinks() -> None:
    event = EventRecord(0, EventKind.FLUSH, Site("", "aten.mul", Phase.BACKWARD, "a.py:1"), frozenset())
    assert candidate_codes(event) >= {"PL105", "PL201"}


# -- compare ------------------------------------------------------------------------------------------------------------------------


def test_compare_counts_ulps_of_the_narrow_format() -> None:
    hi = torch.tensor([1.0, 1.0 + 2**-10, 1.0 + 2**-11, 3.0, 0.0, float("nan"), float("inf")], dtype=torch.float64)
    lo = torch.tensor([1.0, 1.0, 1.0, 3.0078125, -0.0, float("nan"), float("inf")], dtype=torch.float16)
    found = compare(lo, hi)
    assert [(index, ulps) for index, _, _, ulps in found.worst] == [((3,), 4.0), ((1,), 1.0), ((2,), 0.5)]
    assert found.histogram == {"exact": 4, "<=1/2": 1, "<=1": 1, "<=4": 1}


def test_compare_puts_what_is_non_finite_on_one_side_first() -> None:
    found = compare(torch.tensor([[1.0, float("inf")]], dtype=torch.float16), torch.tensor([[9.0, 7e4]], dtype=torch.float64))
    assert found.worst[0][0] == (0, 1) and found.worst[0][3] == float("inf") and found.histogram["non-finite"] == 1


def test_compare_below_the_normal_range_uses_the_subnormal_spacing() -> None:
    assert compare(torch.zeros(1, dtype=torch.float16), torch.full((1,), 2.0**-24, dtype=torch.float64)).worst[0][3] == 1.0


@pytest.mark.parametrize(
    "t", [torch.ones(0), torch.tensor(3.0), torch.ones(2, dtype=torch.complex64), torch.tensor([1, 2]), torch.tensor(True)]
)
def test_compare_takes_every_tensor(t: torch.Tensor) -> None:
    with pl.audit() as audit:
        found = audit.compare(t)
    assert found.worst == [] and "twin" in str(found)


def test_comparison_of_a_live_tensor_prints_and_renders() -> None:
    with pl.audit() as audit:
        total = torch.zeros((), dtype=torch.float16)
        for _ in range(7):
            total = total + torch.tensor(0.3, dtype=torch.float16)
        found = audit.compare(total)
        assert audit.where(total)["op"] == "aten.add" and float(audit.shadow(total)) != float(total)
    assert "ulps" in str(found) and found._repr_html_().startswith("<div>") and len(found._repr_html_()) < 5000
